"""What every chart of a study has to be; its tests call it for each chart and theme."""

import json
import re
from collections.abc import Callable, Collection
from math import log10
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from tpviz.views.figures.tokens import BACKGROUND

SVG = "{http://www.w3.org/2000/svg}"
NEAR = 0.004
"""Of an axis: places in a picture have one or two decimals of a px."""


def assert_plain(
    scene: dict[str, Any], draw: Callable[[str], str], theme: str, badges: Collection[str], alt: str
) -> None:
    """``draw(theme)`` is a plain SVG, the same each time, without network; it shows title,
    ``badges`` and notes, has the text ``alt``, and its places are the numbers of the scene."""
    scene, svg = json.loads(json.dumps(scene)), draw(theme)
    assert svg == draw(theme) and "http" not in svg.replace("http://www.w3.org/2000/svg", "")
    tree = ElementTree.fromstring(svg)
    assert tree.get("role") == "img" and tree.get("aria-label") == scene["title"]
    assert tree.findtext(f"{SVG}desc") == alt
    said = " ".join("".join(node.itertext()) for node in tree.iter(f"{SVG}text"))
    marks = [mark["text"] for one in scene["panels"] for mark in one["marks"]]
    assert badges
    for words in (scene["title"], *badges, *scene["notes"], *marks):
        assert _one_line(words) in _one_line(said)
    if theme != "page":
        assert f".f-bg{{fill:{BACKGROUND[theme]}}}" in svg
    ids = re.findall(r"\bid='([^']+)'", svg)
    assert len(ids) == len(set(ids)) and set(re.findall(r"url\(#([^)]+)\)", svg)) <= set(ids)
    assert_drawn(scene, tree)
    with pytest.raises(ValueError, match="theme='blue' is not one of 'light', 'dark', 'auto'"):
        draw("blue")


def assert_drawn(scene: dict[str, Any], tree: ElementTree.Element) -> None:
    """Places in the picture, read by the words at its axes, are the numbers of the scene."""
    panels = [node for node in tree.iter(f"{SVG}g") if node.get("class") == "tpv-panel"]
    assert len(panels) == len(scene["panels"])
    y = None
    for one, node in zip(scene["panels"], panels):
        frame = _frame(node)
        x = _axis(one, "x", node, frame)
        named = any(t.get("text-anchor") == "end" for t in node.iter(f"{SVG}text"))
        assert named or scene["shared_y"]
        y = _axis(one, "y", node, frame) if named else y
        traces = [g for g in node.iter(f"{SVG}g") if g.get("class") == "tpv-trace"]
        names = [t["name"] for t in one["traces"]]
        traces.sort(key=lambda g: names.index(g.get("data-name")))  # drawn in another order
        assert [g.get("data-name") for g in traces] == names
        base = dict.fromkeys(one["traces"][0]["x"], 0.0)
        for trace, drawn in zip(one["traces"], traces):
            _compared(trace, drawn, x, y, base)
            if scene.get("stack"):
                base = {at: low + v for (at, low), v in zip(base.items(), trace["y"])}
        for rule in one["rules"]:
            way, read = ("x", x) if "x" in rule else ("y", y)
            found = [_numbers(p.get("d"))[way == "y"] for p in node if p.get("class") == "s-fg"]
            assert min(abs(read(px) - rule[way]) for px in found) < NEAR * read.span


