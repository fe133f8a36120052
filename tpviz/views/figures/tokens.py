"""The tokens of every picture and page: colours, sizes of type, space.

A colour has one meaning. Each kind of time has its hue: forward blue, backward green, communication
orange, exposed communication red and hatched, idle grey; forward, backward and communication are
also steps of lightness, so that grey paper tells them apart. Every mark has a contrast of at least
3:1 against its ground (WCAG 2.2, 1.4.11) and text on it 4.5:1. Fills are solid. Patterns, for
those whom colours do not help, are one switch of a page (`PATTERNS_ON`), and on in print; hatching
alone always shows, and means exposed.

>>> INKS["forward"].light
'#00539C'
>>> sorted(TYPE.values())
[13, 16, 20, 28, 44]
"""

from functools import cache
from typing import NamedTuple

from tpviz.core.inks import AXIS_INKS


class Ink(NamedTuple):
    """One meaning: its label, its colour on light and on dark, and its pattern in PATTERNS."""

    label: str
    light: str
    dark: str
    pattern: str = "solid"


INKS = {
    "forward": Ink("forward", "#00539C", "#3988CD"),
    "backward": Ink("backward", "#0A7F58", "#3DB787", "diagonal"),
    "weight_gradient": Ink("gradient of the weights", "#4C9F7C", "#9BE3C2", "back"),
    "recompute": Ink("recompute", "#5294C5", "#85C9F2", "dots"),
    "optimizer": Ink("optimizer", "#3A3D45", "#D4D7DD", "cross"),
    "sync": Ink("gradient sync", "#64748B", "#94A3B8", "lines"),
    "other": Ink("other compute", "#85888F", "#868A93", "plus"),
    "axis0": Ink("communication", "#DB7212", "#FFB466", "vertical"),
    "axis1": Ink("communication", "#6B3A00", "#A0691E", "back"),
    "axis2": Ink("communication", "#B3478B", "#E380BA", "zigzag"),
    "axis3": Ink("communication", "#055C5C", "#07837D", "bricks"),
    "axis4": Ink("communication", "#8A20F3", "#A812F3", "grid"),
    "copy": Ink("copy", "#4B6A2F", "#A9C77F", "waves"),
    "wait": Ink("waiting", "#767B86", "#8F96A3", "hatch"),
    "idle": Ink("idle", "#80848E", "#727987", "sparse"),
    "exposed": Ink("exposed communication", "#CC2538", "#FF6977", "hatch"),
    "parameters": Ink("parameters", "#381B77", "#845BCB"),
    "gradients": Ink("gradients", "#6363D4", "#BCA9F9", "back"),
    "optimizer_state": Ink("optimizer state", "#5D38A3", "#9681F5", "dots"),
    "activations": Ink("activations", "#A581DB", "#DED3F9", "lines"),
}

PATTERNS = {
    "solid": None,
    "diagonal": (7, "M-1,1l2,-2M0,7l7,-7M6,8l2,-2"),
    "back": (7, "M-1,6l2,2M0,0l7,7M6,-1l2,2"),
    "dots": (6, "M1.5,2h2M4.5,5h2"),
    "cross": (8, "M0,0l8,8M0,8l8,-8"),
    "lines": (5, "M0,2.5h5"),
    "zigzag": (6, "M0,4.5l3,-3l3,3"),
    "vertical": (5, "M2.5,0v5"),
    "plus": (8, "M4,2v4M2,4h4"),
    "grid": (6, "M0,3h6M3,0v6"),
    "bricks": (8, "M0,0.5h8M0,4.5h8M2,0.5v4M6,4.5v4"),
    "waves": (8, "M0,4q2,-4 4,0t4,0"),
    "sparse": (10, "M5,1v8"),
    "hatch": (5, "M-1,1l2,-2M0,5l5,-5M4,6l2,-2"),
}
"""Pattern -> (tile size in px, path drawn over the mark in the background colour)."""
PATTERNS_ON = "tpv-patterns"
"""The class of a page's root that shows the patterns."""

THEMES = ("light", "dark", "auto", "page")
GROUND = {"light": "#FBFAF7", "dark": "#0F1115"}
"""Of a page; what stands on it, in frames without lines, has the `BACKGROUND`."""
BACKGROUND = {"light": "#FFFFFF", "dark": "#171A20"}
TEXT = {"light": "#16181D", "dark": "#ECEEF2"}
MUTED = {"light": "#5C616C", "dark": "#9AA1AD"}
RULE = {"light": "#E4E2DC", "dark": "#2A2E37"}

TYPE = {"small": 13, "text": 16, "lead": 20, "section": 28, "big": 44}
"""Sizes of letters, px: labels and captions, text and values, the sentence of a step, headings, and
the one number of a view."""
FAMILY = 'Inter, system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif'
SPACE = {"page": 1280, "side": 40, "gutter": 32, "round": 14}
"""px: the widest page, its sides, between columns, and of round corners."""


