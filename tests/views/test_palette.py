import json
import re
from itertools import pairwise, product

import numpy as np
import pytest
from synthetic import synthetic_trace

import tpviz as tv
from tpviz.core.inks import AXIS_INKS, MEMORY_KINDS, PHASES, axis_keys, phase_key
from tpviz.core.mesh import Mesh
from tpviz.views.figures import blocks, film, legend, mesh, timeline
from tpviz.views.figures.comparison import INK_OF_PART
from tpviz.views.figures.tokens import (
    BACKGROUND,
    GROUND,
    INKS,
    PATTERNS,
    contrast,
    css_variables,
    luminance,
    svg_style,
    text_on,
    tokens,
)

LIGHT, DARK = ["#FFFFFF"], ["#111111", "#212121"]  # the page, and JupyterLab's two dark grounds


# Linear RGB for three kinds of colour blindness (Machado et al. 2009, severity 1), and in grey.
SIGHT = {
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
    "grey": [[0.2126, 0.7152, 0.0722]] * 3,
}
APART = 20  # distance in CIELAB from which two colours are told apart at a glance


def seen(color, sight):
    rgb = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return lab(np.clip(np.array(SIGHT[sight]) @ linear, 0, 1))


def lab(linear):
    xyz = (
        np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
        @ linear
    )
    f = np.cbrt(xyz / [0.9505, 1.0, 1.089])
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_contrast_is_wcags():
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)
    assert luminance("#FF0000") == pytest.approx(0.2126)


