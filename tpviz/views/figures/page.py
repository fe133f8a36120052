"""One self-contained HTML page: the interactive timeline and mesh with no kernel and no network.

It embeds the very modules that Jupyter runs; a stand-in for the widget model (get, set, on,
save_changes) takes the kernel's place. Where scripts are off, the static pictures show.
"""

import gzip
import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import product
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tpviz.core.mesh import Mesh
from tpviz.core.trace import Trace

from .assets import module, stylesheet
from .mesh import MAX_RANKS, check_ownership, find_parameter, mesh_scene, mesh_svg
from .svg import clean, scrolled
from .timeline import describe, timeline_scene, timeline_svg

STYLE = """
:root { color-scheme: light dark; }
body { margin: 0; background: var(--tpv-ground); color: var(--tpv-fg);
  font: var(--tpv-text)/1.55 var(--tpv-family); font-variant-numeric: tabular-nums; }
main { max-width: var(--tpv-page); margin: 0 auto; box-sizing: border-box;
  padding: var(--tpv-side); }
h1, h2 { font-weight: 650; letter-spacing: -.02em; line-height: 1.15; }
h1 { font-size: var(--tpv-big); margin: 0 0 10px; }
h2 { font-size: var(--tpv-section); margin: 56px 0 6px; }
p { max-width: 68ch; }
.facts { color: var(--tpv-muted); font-size: var(--tpv-lead); margin-top: 0; }
table { border-collapse: collapse; font-size: var(--tpv-small); }
th, td { padding: 3px 12px; text-align: left; border-bottom: 1px solid var(--tpv-rule); }
td:nth-child(n+4), th:nth-child(n+4) { text-align: right; }
.thumbnails { display: grid; gap: 20px; margin: 32px 0;
  grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); }
.thumbnails a { background: var(--tpv-bg); border-radius: var(--tpv-round); padding: 12px;
  color: inherit; text-decoration: none; font-weight: 650; }
.thumbnails a > div { height: 130px; overflow: hidden !important; }
pre, .tpv-picture { overflow-x: auto; } .tpv-place { margin-top: 14px; }
@media (max-width: 800px) { main { padding: 20px; } h1 { font-size: var(--tpv-section); } }
"""


def write_page(path: str | Path, trace: Trace, *more: Any, **options: Any) -> Path:
    """Write the `page` of a trace and more; its folder is made. Returns the path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(trace, *more, **options), encoding="utf-8")
    return path


def page(
    trace: Trace,
    mesh: Mesh | None = None,
    title: str = "tpviz",
    sections: Iterable[tuple[str, str]] = (),
    ownership: Sequence[dict[str, Any]] | None = None,
) -> str:
    """The page of a trace, as text: its timeline, its mesh and its ledger.

    mesh : of the mesh view, or None for the one in ``trace.meta["mesh"]``. sections : (heading,
    html) pairs put after the views; the html is trusted. ownership : rows for the mesh view, or
    None for ``trace.meta["ownership"]``. Raises ``ValueError`` where the trace has no events.
    """
    timeline = timeline_scene(trace)
    views = [place("timeline", {"scene": timeline, "rank": timeline["ranks"][0], "selected": -1})]
    still = timeline_svg(timeline)
    mesh = _drawn(trace.fact("mesh")["axes"]) if mesh is None else mesh
    if mesh is not None:
        rows = _drawable(mesh, trace.fact("ownership")) if ownership is None else ownership
        scene = mesh_scene(mesh, rows, badge=timeline["badge"])
        chosen = find_parameter(scene)["name"] if rows else ""
        views.append(
            "<h2>Ranks of the mesh, and the shards they own</h2>"
            + place("mesh", {"scene": scene, "rank": 0, "parameter": chosen})
        )
        still += mesh_svg(scene)
    ledger = [
        (
            f"Ledger of one step of rank {timeline['ranks'][0]}",
            scrolled(trace.ledger()._repr_html_()),
        )
    ]
    blocks = "".join(
        f"<section><h2>{escape(h)}</h2>{body}</section>" for h, body in [*ledger, *sections]
    )
    return document(
        title,
        f"<p class='facts'>{escape(describe(timeline))}</p>"
        f"{''.join(views)}<noscript>{still}</noscript>{blocks}",
    )


def write_view(
    path: str | PathLike[str], own: str, view: str, still: str = "", heading: str = ""
) -> Path:
    """Write the page of one view. own : the title that the view shows itself. view : its `place`.
    still : html for readers without scripts. heading : above the view, and of the page. Returns
    the path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = document(heading or own, f"{view}<noscript>{still}</noscript>", bool(heading))
    path.write_text(text, encoding="utf-8")
    return path


