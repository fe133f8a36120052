"""The exercise of notebook 13 on real ranks: tiles or chunks, predicted, then run."""

import warnings
from dataclasses import replace
from functools import lru_cache

from tpviz.cluster import Cluster, clusters
from tpviz.core.workload import GPT
from tpviz.schemes.t3.strategy import T3
from tpviz.verbs.predict import predict

from .formula import Asked, ChoiceQuestion, chosen
from .told import told

CHOICES = (("sequential", 0), ("chunk", 0), *(("tile", rows) for rows in (4, 8, 16, 32, 64)))


HOPS = (1e-7, 1e-5, 1e-4)
"""Seconds of latency of a message."""


SLOW = 20
"""Slow motion: a step takes about half a second."""


@lru_cache(maxsize=1)
def workload() -> GPT:
    """Four chunks of 128 tokens; its GEMMs and their reduce-scatters take about equally long."""
    return GPT(layers=1, hidden=32, heads=4, seq=64, batch=8, vocab=64)


def ring(hop: float, bandwidth: float = 1e10) -> Cluster:
    """A cluster of four whose messages take ``hop`` seconds more than their bytes, scaled down for
    this machine's ranks; times on it are in slow motion."""
    box = clusters.nvswitch(4)
    level = replace(box.levels[0], p2p=bandwidth, group=bandwidth, latency=hop)
    return replace(box, levels=(level,)).scale_model(hidden=256, slow_motion=SLOW)


def times(cluster: Cluster) -> dict[tuple[str, int], float]:
    """{(mode, tile): predicted seconds of a step}."""
    return {choice: predict(strategy(*choice), workload(), cluster).step_time for choice in CHOICES}


def strategy(mode: str, tile: int) -> T3:
    """The `T3` of a choice."""
    return T3(tp=4, mode=mode, tile=tile)


def _ran(answers):
    """Both the choice for the second cluster and "sequential", predicted and emulated."""
    from tpviz.verbs.run import run

    cluster, choice, seconds = ring(HOPS[1]), chosen(CHOICES, answers[1]), []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for s in (strategy("sequential", 0), strategy(*choice)):
            trace = run(s, workload(), cluster, steps=1, memory=False, progress=False)
            seconds += [predict(s, workload(), cluster).step_time, trace.step_time]
    before, ran_before, after, ran_after = (round(1e3 * t) for t in seconds)
    busy = (" " + TILE.say("this machine was too busy")) if warned else ""
    return TILE.say(
        "right on clusters",
        count=len(answers),
        choice=choice,
        ran_after=ran_after,
        ran_before=ran_before,
        after=after,
        before=before,
        busy=busy,
    )


def _draw_tile(rng):
    for hop in HOPS:
        cluster = ring(hop, 1e8 * int(rng.integers(95, 106)))
        yield Asked((cluster, workload()), f"{1e6 * hop:g} µs a message")


def _tile_wrong(question, got):
    best, (mode, rows) = question.answer, got
    if mode == "sequential":
        return TILE.say("nothing is hidden")
    if mode == "chunk" or (best[0] == "tile" and rows > best[1]):
        return TILE.say("smaller tiles are faster here")
    return TILE.say("larger tiles are faster here")


TILE = ChoiceQuestion(
    **told("t3_tile", choices=", ".join(map(repr, CHOICES))),
    kind="a mode with its tile",
    draw=_draw_tile,
    solution=lambda cluster, workload: times(cluster),
    wrong=_tile_wrong,
    measured=_ran,
)