@pytest.mark.parametrize("key", INKS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_mark_reads_on_its_ground(key, theme):
    color = getattr(INKS[key], theme)
    assert min(contrast(color, ground) for ground in (LIGHT if theme == "light" else DARK)) >= 3
    assert contrast(text_on(color), color) >= 4.5


def legends():
    """{view: [(mark, words)]} of everything that their legends can have."""
    merak, found = tv.Merak(pp=2, microbatches=4), {}

    def listens(name, module):
        def kept(items, *place, **looks):
            found.setdefault(name, []).extend(items := list(items))
            return legend.legend(items, *place, **looks)

        patch.setattr(module, "legend", kept)

    with pytest.MonkeyPatch.context() as patch:
        for module in (blocks, mesh, timeline):
            listens(module.__name__.rsplit(".", 1)[1], module)
        timeline.timeline_svg(timeline.timeline_scene(synthetic_trace()))
        tv.BlocksView(tv.ATP(mesh=(2, 2))).to_svg()
        listens("schedule", film)  # draws the legends of all films from here on
        tv.ScheduleView("dualpipe_v", against="shifted_critical_path", overlapped=True).to_svg()
        tv.ScheduleView(merak, tv.GPT(layers=4), against="zb_h1").to_svg()
        listens("tiles", film)
        tv.TileView(against="sequential").to_svg()
        listens("context", film)
        tv.ContextView().to_svg()
        listens("experts", film)
        tv.ExpertsView().to_svg()
        listens("microscope", film)
        tv.MicroscopeView(tv.microscope("all_reduce", "ring", world_size=4)).to_svg()
        listens("grid", blocks)  # draws its legend too
        tv.GridView(tv.AxoNN(x=2, y=2, z=2)).to_svg()
        tv.MeshView(Mesh({"dp": 2, "pp": 2, "cp": 2, "tp": 2})).to_svg()
    every = [(phase, phase) for phase in (*PHASES, "other", "wait", "exposed", "copy", "idle")]
    every += [(f"axis{i}", f"axis {i}") for i in range(5)] + [("predicted", "predicted")]
    return found | {
        "all inks of lanes": every + [(f"memory {k}", k) for k in MEMORY_KINDS.values()]
    }


def look(drawn, x=0, y=0):
    """(its shape, patterns and signs, without colours; the inks in it) of a mark."""
    svg = legend.drawing(drawn, x, y, 14, 11)
    inks = re.findall(r"[fs]-(?:halo-)?([\w-]+)", svg)
    return re.sub(r"[fs]-[\w -]+", "", svg), [ink for ink in inks if ink in tokens("light")]


FILMS = {
    "context": lambda: tv.ContextView(tv.Context(cp=8)),
    "experts": lambda: tv.ExpertsView(tv.Experts(ep=8)),
    "ring": lambda: tv.MicroscopeView(tv.microscope("all_reduce", "ring", world_size=8)),
    "tree": lambda: tv.MicroscopeView(tv.microscope("all_reduce", "tree", world_size=4)),
    "schedule": lambda: tv.ScheduleView("zb_h1", against="1f1b"),
    "tiles": lambda: tv.TileView(against="sequential"),
}


@pytest.mark.parametrize("name", FILMS)
def test_an_ink_that_is_not_in_the_legend_is_said_to_be_somebodys_own(name):
    """A hue of a kind of time may also be a rank's or a slice's: then the legend says so."""
    film = FILMS[name]()
    scene = getattr(film, "picture", film).scene
    drawn = re.sub(r"<pattern.*?</pattern>", "", json.dumps(scene))
    inks = {ink for ink in re.findall(r"[fs]-(?:halo-)?(\w+)", drawn) if ink in INKS}
    told = {ink for key, _ in scene["legend"] for ink in re.findall(r"'(\w+)'", str(key))}
    assert inks <= told or any("colour" in words for _, words in scene["legend"])


def test_every_meaning_of_a_legend_is_told_apart_without_colour():
    """By shape, pattern or sign; or by a colour that no kind of colour blindness takes away."""
    alike = []
    for view, items in legends().items():
        marks = {words: look(drawn) for drawn, words in items}
        for i, (one, (shape, inks)) in enumerate(marks.items()):
            for other, (same, others) in list(marks.items())[:i]:
                if shape != same:
                    continue
                for theme, sight in product(("light", "dark"), SIGHT):
                    a, b = (seen(tokens(theme)[k[0]], sight) for k in (inks, others))
                    if np.linalg.norm(a - b) < APART:
                        alike.append((view, one, other, theme, sight))
    assert "\n".join(map(str, alike)) == ""


def test_kinds_of_memory_are_told_apart_where_they_touch():
    """They stand on each other in this order; solid, so that only the colour tells them."""
    for theme, sight in product(("light", "dark"), SIGHT):
        inks = [seen(tokens(theme)[key], sight) for key in MEMORY_KINDS.values()]
        assert min(np.linalg.norm(a - b) for a, b in pairwise(inks)) >= 12, (theme, sight)


TIMES = "forward", "backward", "axis0"


def test_kinds_of_time_are_told_apart_by_lightness():
    """Fills are solid: where colours do not help, as on grey paper, steps of lightness do."""
    for theme, sight in product(("light", "dark"), SIGHT):
        inks = [seen(tokens(theme)[key], sight) for key in TIMES]
        for a, b in pairwise(inks):
            assert np.linalg.norm(a - b) >= 11, (theme, sight)
    for theme in ("light", "dark"):
        steps = [seen(tokens(theme)[key], "grey")[0] for key in TIMES]
        assert steps == sorted(steps)


def test_patterns_are_a_switch_but_for_what_is_exposed():
    for drawn in map(look, ("backward", "axis0", "wait")):
        assert "tpv-mark" in drawn[0]
    assert "tpv-mark" not in look("exposed")[0] and "url(#tpv-exposed)" in look("exposed")[0]
    style = svg_style("auto")
    assert ".tpv-auto .tpv-mark{display:none}" in style
    assert "@media print{.tpv-auto .tpv-mark{display:inline}}" in style
    assert ".tpv-patterns .tpv-auto .tpv-mark{display:inline}" in style


def test_patterns_differ():
    """No two are the same lines, so a pattern is a sign."""
    drawn = [tile for tile in PATTERNS.values() if tile]
    assert len(set(drawn)) == len(drawn) >= 10
    parts = [pattern for _, pattern in INK_OF_PART.values()]
    assert len(set(parts)) == len(parts)


def test_one_meaning_has_one_colour():
    for theme in ("light", "dark"):
        colors = [getattr(ink, theme) for ink in INKS.values()]
        assert len(set(colors)) == len(colors)
    assert all(ink.pattern in PATTERNS for ink in INKS.values())


def test_axes_keep_their_colour_whatever_the_mesh():
    assert axis_keys(["tp"])["tp"] == axis_keys(["pp", "dp", "tp"])["tp"] == "axis0"
    assert list(axis_keys(["a", "dp"])) == ["a", "dp"]
    assert len(set(axis_keys(["a", "b", "c", "d", "tp"]).values())) == 5
    assert len(axis_keys(list("abcdefg"))) == 7


def test_phase_without_a_colour_is_other():
    assert [phase_key(p) for p in ("forward", "", "warmup")] == ["forward", "other", "other"]


def test_css_names_every_token_and_follows_jupyterlab():
    css = css_variables(".x")
    for key in INKS:
        assert f"--tpv-{key}: light-dark(" in css
        assert f"--tpv-on-{key}:" in css
    assert "var(--jp-layout-color0, light-dark(" in css
    assert 'body[data-jp-theme-light="false"] .x { color-scheme: dark; }' in css


def test_svg_style_per_theme():
    assert "prefers-color-scheme" in svg_style("auto")
    assert INKS["optimizer"].dark in svg_style("dark")
    assert INKS["optimizer"].dark not in svg_style("light")
    assert f".tpv-light .f-forward{{fill:{INKS['forward'].light}}}" in svg_style("light")
    assert ".tpv-page .f-forward{fill:var(--tpv-forward)}" in svg_style("page")
    assert "--jp-layout-color0" in svg_style("page")
    with pytest.raises(ValueError, match="'light', 'dark', 'auto', 'page'"):
        svg_style("sepia")


@pytest.mark.parametrize("key", AXIS_INKS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_letters_in_the_ink_of_an_axis_read(key, theme):
    """Names of axes on both grounds, at 4.5:1; a mark needs 3:1 alone."""
    color = tokens(theme)[f"word-{key}"]
    assert min(contrast(color, ground[theme]) for ground in (GROUND, BACKGROUND)) >= 4.5
    assert f":is(text,tspan).f-{key}{{fill:{color}}}" in svg_style(theme)
