from dataclasses import dataclass

import ipywidgets
import pytest

import tpviz as tv
from tpviz.schemes import strategies
from tpviz.schemes.knobs import knob
from tpviz.views.plans.fields import knob_fields
from tpviz.views.widgets.knobs import Knobs, settled


@dataclass(frozen=True)
class Every:
    """A knob of each kind, and a field that is none."""

    size: int = knob(4, help="a <number>", low=1, high=64)
    free: int = knob(3, help="any number")
    on: bool = knob(True, help="a switch")
    order: str = knob("row", help="one of two", choices=("row", "column"))
    rate: float = knob(0.5, help="a bounded number", low=0.0, high=1.0)
    gain: float = knob(2.0, help="any number")
    mesh: tuple = knob((2, 2), help="two sizes")
    three: tuple = knob((1, 2, 3), help="no mesh of two axes")
    inner: object = None


def test_every_field_gets_the_control_that_fits():
    knobs = Knobs(Every, most=8)
    kinds = {name: type(box) for name, box in knobs.controls.items()}
    assert kinds == {
        "size": ipywidgets.IntSlider,
        "free": ipywidgets.IntText,
        "on": ipywidgets.Checkbox,
        "order": ipywidgets.Dropdown,
        "rate": ipywidgets.BoundedFloatText,
        "gain": ipywidgets.FloatText,
        "mesh": ipywidgets.Dropdown,
        "three": ipywidgets.Text,
    }
    assert (knobs.controls["size"].min, knobs.controls["size"].max) == (1, 8)
    assert Every(**knobs.values()) == Every()


def test_a_mesh_is_a_menu_of_the_shapes_that_most_allows():
    menu = Knobs(Every, most=8).controls["mesh"]
    shapes = [shape for _, shape in menu.options]
    assert set(shapes) == {(a, b) for a in range(1, 9) for b in range(1, 9) if a * b <= 8}
    assert shapes[:3] == [(1, 1), (2, 1), (1, 2)]  # by ranks, and of as many the first axis first
    assert dict(menu.options)["2 x 4, 8 ranks"] == (2, 4)
    large = Knobs(Every, {"mesh": (4, 4)}, most=8).controls["mesh"]
    assert large.value == (4, 4)
    assert type(Knobs(Every).controls["mesh"]) is ipywidgets.Text  # nothing bounds it


def test_compact_knobs_stand_in_one_row_with_their_help_as_tooltips():
    knobs = Knobs(Every, compact=True)
    [row] = knobs.children
    assert list(row.children) == list(knobs.controls.values())
    assert knobs.controls["mesh"].tooltip == "two sizes"


def test_defaults_and_repr():
    knobs = Knobs(Every, {"size": 2})
    assert knobs.values()["size"] == 2
    assert repr(knobs).startswith("<Knobs Every(size=2, free=3, on=True, order='row'")


def test_texts_are_read_as_values_and_help_is_escaped():
    knobs = Knobs(Every)
    knobs.controls["mesh"].value = "(4, 1)"
    assert knobs.values()["mesh"] == (4, 1)
    knobs.controls["mesh"].value = "4 x"
    with pytest.raises(ValueError, match=r"mesh: '4 x' is not a value; write for example \(2, 2\)"):
        knobs.values()
    knobs.controls["mesh"].value, knobs.controls["three"].value = "(4, 1)", "1 2"
    with pytest.raises(ValueError, match=r"three: '1 2' is not a value; .* example \(1, 2, 3\)"):
        knobs.values()
    assert "a &lt;number&gt;" in knobs.children[0].children[1].value


def test_knobs_without_an_effect_are_not_shown():
    knobs = Knobs(tv.Merak, {"tp": 1, "dp": 2})
    lines = dict(zip(knobs.controls, knobs.children))
    seen = lambda: {name for name, line in lines.items() if line.layout.display != "none"}
    assert seen() == {*lines} - {"sp", "subpipeline", "keep", "chunks"}
    knobs.controls["tp"].value, knobs.controls["recompute"].value = 2, "stage_aware"
    assert seen() == {*lines} - {"chunks"}
    knobs.controls["recompute"].value, knobs.controls["dp"].value = "none", 1
    assert seen() == {*lines} - {"chunks", "keep", "skip_last_allreduce", "zero"}
    compact = Knobs(tv.Merak, {"tp": 1}, compact=True)  # where others keep their places
    keep = compact.controls["keep"].layout
    assert (keep.visibility, keep.display) == ("hidden", "")