def luminance(color: str) -> float:
    """Relative luminance of "#RRGGBB", 0..1 (WCAG 2.2, definition)."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    """WCAG contrast ratio of two colours, 1..21."""
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@cache
def readable(color: str, theme: str) -> str:
    """The colour as letters: mixed with that of text until 4.5:1 on both grounds of a theme."""
    mixed, ends = color, [[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in (color, TEXT[theme])]
    for part in range(1, 21):
        if min(contrast(mixed, ground[theme]) for ground in (GROUND, BACKGROUND)) >= 4.5:
            break
        mixed = "#" + "".join(f"{round(a + (b - a) * part / 20):02X}" for a, b in zip(*ends))
    return mixed


@cache
def text_on(color: str) -> str:
    """Black or white, whichever reads better on this colour."""
    return max("#000000", "#FFFFFF", key=lambda text: contrast(text, color))


def tokens(theme: str) -> dict[str, str]:
    """{token: colour} of a theme: every ink, that of text on it (``on-<ink>``), axes' as letters
    (``word-<ink>``), and the page's own."""
    inks = {key: getattr(ink, theme) for key, ink in INKS.items()}
    texts = {f"on-{key}": text_on(color) for key, color in inks.items()}
    texts |= {f"word-{key}": readable(inks[key], theme) for key in AXIS_INKS}
    page = {"bg": BACKGROUND[theme], "fg": TEXT[theme], "muted": MUTED[theme], "rule": RULE[theme]}
    page |= {"ground": GROUND[theme]}
    return {**inks, **texts, **page}


def css_variables(selector: str = ".tpv") -> str:
    """CSS that gives ``selector`` the tokens as ``--tpv-<token>``, following its ``color-scheme``.

    Views inside JupyterLab take the page colours from the ``--jp-*`` variables of its theme.
    """
    light, dark = tokens("light"), tokens("dark")
    lab = {
        "ground": "--jp-layout-color0",
        "bg": "--jp-layout-color0",
        "fg": "--jp-ui-font-color0",
        "muted": "--jp-ui-font-color1",
        "rule": "--jp-border-color2",
    }
    lines = []
    for token in light:
        value = f"light-dark({light[token]}, {dark[token]})"
        if token in lab:
            value = f"var({lab[token]}, {value})"
        lines.append(f"  --tpv-{token}: {value};")
    lines += [f"  --tpv-{name}: {size}px;" for name, size in {**TYPE, **SPACE}.items()]
    lines.append(f"  --tpv-family: {FAMILY};")
    return (
        f"{selector} {{\n  color-scheme: light dark;\n" + "\n".join(lines) + "\n}\n"
        f'body[data-jp-theme-light="true"] {selector} {{ color-scheme: light; }}\n'
        f'body[data-jp-theme-light="false"] {selector} {{ color-scheme: dark; }}\n'
    )


def css_rules(selector: str = ".tpv") -> str:
    """The classes of `svg_style`, within ``selector``, in the colours of `css_variables`."""
    return _rules(selector, {token: f"var(--tpv-{token})" for token in tokens("light")})


def svg_style(theme: str = "auto") -> str:
    """A ``<style>`` for an SVG: classes ``f-<token>`` (fill), ``s-<token>`` (stroke) and
    ``f-halo-<ink>`` (text on a mark, outlined in the mark's colour so that patterns do not cut it).

    theme: "light", "dark", "auto" (follows the reader's system) or "page" (stands inside HTML and
    follows that page, also JupyterLab's theme). Raises ValueError on another.
    """
    if not isinstance(theme, str) or theme not in THEMES:
        raise ValueError(f"theme={theme!r} is not one of {', '.join(map(repr, THEMES))}")
    scope = f".tpv-{theme}"
    if theme == "page":
        return f"<style>{css_variables(scope)}{css_rules(scope)}</style>"
    body = _rules(scope, tokens("light" if theme == "auto" else theme))
    if theme == "auto":
        body += f"@media (prefers-color-scheme:dark){{{_rules(scope, tokens('dark'))}}}"
    return f"<style>{body}</style>"


def _rules(scope, colors):
    plain = "".join(
        f"{scope} .f-{t}{{fill:{c}}}{scope} .s-{t}{{stroke:{c}}}" for t, c in colors.items()
    )
    halos = "".join(
        f"{scope} .f-halo-{k}{{fill:{colors[f'on-{k}']};stroke:{colors[k]};"
        "stroke-width:3;paint-order:stroke}"
        for k in INKS
    )
    words = "".join(
        f"{scope} :is(text,tspan).f-{k}{{fill:{colors[f'word-{k}']}}}" for k in AXIS_INKS
    )
    mark = f"{scope} .tpv-mark"
    shows = f".{PATTERNS_ON} {mark}{{display:inline}}@media print{{{mark}{{display:inline}}}}"
    return f"{plain}{words}{halos}{mark}{{display:none}}{shows}"
