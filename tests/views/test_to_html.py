"""A view as one file: it plays without Python and network, and its sliders change the picture."""

from dataclasses import replace
from itertools import product

import pytest
from pictures import check_heights

import tpviz as tv
from tpviz.core.mesh import Mesh

LARGEST = 2_000_000
CAPPED = replace(tv.ExpertsView().workload, capacity=1.0)
SWEPT = {
    "tiles": (lambda **k: tv.TileView(**k), {"link": [5.0, 15.0, 60.0], "ranks": [2, 8]}),
    "schedule": (lambda **k: tv.ScheduleView(against="1f1b", **k), {"m": [4, 8, 12]}),
    "blocks": (
        lambda mesh=(2, 2), chunks=1: tv.BlocksView(tv.ATP(mesh=mesh, chunks=chunks)),
        {"mesh": [(2, 2), (1, 4), (3, 2)], "chunks": [1, 2]},
    ),
    "context": (
        lambda kind="zigzag", **k: tv.ContextView(tv.Context(kind=kind, **({"cp": 4} | k))),
        {"kind": ["zigzag", "ulysses"], "cp": [2, 4]},
    ),
    "experts": (
        lambda ep=4, capacity="none": tv.ExpertsView(
            tv.Experts(ep=ep), tv.ExpertsView().workload if capacity == "none" else CAPPED
        ),
        {"ep": [2, 4, 8], "capacity": ["none", 1.0]},
    ),
    "grid": (lambda **k: tv.GridView(tv.AxoNN(**k)), {"x": [1, 2], "z": [2, 4]}),
}


def drawn(make, knobs):
    """(scene, "") of a new view, or (None, why there is none)."""
    try:
        return make(**knobs).picture.scene, ""
    except ValueError as error:
        return None, str(error)


@pytest.mark.browser
@pytest.mark.parametrize("kind", SWEPT)
def test_every_slider_shows_what_python_draws(kind, tab, tmp_path):
    make, sweep = SWEPT[kind]
    view = make()
    before = repr(view), {name: box.value for name, box in view.controls.items()}
    path = view.to_html(tmp_path / "folder" / "view.html", sweep, title="A title")
    assert (repr(view), {name: box.value for name, box in view.controls.items()}) == before
    assert path.stat().st_size < LARGEST
    tab.goto(path.as_uri())
    tab.locator(f".tpv-{view.picture.kind}[data-ready]").wait_for()
    assert tab.locator("h1").inner_text() == "A title"
    picture, error = tab.locator("svg[role=application]"), tab.locator(".tpv-error")
    for at in product(*(range(len(values)) for values in sweep.values())):
        for name, number in zip(sweep, at):
            knob = tab.get_by_label(name, exact=True)
            named = knob.locator("option").count()
            knob.select_option(str(number)) if named else knob.fill(str(number))
        tab.evaluate("() => new Promise(done => requestAnimationFrame(() => done()))")
        knobs = {name: values[number] for (name, values), number in zip(sweep.items(), at)}
        scene, clash = drawn(make, knobs)
        assert (error.inner_text() if error.is_visible() else "") == clash
        if clash:
            continue
        assert (
            picture.get_attribute("aria-label")
            == f"{scene['title']}, {scene['captions'][scene['opens']]}"
        )
        assert [int(tab.locator("input[aria-label=step]").get_attribute("max"))] == [
            len(scene["captions"]) - 1
        ]
    ids = tab.evaluate("() => [...document.querySelectorAll('[id]')].map(node => node.id)")
    assert len(ids) == len(set(ids))


@pytest.mark.browser
@pytest.mark.parametrize(
    "view, sweep",
    [
        (tv.ScheduleView, {"schedule": ["gpipe", "1f1b", "zb_h1"], "against": ["none", "gpipe"]}),
        (tv.TileView, {"config": ["t3_mca", "sequential"], "against": ["none", "sequential"]}),
        (
            tv.ContextView,
            {"kind": ["zigzag", "ulysses"], "cp": [1, 2], "against": ["none"]},
        ),
        (tv.ExpertsView, {"ep": [1, 8], "capacity": ["none", 1.0], "skew": [0.0, 4.0]}),
    ],
)
def test_no_control_changes_a_height(view, sweep, tab, tmp_path):
    """Legends, tables and numbers of other knobs have their place as well."""
    path = view().to_html(tmp_path / "a.html", sweep)
    for width in (1440, 900, 400):
        tab.set_viewport_size({"width": width, "height": 900})
        tab.goto(path.as_uri())
        tab.locator(".tpv[data-ready]").wait_for()
        assert check_heights(tab) > 10


@pytest.mark.browser
def test_a_part_is_described_without_python(tab, tmp_path):
    view = tv.TileView((512, 512, 256), 4, tile=128)
    tab.goto(view.to_html(tmp_path / "tiles.html").as_uri())
    svg, scene = tab.locator("svg[role=application]"), view.picture.scene
    x, y, *_ = scene["tiles"][9]
    svg.wait_for()
    grown = svg.bounding_box()["width"] / scene["width"]
    svg.click(position={"x": (x + 4) * grown, "y": (y + 4) * grown})
    view.part = 9
    tab.get_by_text(view.picture.detail["words"]).first.wait_for()


def test_what_cannot_be_written(tmp_path):
    path = tmp_path / "x.html"
    view = tv.BlocksView(tv.ATP(mesh=(2, 2)))
    for sweep, words in (
        ({"mash": [1]}, "values of a knob of this view: mesh, order, chunks"),
        ({"mesh": []}, "give each knob some values"),
        ({"mesh": [(3, 3)]}, "heads=4 does not split evenly"),
        ({"chunks": ["many"]}, "chunks='many'"),
    ):
        with pytest.raises(ValueError, match=words):
            view.to_html(path, sweep)
    with pytest.raises(ValueError, match="no picture to write yet"):
        tv.MeshView().to_html(path)
    assert not path.exists()
    assert tv.MeshView(Mesh({"dp": 2, "tp": 2})).to_html(path) == path
