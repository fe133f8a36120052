"""AxoNN's overlaps really happen: read off the simulation of its program, whose times are exact,
and off real ranks on an emulated cluster whose collectives last several kernels.

The emulated times are in slow motion: milliseconds, which a busy host may overrun by some.
"""

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import pytest
from test_axonn import axonn
from tiny import TINY

import tpviz as tv
from tpviz.cluster import Cluster, Device, Level

SLOW = Cluster("slow", Device({"float32": 5e6}, 1e9, 2.5e7), (Level("all", 4, 5e4, 5e4, 8e-3),))
"""A GEMM of the tiny model takes 4 ms or more, a sum or a gather about 40 ms."""
GRIDS = [(2, 1, 2, 1), (1, 2, 2, 1)]
SMALL = replace(TINY, layers=1)
WAYS = ["simulated", "emulated"]
ALL = ("oar", "ors", "oag")


@lru_cache
def events(way, grid, overlap, keep=False):
    """Each rank's events of a step, by start; the order of gathers is known from the one before."""
    strategy = axonn(grid, overlap=overlap, keep=keep)
    if way == "simulated":
        trace = tv.simulate(strategy, SMALL, SLOW)
        ranks = [[e for e in trace if e.rank == rank] for rank in range(4)]
    else:
        found = tv.launch(_emulated, strategy, SMALL, world_size=4)
        if "oag" in overlap:
            assert [misses for _, misses in found] == [0] * 4
        ranks = [list(trace) for trace, _ in found]
    return [sorted(rank, key=lambda e: (e.start, e.id)) for rank in ranks]


def _emulated(strategy, workload):
    """(trace of a step, how many gathers of three steps no order had foreseen)."""
    import torch

    from tpviz.schemes.gpt.program import batch_of

    mesh = tv.Mesh(strategy.axes).device_mesh()
    program = strategy.build(workload, mesh, torch.float32)

    def train(step):
        program.step(batch_of(workload, step))
        program.optimizer_step()

    train(0)
    train(1)
    with tv.record(cluster=SLOW) as recorder, recorder.step():
        train(2)
    return recorder.trace, program.depth.misses


def kernels(rank, phase, layer=None):
    return [
        e for e in rank if e.kind == "compute" and e.phase == phase and layer in (None, e.layer)
    ]


def communication(rank, name, **where):
    return [
        e
        for e in rank
        if e.kind == "comm"
        and e.name == name
        and all(getattr(e, key) == value for key, value in where.items())
    ]


# -- (a) oar: the input's gradient is summed under the weight's gradient -------------------------
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("overlap", [ALL, ("oar",), ("ors", "oag"), ()], ids=str)
def test_weight_gradient_starts_before_the_sum_ends(way, grid, overlap):
    summed = ["blocks.0.attention.out", "blocks.0.mlp.down"]
    if grid[0] > 1:
        summed = ["blocks.0.attention.qkv", "blocks.0.mlp.up", "head"]
    for rank in events(way, grid, overlap):
        for layer in summed:
            (total,) = communication(rank, "all_reduce", phase="backward", layer=layer)
            of_input, of_weight = kernels(rank, "backward", layer)
            assert of_input.end <= total.end
            assert (of_weight.start < total.end) == ("oar" in overlap), (layer, total, of_weight)


# -- (b) ors: no scatter is waited for before backward is over ------------------------------------
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("overlap", [ALL, ("ors",), ("oar", "oag"), ()], ids=str)
def test_scatters_are_waited_for_after_backward(way, overlap):
    for rank in events(way, GRIDS[0], overlap):
        scatters = communication(rank, "reduce_scatter", axis="z")
        waits = [e for e in rank if e.name == "wait reduce_scatter"]
        assert len(scatters) == len(waits) == 6  # the four of a block, head, tokens
        last = kernels(rank, "backward")[-1]
        early = [e for e in waits if e.start < last.start]
        assert bool(early) == ("ors" not in overlap)
        assert scatters[0].start < last.start  # sent for long before


# -- (c) oag: the next weight is sent for before this one is used ----------------------------------
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("overlap", [ALL, ("oag",), ("oar", "ors"), ()], ids=str)
def test_the_next_gather_is_sent_before_this_gemm(way, overlap):
    ahead = "oag" in overlap
    for rank in events(way, GRIDS[0], overlap):
        gathers = communication(rank, "all_gather", axis="z_ahead" if ahead else "z")
        used = [(e.phase, e.layer) for e in gathers]
        block = [
            f"blocks.0.{name}" for name in ("attention.qkv", "attention.out", "mlp.up", "mlp.down")
        ]
        assert used == [("forward", layer) for layer in ("embed", *block, "head")] + [
            ("backward", layer) for layer in ("head", *reversed(block))
        ]
        for this, following in pairwise(gathers[1:]):
            gemm = kernels(rank, this.phase, this.layer)[0]
            assert this.end <= gemm.start
            assert (following.start <= gemm.start) == ahead, (this, following, gemm)
