import re

import numpy as np
import pytest

from tpviz.figures.palette import (
    INKS,
    MEMORY_KINDS,
    PATTERNS,
    PHASES,
    axis_keys,
    contrast,
    css_variables,
    luminance,
    phase_key,
    svg_style,
    text_on,
)

LIGHT, DARK = ["#FFFFFF"], ["#111111", "#212121"]  # the page, and JupyterLab's two dark grounds


def seen_by_deuteranope(color):
    """Linear RGB through the matrix of Machado et al. 2009 (severity 1)."""
    matrix = np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    )
    rgb = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return np.clip(matrix @ linear, 0, 1)


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


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    "family",
    [[*PHASES, "other", "wait"], [f"axis{i}" for i in range(5)], list(MEMORY_KINDS.values())],
)
def test_kinds_differ_by_colour_or_by_pattern_for_a_deuteranope(family, theme):
    for i, a in enumerate(family):
        for b in family[:i]:
            apart = np.linalg.norm(
                np.subtract(*(lab(seen_by_deuteranope(getattr(INKS[k], theme))) for k in (a, b)))
            )
            assert apart > 20 or INKS[a].pattern != INKS[b].pattern, (a, b, apart)


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
    assert re.search(r"\.tpv-light \.f-forward\{fill:#0072B2\}", svg_style("light"))
    assert ".tpv-page .f-forward{fill:var(--tpv-forward)}" in svg_style("page")
    assert "--jp-layout-color0" in svg_style("page")
    with pytest.raises(ValueError, match="'light', 'dark', 'auto', 'page'"):
        svg_style("sepia")
