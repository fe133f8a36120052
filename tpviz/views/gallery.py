"""Views with sliders for pages without a kernel; the demonstration has some of the gallery's.

Each function draws one, as html for `tpviz.views.figures.page.document`. The microscope's messages
and the comparison come from real ranks; the other pictures are counted or simulated.
"""

from dataclasses import replace
from html import escape
from typing import Any

import tpviz as tv
from tpviz.core.mesh import Mesh
from tpviz.schemes.ownership import ownership
from tpviz.verbs.written import code

from .figures.page import swept
from .figures.svg import fitted, image

GPT = tv.GPT()
WORKLOAD = tv.GPT(layers=2, hidden=256, heads=8, seq=128, batch=8)
PARALLELISM = {
    "tensor parallelism inside a node": tv.Megatron(tp=2) * tv.DataParallel(dp=2, bucket_mb=1.0),
    "tensor parallelism over all ranks": tv.Megatron(tp=4),
    "data parallelism alone": tv.DataParallel(dp=4, bucket_mb=1.0),
}
ASKED: dict[str, Any] = {"steps": 3, "timeout": 300}
"""Of an emulated run."""
CHOICES = {"the router": None, "hot experts": tv.Routing(1.0)}
NUMBERS = 240_000
"""float32, of an all-reduce: chunks of whole kilobytes on each of its rings."""


def microscope() -> str:
    """Ring all-reduces on 2 to 8 ranks."""

    def state(ranks):
        asked = {"algorithm": "ring", "world_size": ranks, "elements": NUMBERS}
        state = playing(tv.MicroscopeView(tv.microscope(**asked)))
        return {**state, "cell": _cell(f"tv.MicroscopeView(tv.microscope({_words(asked)}))")}

    words = {"ranks": "in the ring"}
    return swept("microscope", {"ranks": [2, 3, 4, 6, 8]}, state, {"ranks": 8}, words)


def blocks() -> str:
    """ATP on the meshes of four ranks."""
    view = tv.BlocksView(tv.ATP(mesh=(2, 2)), GPT, autoplay=True)
    return view.to_place({"mesh": [(1, 4), (2, 2), (4, 1)], "order": ["column", "row"]})


def grid() -> str:
    """AxoNN on grids of eight ranks or fewer."""
    view = tv.GridView(tv.AxoNN(x=2, y=2, z=2), GPT, autoplay=True)
    return view.to_place({"z": [1, 2], "x": [1, 2]})


def schedules() -> str:
    """Merak's schedule over 1F1B."""
    view = tv.ScheduleView("shifted_critical_path", against="1f1b", p=4, m=8, autoplay=True)
    return view.to_place({"m": [4, 8, 12, 16], "r": [0.0, 1.0, 2.0]})


def context() -> str:
    """Balanced blocks of attention against contiguous ones."""
    view = tv.ContextView(tv.Context(cp=4), autoplay=True)
    return view.to_place({"kind": ["zigzag", "all_gather", "ulysses"], "cp": [2, 4, 8]})


def experts() -> str:
    """Rows to experts and back, with a hot expert and what a capacity drops."""
    view = tv.ExpertsView(tv.Experts(ep=4), autoplay=True)
    return view.to_place({"skew": [0.0, 0.5, 1.0, 2.0], "capacity": ["none", 1.0, 1.5]})


def loads() -> str:
    """Rows that each of four real ranks computed, step by step, from the bytes of their trace."""
    strategy, mixture = tv.Experts(ep=4), tv.GPT(batch=16, experts=8, top_k=2)

    def state(chooser):
        w = replace(mixture, routing=CHOICES[chooser])
        found = tv.expert_loads(tv.run(strategy, w, **ASKED, progress=False), w)
        svg, most = fitted(found.to_svg(theme="page")), found.times.max(1)
        who = " or ".join(f"rank {rank}" for rank in sorted(set(found.busiest))).capitalize()
        says = f"{who} computes most: {most.min():.2f} to "
        says += f"{most.max():.2f} times the mean."
        scene = {"svg": svg, "says": says, "captions": [found.describe()]}
        trace = f"tv.run({code(strategy)}, {code(w)}, {_words(ASKED)})"
        return {"scene": scene, "cell": _cell(f"tv.expert_loads({trace}, {code(w)})")}

    return swept("picture", {"chooser": CHOICES}, state)


def tiles() -> str:
    """T3-MCA over the sequential configuration."""
    view = tv.TileView(config="t3_mca", against="sequential", autoplay=True)
    return view.to_place({"link": [5.0, 10.0, 15.0, 30.0, 60.0]})


def timeline() -> str:
    """A simulated step, in which some communication is hidden and some exposed."""

    def state(parallelism):
        asked = PARALLELISM[parallelism], WORKLOAD, box(1)  # nothing runs: at its own speed
        here = BOX.replace(", slow_motion=1000", "")
        trace = f"tv.simulate({code(asked[0])}, {code(WORKLOAD)}, {here})"
        return {**playing(tv.Timeline(tv.simulate(*asked))), "cell": _cell(f"tv.Timeline({trace})")}

    return swept("timeline", {"parallelism": PARALLELISM}, state)


def comparison() -> str:
    """Predicted, simulated and emulated steps."""

    def state(parallelism):
        asked = PARALLELISM[parallelism]
        made = f"tv.compare({code(asked)}, {code(WORKLOAD)}, {BOX}, {_words(ASKED)})"
        return {**beside(tv.compare(asked, WORKLOAD, box(), **ASKED)), "cell": _cell(made)}

    return swept("picture", {"parallelism": PARALLELISM}, state)