def _compared(trace, drawn, x, y, base):
    if trace["type"] == "heatmap":
        cells = {
            (str(a), str(b)): z
            for b, row in zip(trace["y"], trace["z"])
            for a, z in zip(trace["x"], row)
        }
        boxes = [(_box(group[1]), group[1]) for group in drawn]
        found = {(x(a + w / 2), y(b + h / 2)): rect for (a, b, w, h), rect in boxes}
        assert found.keys() == {at for at, z in cells.items() if z is not None}
        for at, rect in found.items():
            part = min(abs(cells[at]) / trace["zmax"], 1) * (0.55 if cells[at] > 0 else 0.4)
            assert float(rect.get("fill-opacity")) == pytest.approx(part, abs=1e-3)
            assert rect.get("class") == ("f-forward" if cells[at] > 0 else "f-axis0")
    elif trace["type"] == "bar":
        boxes = [_box(group[1]) for group in drawn]
        assert [x(a + w / 2) for a, _, w, _ in boxes] == list(map(str, trace["x"]))
        tall = [y(b) - y(b + h) for _, b, _, h in boxes]
        assert tall == pytest.approx(trace["y"], abs=NEAR * y.span)
        feet = [base[at] for at in trace["x"]]
        assert [y(b + h) for _, b, _, h in boxes] == pytest.approx(feet, abs=NEAR * y.span)
        assert all(group[0].tag == f"{SVG}title" for group in drawn)
    else:
        wanted = [pair for pair in zip(trace["x"], trace["y"]) if None not in pair]
        marks = [p.get("transform") for p in drawn if p.get("transform")]
        lines = [
            p.get("d")
            for p in drawn
            if not p.get("transform") and not re.search("[hv]10", p.get("d"))
        ]
        looks = [p.get("stroke-dasharray") is None for p in drawn if p.get("d") in lines]
        assert looks == [trace.get("line", {}).get("dash") == "solid"] * len(lines)
        both = [[_numbers(mark)[:2] for mark in marks]] * ("markers" in trace["mode"])
        both += [np.reshape(_numbers(d), (-1, 2)) for d in lines]
        assert len(both) == len(trace["mode"].split("+")) or not wanted
        for places in both if wanted else []:
            assert len(places) == len(wanted)
            for axis, read in enumerate((x, y)):
                found, values = [read(p[axis]) for p in places], [pair[axis] for pair in wanted]
                if isinstance(found[0], str):
                    assert found == list(map(str, values))
                else:
                    away = np.array(read.measure(found)) - read.measure(values)
                    assert abs(away).max() < NEAR * read.span
        for symbol in drawn.iter(f"{SVG}title"):
            assert trace["name"] in symbol.text


class _Read:
    """From px to the values of an axis, by its words."""

    def __init__(self, places, log):
        (a, low), *_, (b, high) = sorted(places.items())
        self.log, self.low, self.first = log, low, a
        self.slope = (self._of(b) - self._of(a)) / (high - low)
        assert all(
            abs(self._of(v) - self._of(self(px))) < 1e-9 + 0.3 * abs(self.slope)
            for v, px in places.items()
        )

    def _of(self, value):
        return log10(value) if self.log else value

    def measure(self, values):
        return np.array([self._of(v) for v in values], float)

    def __call__(self, px):
        value = self._of(self.first) + (px - self.low) * self.slope
        return 10**value if self.log else value

    @property
    def span(self):
        return 200 * abs(self.slope)


def _axis(one, way, node, frame):
    """A function from px to a value, or to the name of a category."""
    side, anchor = (0, "middle") if way == "x" else (1, "end")
    words = [
        (t.text, float(t.get("xy"[side])) - 4.2 * side)
        for t in node.iter(f"{SVG}text")
        if t.get("text-anchor") == anchor and t.get("class") == "f-muted"
    ]
    bars = way == "x" and one["traces"][0]["type"] == "bar"
    values = [v for t in one["traces"] for v in t[way] if v is not None]
    if one[way].get("type") == "category" or bars or any(isinstance(v, str) for v in values):
        names = list(dict.fromkeys([*one[way].get("categoryarray", ()), *values]))
        low, high = frame[2 * side : 2 * side + 2]
        if way == "y" and one[way].get("autorange") != "reversed":
            low, high = high, low
        slot = (high - low) / len(names)

        def name(px):
            assert bars or abs((px - low) / slot % 1 - 0.5) < 0.02
            return str(names[int((px - low) / slot)])

        return name
    if one[way].get("ticktext"):
        known = dict(zip(one[way]["ticktext"], one[way]["tickvals"]))
        if one[way].get("type") != "log":  # upright words may repeat: the lines of the grid
            grid = [
                _numbers(p.get("d"))[0]
                for p in node
                if p.get("class") == "s-rule" and "V" in p.get("d")
            ]
            return _Read(dict(zip(one[way]["tickvals"], grid)), False)
        return _Read({known[text]: px for text, px in words if text in known}, True)
    return _Read({float(text): px for text, px in words if _is_number(text)}, False)


def _frame(node):
    """left, right, top, bottom of a panel."""
    [line] = [p.get("d") for p in node if p.get("class") == "s-muted"]
    left, top, bottom, right = _numbers(line)
    return left, right, top, bottom


def _box(rect):
    return [float(rect.get(name)) for name in ("x", "y", "width", "height")]


def _numbers(text):
    return [float(n) for n in re.findall(r"-?\d+\.?\d*", text)]


def _is_number(text):
    return bool(re.fullmatch(r"-?[\d.]+(e[-+]?\d+)?", text))


def _one_line(text):
    """Without what breaking lines puts in."""
    return "".join(text.split())
