"""A knob of a view is moved: Python's time until the new picture, beside plotly's.

The peer is what a notebook with ``ipywidgets.interact`` would do at each move: predict, and make
plotly's figure and JSON of the prediction's segments, one bar trace for each part; it finds in a
cache the step that the view has described for it. Our views also fit the other knobs, and draw
mesh, memory and words. Also: T3's simulated hardware. Nothing of it needs a browser.
"""

import random
from functools import partial
from itertools import cycle, islice
from typing import Any

import plotly.graph_objects as go
import torch
from harness import interleaved, ratio, report, row, seconds, timing
from torch import nn

import tpviz as tv
from tpviz.evidence.t3_hardware import Gemm, simulate
from tpviz.modules.partition import partition_of, shard, trace
from tpviz.views.widgets import TileView

REPEATS = 30


def plotly_bars(prediction):
    """A prediction's segments as plotly's figure, in JSON."""
    figure = go.Figure(layout={"barmode": "stack"})
    names = [f"{i} {s.phase} {s.layer}" for i, s in enumerate(prediction.segments)]
    for part, of in {
        "compute": lambda s: s.compute,
        "exposed": lambda s: sum(s.exposed.values()),
        "hidden": lambda s: sum(s.hidden.values()),
        "bubble": lambda s: s.bubble,
    }.items():
        figure.add_bar(name=part, y=names, x=[*map(of, prediction.segments)])
    return figure.to_json()


def beside_plotly(what, view, bound):
    """Rows of one view: its time, and its ratio to the peer's for the same strategies."""

    def peer():
        p = view.prediction
        plotly_bars(tv.predict(p.strategy, p.workload, p.cluster))

    times = interleaved({"view": any_knob(view), "plotly": peer}, REPEATS)
    yield timing(what, times["view"], "ms", bound)
    yield row(f"{what}: tpviz / plotly", ratio(times, "view", "plotly"), "x")


def turn(view: Any, knob: Any, value: Any) -> None:
    """Moves one knob; raises ``RuntimeError`` where the view has no picture of that."""
    knob.value = value
    if view.error:
        raise RuntimeError(f"{view!r}: {view.error}")


def any_knob(view):
    """Moves knobs of the model and of the strategy, each in turn to another of its stops."""
    controls, draw = view._sizes.controls | view._inner.controls, random.Random(0)
    names = cycle(sorted(controls.keys() & view._fitting.stops.keys()))

    def move():
        others = []
        while not others:
            name = next(names)
            others = sorted({*view._fitting.stops[name]} - {controls[name].value})
        turn(view, controls[name], draw.choice(others))

    return move


def traced():
    """A small Transformer of torch's own layers."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    return trace(model, (torch.zeros(2, 8, 16),))


def rows():
    """Every view in turn."""
    for name in ("Megatron", "ATP", "AxoNN", "Merak", "T3"):
        view = tv.explore(tv.GPT(), tv.clusters.nvlink_pairs(), strategy=tv.strategies()[name]())
        yield from beside_plotly(f"explore, {name}", view, 80)

    planner = tv.explore("llama2-70B", gpus=512)
    yield from beside_plotly("planner, 70B on 512 GPUs", planner, 100)

    graph = traced()
    partition = tv.PartitionView(partition_of(graph, 3, shard(graph, "finest"), "flops"))
    tiles = TileView()
    k = tiles.knobs.controls["k"]  # pyright: ignore[reportAttributeAccessIssue]
    for what, view, knob, stops, bound in (
        ("partition of 6 layers, stages", partition, partition.controls["stages"], (4, 5, 6), 50),
        ("tiles, K", tiles, k, (1152, 1280, 1408), 90),
    ):
        values = islice(cycle(stops), REPEATS)
        samples = [seconds(partial(turn, view, knob, value)) for value in values]
        yield timing(what, samples, "ms", bound)

    for mode, bound in (("mirror", 2), ("full", 20)):  # the paper's T-NLG, FC-2
        taken = seconds(partial(simulate, Gemm(8192, 4256, 2128), 8, mode=mode))
        yield row(f"T3's simulated hardware, 8 GPUs, {mode}", taken, "s", bound)


if __name__ == "__main__":
    report("views", "Views: what a knob costs, without a browser", [*rows()])