def document(title: str, body: str, headed: bool = True) -> str:
    """A whole page. body : html, with each `place` of a view. headed : whether the title stands
    above it."""
    heading = f"<h1>{escape(title)}</h1>" if headed else ""
    modules = sorted(set(re.findall(r"<div class='tpv-place' data-view='(\w+)'>", body)))
    return clean(
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{escape(title)}</title>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        f"<link rel='icon' href='data:,'><style>{STYLE}{stylesheet()}</style></head>"
        f"<body class='tpv-ground'><main>{heading}{body}</main>{scripts(modules)}</body></html>"
    )


def _drawn(axes):
    """The mesh to draw of the axes a trace tells of; None without, and for too large a one."""
    mesh = Mesh(axes) if axes else None
    return mesh if mesh and mesh.size <= MAX_RANKS else None


def _drawable(mesh, rows):
    """The rows, if they are of this mesh; a file may say anything."""
    try:
        check_ownership(mesh, rows)
    except ValueError:
        return []
    return rows


def place(
    name: str,
    *states: dict[str, Any],
    knobs: Mapping[str, Sequence[str]] = MappingProxyType({}),
    start: Sequence[int] = (),
    words: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """A view's place in a page.

    states : the traits from which `scripts` make it. knobs : {knob: what its slider stops at}; with
    them there is a state for each combination, the last knob's values first; one that is an
    ``error`` alone leaves the picture as it was. start : where the sliders stand, first by default.
    words : {knob: what its values are, with their unit}, which stand behind them.
    """
    usual = {"generation": 0, "error": "", "autoplay": False}
    drawn = [{**usual, **state} for state in states]
    whole = {"knobs": dict(knobs), "start": list(start or [0] * len(knobs)), "states": drawn}
    whole["words"] = dict(words)
    text = packed(json.dumps(whole, separators=(",", ":")))
    script = f"<script type='text/plain'>{text}</script>"
    return f"<div class='tpv-place' data-view='{name}'>{script}</div>"


def swept(
    name: str,
    sweep: Mapping[str, Iterable[Any]] | None,
    state: Callable[..., dict[str, Any]],
    start: Mapping[str, Any] = MappingProxyType({}),
    words: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """`place` with a slider for each knob of ``sweep``, {knob: values}.

    state : called with each combination, ``state(**values)``. start : values at which sliders stand
    first, if they have them. words : as of `place`. Raises ``ValueError`` where a knob has no
    values, and where no combination has a picture.
    """
    values = {knob: list(several) for knob, several in (sweep or {}).items()}
    if not all(values.values()):
        raise ValueError(f"sweep={sweep!r}: give each knob some values")
    states = [state(**dict(zip(values, at))) for at in product(*values.values())]
    if all("scene" not in one for one in states):
        raise ValueError(states[0]["error"])
    at = [v.index(start[k]) if start.get(k) in v else 0 for k, v in values.items()]
    stops = {k: list(map(str, v)) for k, v in values.items()}
    return place(name, *states, knobs=stops, start=at, words=words)


def packed(text: str) -> str:
    """A text as its script in the page unpacks it: a third or less of it, and never HTML."""
    return b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def scripts(names: Iterable[str]) -> str:
    """The modules of the views so named, `packed`, and the stand-in that starts all views."""
    modules = "".join(
        f"<script type='text/plain' id='tpv-module-{name}'>{packed(module(name))}</script>"
        for name in names
    )
    return f"{modules}<script type='module'>{module('host')}</script>"
