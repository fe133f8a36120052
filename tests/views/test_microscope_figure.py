import json
import xml.etree.ElementTree as ElementTree

import pytest

from tpviz.cluster import Cluster, Device, Level
from tpviz.core.trace import Event, Trace
from tpviz.views.collectives import ArrivedMessage, Microscope
from tpviz.views.figures.film import film_svg
from tpviz.views.figures.microscope import frames, microscope_scene
from tpviz.views.figures.microscope_layout import arrange, path
from tpviz.views.figures.svg import image, wrapped

SVG = "{http://www.w3.org/2000/svg}"


def swap(n=2, cluster=None, values=(3.0, 5.0)):
    """Two ranks that send each other their only number and add it, in half a second."""
    trace = Trace.from_events([Event(kind="comm", name="send", end=0.5)], {"badge": "made up"})
    step = tuple(
        ArrivedMessage(0, r, 1 - r, 0, 0, 4, values[r], "reduce", 0.1 * r, 0.5) for r in (0, 1)
    )
    noted = [[[values[0]], [values[1]]], [[sum(values)]] * 2]
    return Microscope(
        "all_reduce",
        "recursive_doubling",
        "recursive_doubling",
        "ring",
        n,
        4,
        trace,
        (step,),
        noted,
        0.0,
        cluster,
    )


def texts(svg):
    return [node.text for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_the_scene_is_json_and_has_a_frame_more_than_steps():
    scene = microscope_scene(swap())
    assert json.loads(json.dumps(scene))["frames"] == scene["frames"]
    assert (len(scene["frames"]), len(scene["steps"])) == (2, 1)


def test_cells_show_numbers_terms_and_how_full_they_are():
    found = frames(swap())
    [first], [last] = found[0][1], found[1][1]
    assert (first["value"], first["terms"], first["full"], first["new"]) == ("5", "", 0.5, False)
    assert (last["value"], last["terms"], last["full"], last["new"]) == ("8", "3+5", 1, True)
    assert last["ranks"] == [0, 1]


def test_long_sums_say_how_many_ranks_are_in_them():
    m = swap(values=(30.0, 50.0))
    wide = Microscope(**{**vars(m), "values": [[[30000.0], [50000.0]], [[80000.0]] * 2]})
    assert frames(m)[1][0][0]["terms"] == "30+50"
    assert frames(wide)[1][0][0]["terms"] == ""  # complete: no need to say


def test_svg_before_and_after_the_step():
    scene = microscope_scene(swap())
    before, after = (texts(film_svg(scene, step, theme="light")) for step in (0, 1))
    assert {"+3", "+5", "rank 0", "rank 1", "made up"} <= set(before)
    assert "step 1 of 1: 2 messages of 4 bytes (2 added), 500 ms" in before
    assert "the end, after 1 steps" in after
    assert "+3" not in after
    assert after.count("8") == 2


@pytest.mark.parametrize("theme", ["light", "dark", "auto", "page"])
def test_svg_is_well_formed_in_every_theme(theme):
    ElementTree.fromstring(film_svg(microscope_scene(swap()), 0, theme))


def test_arithmetic_with_the_numbers_of_the_run():
    steps, sent, algbw, busbw = swap().arithmetic()
    assert steps == "Steps: 1 recorded; the formula for recursive doubling has 1 hops."
    assert sent.startswith(
        "Bytes: the busiest rank sent 4 = 1 S (S: payload), the mean rank 4; by "
    )
    assert algbw == "algbw = S / t = 4 bytes / 500 ms = 8 B/s."
    assert busbw == "busbw = algbw x 2 (n-1)/n = 8 B/s x 1 = 8 B/s."


def test_with_a_cluster_the_prediction_stands_beside_it():
    device = Device({"float32": 1e9}, 1e9, 1e9)
    m = swap(cluster=Cluster("two", device, (Level("wire", 2, 8.0, 8.0, 0.25),)))
    assert m.predicted == [0.75]
    assert "predicted 750 ms" in m.to_svg(0)
    assert "On two: its messages are predicted to take 750 ms; t = 500 ms." in m.describe()
    assert "1 x 250 ms + 4 bytes / 8 B/s = 750 ms." in m.describe()


def test_table_and_words():
    m = swap()
    assert m.to_table()[1] == ["1", "0", "1", "0", "4", "3", "added", "500 ms"]
    assert m.describe().startswith(
        "Recursive doubling all reduce of 4 bytes on 2 ranks: 1 step, 2 "
        "messages; the result is the one of torch.distributed."
    )
    wrong = Microscope(**{**vars(m), "error": 2.0})
    assert "differs from the one of torch.distributed by 2." in wrong.describe()
    assert m._repr_html_() == image(m.to_svg(), m.describe())


def test_a_step_that_is_not_there():
    with pytest.raises(ValueError, match=r"step=2 is not in this view: use 0 to 1"):
        swap().to_svg(2)


@pytest.mark.parametrize("ranks", range(2, 17))
@pytest.mark.parametrize("kind", ["ring", "circle", "tree"])
def test_boxes_do_not_touch_and_arrows_stay_outside_of_their_ends(kind, ranks):
    drawing = arrange(kind, ranks, ranks)
    box, spots = drawing["box"], drawing["ranks"]
    for i, a in enumerate(spots):
        assert 0 <= a["x"] <= drawing["width"] - box["width"]
        assert 0 <= a["y"] <= drawing["height"] - box["height"]
        for b in spots[:i]:
            assert (
                abs(a["x"] - b["x"]) >= box["width"] + 10
                or abs(a["y"] - b["y"]) >= box["height"] + 10
            )
    x0, y0, *_, x1, y1 = path(drawing, 0, ranks - 1)
    for (x, y), end in (((x0, y0), spots[0]), ((x1, y1), spots[-1])):
        inside = 0 < x - end["x"] < box["width"] and 0 < y - end["y"] < box["height"]
        assert not inside


def test_halves_of_a_buffer_stand_one_under_the_other():
    places = arrange("circle", 3, 6, parts=2)["places"]
    assert [x for x, _ in places[:3]] == [x for x, _ in places[3:]]
    assert min(y for _, y in places[3:]) > max(y for _, y in places[:3])


def test_wrapped_lines():
    assert wrapped("one two three", 7) == ["one two", "three"]


def test_a_late_message_of_the_same_pair_keeps_its_distance():
    m = swap()
    twice = Microscope(
        **{
            **vars(m),
            "steps": ((m.steps[0][0], m.steps[0][0]),),
            "collective": "all_to_all",
            "values": [[[3.0, 0.0]] * 2] * 2,
            "layout": "circle",
        }
    )
    assert [x["lag"] for x in microscope_scene(twice)["steps"][0]] == [0, 0.14]