def test_moving_any_control_calls_back():
    knobs, calls = Knobs(Every), []
    knobs.on_change(lambda: calls.append(1))
    knobs.controls["size"].value = 5
    knobs.controls["on"].value = False
    assert len(calls) == 2


@pytest.mark.parametrize("name", strategies())
def test_every_strategy_can_be_made_from_its_knobs(name):
    cls = strategies()[name]
    knobs = Knobs(cls)
    assert set(knobs.controls) == {f.name for f in knob_fields(cls)}
    assert cls(**knobs.values()) == cls()


def test_some_of_several_names_are_check_boxes():
    knobs, moves = Knobs(tv.AxoNN, {"overlap": ("ors",)}), []
    knobs.on_change(lambda: moves.append(knobs.values()["overlap"]))
    boxes = knobs.controls["overlap"].boxes
    assert {name: box.value for name, box in boxes.items()} == {
        "oar": False,
        "ors": True,
        "oag": False,
    }
    boxes["oag"].value = True
    assert moves == [("ors", "oag")]
    assert tv.AxoNN(**knobs.values()).overlap == ("ors", "oag")


def sliders(**values):
    return {n: ipywidgets.IntSlider(value=v, min=1, max=9) for n, v in values.items()}


def test_the_fewest_others_go_to_the_nearest_values_that_work():
    boxes, heard = sliders(a=9, b=4, c=2), []
    for name, box in boxes.items():
        box.observe(lambda change, name=name: heard.append((name, change.new)), "value")
    product = lambda: boxes["a"].value * boxes["b"].value * boxes["c"].value
    assert settled(boxes, ["a"], lambda: product() <= 36) == {"b": (4, 2)}
    assert {name: box.value for name, box in boxes.items()} == {"a": 9, "b": 2, "c": 2}
    assert [one for one in heard if one[1] != 4] == [("b", 2)]  # of what was tried nobody heard
    assert settled(boxes, ["a"], lambda: product() <= 9) == {"b": (2, 1), "c": (2, 1)}
    before = {name: box.value for name, box in boxes.items()}
    assert settled(boxes, ["a"], lambda: product() <= 8) == {}  # a keeps its value
    assert {name: box.value for name, box in boxes.items()} == before


def merak():
    return tv.ScheduleView(tv.Merak(pp=2, microbatches=4), tv.GPT(layers=8), tv.clusters.laptop(8))


VIEWS = {
    "blocks": (lambda: tv.BlocksView(tv.ATP(mesh=(2, 2))), "mesh", (2, 4)),
    "grid": (lambda: tv.GridView(tv.AxoNN(x=2, y=2, z=4)), "data", 2),
    "schedule": (lambda: tv.ScheduleView("shifted_critical_path", p=4, m=8), "m", 2),
    "strategy": (merak, "pp", 8),
    "tiles": (lambda: tv.TileView(ranks=5, m=256, tile=128), "tile", 256),
    "context": (
        lambda: tv.ContextView(tv.Context(cp=4, kind="ulysses"), tv.GPT(seq=2048)),
        "cp",
        8,
    ),
    "layout": (lambda: tv.LayoutView("llama-3B", gpus=32), "tp", 8),
}


@pytest.mark.parametrize("make, name, value", VIEWS.values(), ids=VIEWS)
def test_every_view_keeps_the_knob_moved_and_says_which_gave_way(make, name, value):
    view = make()
    before = {n: box.value for n, box in view.controls.items()}
    view.controls[name].value = value
    after = {n: box.value for n, box in view.controls.items()}
    changed = {n for n in after if after[n] != before[n]} - {name}
    assert (after[name], view.error) == (value, "") and changed
    assert view.gave.startswith("Changed so that all fits: ")
    assert all(f"{n} {before[n]} " in view.gave for n in changed)