def box(slow_motion: float = 1000) -> tv.Cluster:
    """Two NVLink pairs, for a model a quarter the size, slow enough that two busy cores keep up."""
    return tv.clusters.nvlink_pairs(pairs=2).scale_model(hidden=4, slow_motion=slow_motion)


BOX = "tv.clusters.nvlink_pairs(pairs=2).scale_model(hidden=4, slow_motion=1000)"
"""`box` as code."""


def _cell(made: str, start: str = "\n"):
    """The cell of a notebook that shows what is made."""
    return f"import tpviz as tv\n{start}view = {made}"


def _words(asked: dict[str, Any]):
    return ", ".join(f"{name}={code(value)}" for name, value in asked.items())


def beside(comparison: tv.Comparison) -> dict[str, Any]:
    """The state of a page's picture of a comparison."""
    svg, says = fitted(comparison.to_svg(theme="page", verdict=False)), comparison.scene["verdict"]
    return {"scene": {"svg": svg, "says": says, "captions": [comparison.describe()]}}


def mesh() -> str:
    """Which rank owns what."""
    both = [tv.Megatron(tp=n) * tv.DataParallel(dp=8 // n) for n in (2, 4)]
    every = *both, tv.AxoNN(x=2, y=2, z=2), tv.DataParallel(dp=8, zero=3)
    strategies, gpt = {s.short: s for s in every}, tv.GPT(batch=8)

    def state(strategy):
        s = strategies[strategy]
        made = f"tv.MeshView(tv.Mesh(strategy.axes), ownership(strategy, {code(gpt)}))"
        start = f"from tpviz.schemes.ownership import ownership\n\nstrategy = {code(s)}\n"
        state = playing(tv.MeshView(Mesh(s.axes), ownership(s, gpt)))
        return {**state, "cell": _cell(made, start)}

    return swept("mesh", {"strategy": strategies}, state)


def playing(view: Any) -> dict[str, Any]:
    """The state of a view; if it is a film, one that plays."""
    return {**view.state(), "autoplay": True}


def section(title: str, words: str, drawn: str, anchor: str = "") -> str:
    """A part of a page: a heading, one sentence, and what is drawn, as html. anchor : the id by
    which a link finds it."""
    own = f" id='{anchor}'" if anchor else ""
    return f"<section{own}><h2>{escape(title)}</h2><p>{escape(words)}</p>{drawn}</section>"


def thumbnails() -> str:
    """Small pictures that lead to the sections, as html."""
    views = {
        blocks: tv.BlocksView(tv.ATP(mesh=(2, 2)), GPT).picture,
        grid: tv.GridView(tv.AxoNN(x=2, y=2, z=2), GPT).picture,
        schedules: tv.ScheduleView("shifted_critical_path", against="1f1b", p=4, m=8).picture,
        context: tv.ContextView(tv.Context(cp=4)).picture,
        experts: tv.ExpertsView(tv.Experts(ep=4)).picture,
        tiles: tv.TileView(config="t3_mca", against="sequential").picture,
        mesh: tv.MeshView(Mesh({"dp": 2, "pp": 2, "tp": 2})),
    }
    titles = {draw: title for title, (draw, _) in SECTIONS.items()}
    drawn = "".join(
        f"<a href='#{draw.__name__}'>{image(view.to_svg(), titles[draw], 1)}"
        f"<span>{escape(titles[draw].partition(':')[0])}</span></a>"
        for draw, view in views.items()
    )
    return f"<nav class='thumbnails' aria-label='sections'>{drawn}</nav>"


SECTIONS = {
    "A ring all-reduce, message by message": (
        microscope,
        "Every rank sends one slice at a time to the next, which adds it to its own. Longer rings "
        "take more steps, but no rank ever sends more than two gradients.",
    ),
    "ATP: tensor parallelism on a 2D mesh": (
        blocks,
        "Weights are sharded over both axes; each step shows the blocks a rank holds and what it "
        "sends.",
    ),
    "AxoNN: a 3D grid and data parallelism": (
        grid,
        "Weight shards are gathered just before their GEMM, and their gradients reduce-scattered "
        "behind it.",
    ),
    "Merak: the shifted critical path": (
        schedules,
        "The last stage recomputes nothing, so the pipeline's longest chain gets shorter than "
        "1F1B's.",
    ),
    "Context parallelism: one long sequence on many GPUs": (
        context,
        "Each rank attends with its own tokens to those before them, whose keys and values go "
        "round; cut in order, the last rank has most to do.",
    ),
    "Experts: every token's row goes to its experts": (
        experts,
        "A few experts of many compute a token, so rows travel to their ranks and back. The rank "
        "of a hot expert makes all others wait; a capacity drops rows instead.",
    ),
    "Loads of experts, from a run": (
        loads,
        "What four real ranks computed in each training step, told by the bytes of their traces.",
    ),
    "T3: a GEMM fused with its reduce-scatter": (
        tiles,
        "A tracker sends each tile when its last update arrives, while later tiles still compute.",
    ),
    "One step, rank by rank": (
        timeline,
        "Blue and green compute; strips communicate behind it; red is waited for. Choose how the "
        "model is split, and see what is hidden.",
    ),
    "Prediction, simulation and an emulated run": (
        comparison,
        "Predicted by formulas; simulated, its operations on a virtual clock; and emulated: run on "
        "real ranks, whose kernels and links are paced.",
    ),
    "Who owns what": (
        mesh,
        "Choose a rank: its group along each axis lights up, and its shard of every parameter.",
    ),
}
