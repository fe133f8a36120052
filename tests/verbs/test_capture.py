"""The captured program is the program that runs: every row, every byte, on every rank."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.distributed as dist

import tpviz as tv
from tpviz.cluster.clock.program import place
from tpviz.evidence import peers
from tpviz.schemes.strategy import Strategy

W = tv.GPT()
COLUMNS = ("name", "phase", "layer", "flops", "bytes", "dtype", "axis", "members", "seq")
PROGRAMS = [
    tv.Megatron(tp=2),
    tv.Megatron(tp=4, sp=True),
    tv.Megatron(tp=2, chunks=2),
    *(tv.DataParallel(dp=2, zero=zero) for zero in range(4)),
    tv.Megatron(tp=2, sp=True) * tv.DataParallel(dp=2, zero=3),
    tv.ATP(mesh=(2, 2), order="row"),
    tv.AxoNN(x=1, y=2, z=2, keep=False),
    peers.DTensorTP(tp=2),
    peers.FSDP2(dp=2),
]


def in_order(trace, kind):
    rows = trace.select(kind=kind)
    return rows.where(np.argsort(rows["start"], kind="stable"))


@pytest.mark.parametrize("strategy", PROGRAMS, ids=repr)
def test_captured_rows_are_those_of_a_run(strategy):
    captured = tv.capture(strategy, W)
    measured = tv.run(strategy, W, steps=1, memory=False)
    for rank in range(strategy.world_size):
        for kind in ("compute", "comm"):
            ours, theirs = (
                in_order(captured.trace(rank), kind),
                in_order(measured.select(rank=rank), kind),
            )
            for column in COLUMNS:
                assert ours[column].tolist() == theirs[column].tolist(), (rank, kind, column)


@pytest.mark.parametrize(
    "strategy", [s for s in PROGRAMS if type(s).__module__ != "tpviz.evidence.peers"], ids=repr
)
def test_captured_ledger_is_the_formula(strategy):
    assert tv.capture(strategy, W).ledger() == strategy.ledger(W)


def test_thousands_of_ranks_need_few_captures():
    strategy = tv.Megatron(tp=8) * tv.DataParallel(dp=128)
    captured = tv.capture(strategy, tv.GPT(heads=8, batch=128))
    assert captured.world_size == 1024
    assert len(captured.traces) == 1
    groups = set(captured.trace(9).select(kind="comm")["members"].tolist())
    assert groups == {"8,9,10,11,12,13,14,15", "1..1017:8"}


def test_place_moves_a_group_along_the_axes_it_does_not_span():
    mesh = tv.Mesh({"dp": 2, "tp": 2})
    assert place(mesh, 0, 3, (0, 1)) == (2, 3)
    assert place(mesh, 0, 3, (0, 2)) == (1, 3)
    assert place(mesh, 0, 3, (0, 1, 2, 3)) == (0, 1, 2, 3)


@dataclass(frozen=True)
class Uneven(Strategy):
    """The last index of pp does one product more, and there the last of tp yet another."""

    @property
    def axes(self):
        return {"dp": 2, "pp": 2, "tp": 2}

    def check(self, workload):
        pass

    def build(self, workload, mesh, dtype=None, device="cpu", **options):
        class Some:
            def step(self, batch):
                pp, tp = mesh.get_local_rank("pp"), mesh.get_local_rank("tp")
                for _ in range(1 + pp + (pp and tp)):
                    torch.ones(4, 4) @ torch.ones(4, 4)

            def optimizer_step(self):
                pass

        return Some()


def test_ranks_that_differ_are_all_recorded():
    captured = tv.capture(Uneven(), W)
    products = [len(captured.trace(rank).select(kind="compute")) for rank in range(8)]
    assert products == [1, 1, 2, 3, 1, 1, 2, 3]


def test_nothing_is_left_behind():
    tv.capture(tv.Megatron(tp=2), W)
    assert not dist.is_initialized()


def test_a_program_that_reads_data_is_refused():
    with pytest.raises(ValueError, match="cannot be captured"):
        tv.capture(peers.DDP(dp=2), W)
    assert not dist.is_initialized()


def test_sizes_are_checked_first():
    with pytest.raises(ValueError, match="heads=4 does not split evenly over tp=8"):
        tv.capture(tv.Megatron(tp=8), W)


def test_a_pipeline_is_recorded_once_for_each_of_its_places():
    """Ranks of a stage do the same along dp and tp: that is said, and holds for every rank."""
    s, w = tv.Merak(pp=2, tp=2, dp=2, microbatches=4), tv.GPT(batch=16)
    found = tv.capture(s, w)
    assert sorted(found.traces) == [0, 4]
    every = tv.capture(type("Merak", (tv.Merak,), {"alike": False})(**vars(s)), w)
    assert sorted(every.traces) == [0, 4]  # found out by recording the ends of every axis
    assert all(found.ledger(r) == every.ledger(r) == s.ledger_of(w, r) for r in range(8))
