"""Cells that run on every rank, as of kernels that others start: our verbs use that world, or say
why they cannot. The kernels are engines of ipyparallel, in worlds that cells made."""

import subprocess
import sys
from contextlib import contextmanager

import ipyparallel
import pytest

from tpviz.ranks import launch

JOIN = """
import os
import torch.distributed as dist
store = "file://{path}"
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
import tpviz as tv
gpt = tv.GPT(layers=1, hidden=16, heads=4, seq=8, batch=4, vocab=32)
"""

CHILDREN = "[child.pid for child in __import__('psutil').Process().children(recursive=True)]"


@pytest.fixture(scope="module")
def engines():
    """Two kernels, each of which has ``rank``."""
    with ipyparallel.Cluster(n=2, log_level=40) as client:
        view = client[:]
        view.block = True
        view.scatter("numbers", [0, 1])
        view.execute("[rank] = numbers", block=True)
        yield view


@pytest.fixture
def world(engines, tmp_path):
    """The kernels as the ranks of a world that a cell made, gloo's."""
    engines.execute(JOIN.format(path=tmp_path / "store"), block=True)
    yield engines
    engines.execute("dist.destroy_process_group()", block=True)


def seen(view, code):
    """What a cell's expression is on each rank."""
    view.execute(f"seen = {code}", block=True)
    return view.pull("seen", block=True)


@contextmanager
def fails(view, words):
    """A cell that fails on every rank, with these words."""
    with pytest.raises(ipyparallel.error.CompositeError) as caught:
        yield
    texts = [text for *_, text, _ in caught.value.elist] or [str(caught.value)]
    assert len(texts) == len(view) and all(words in text for text in texts), texts


def test_verbs_run_on_the_ranks_that_are_there(world):
    before, mine = seen(world, CHILDREN), seen(world, "os.getpid()")
    assert seen(world, "tv.launch(os.getpid)") == [mine] * 2
    assert seen(world, "bool(tv.verify(tv.Megatron(tp=2), gpt))") == [True, True]
    world.execute("plan = tv.DataParallel(dp=2); trace = tv.run(plan, gpt)", block=True)
    assert seen(world, "trace.ledger() == plan.ledger(gpt)") == [True, True]
    badge = "this machine, gloo; not recorded: gloo group of ranks 0,1"  # what the cell made
    assert seen(world, "trace.ranks, trace.badge") == [([0, 1], badge)] * 2
    assert seen(world, "tv.predict(plan, gpt, tv.clusters.laptop(2)).fits") == [True, True]
    world.execute("from tpviz.ranks.backend import is_recorded", block=True)
    assert seen(world, "tv.launch(is_recorded)") == [[True, True]] * 2
    assert seen(world, "tv.launch(is_recorded, backend='gloo')") == [[False, False]] * 2
    assert seen(world, "is_recorded(), dist.get_backend()") == [(False, "gloo")] * 2
    assert seen(world, CHILDREN) == before, "no process was started"


def test_what_a_cell_does_is_recorded_within_launch(world):
    world.execute(
        """
def work():
    import torch
    with tv.record() as rec, rec.step():
        dist.all_reduce(torch.ones(6))
    return rec.trace
""",
        block=True,
    )
    rows = "[(r.collective, r.count, r.payload_bytes) for r in trace.ledger()]"
    world.execute("trace = tv.Trace.merge(tv.launch(work))", block=True)
    [first, second] = seen(world, rows)
    assert first == second == [("all_reduce", 1, 24)]


def test_another_number_of_ranks_is_refused(world):
    with fails(world, "world_size=4, but this process is rank"):
        world.execute("tv.verify(tv.Megatron(tp=4), gpt)", block=True)
    with fails(world, "destroy_process_group() on all to use ranks of our own"):
        world.execute("tv.run(tv.Megatron(tp=4), gpt)", block=True)


def test_a_simulation_wants_a_process_of_its_own(world):
    with fails(world, "capture and simulate in a process of their own, not inside ranks"):
        world.execute("tv.simulate(tv.Megatron(tp=2), gpt, tv.clusters.laptop(2))", block=True)


def test_a_cell_on_one_rank_alone_does_not_wait_for_ever(world):
    one = world.client[[1]]
    with fails(one, "rank 1 of 2 has waited 2 s for ranks [0]: run the cell on every rank"):
        one.execute("tv.launch(dist.get_rank, timeout=2)", block=True)
    assert seen(world, "tv.launch(dist.get_rank)") == [[0, 1]] * 2, "and the next cell is as usual"


def test_a_rank_that_raises_says_so_and_others_do_not_wait_for_ever(world):
    code = """
def work():
    if dist.get_rank():
        raise KeyError("no such weight")
    dist.barrier()
try:
    said = tv.launch(work, timeout=3)
except Exception as error:
    said = f"{type(error).__name__}: {error}"
"""
    world.execute(code, block=True)
    first, second = world.pull("said", block=True)
    assert second == "RankError: rank 1 raised KeyError: 'no such weight'"
    assert first.startswith("RankError: rank 0 raised")


def test_without_a_world_a_kernel_starts_ranks_of_its_own(engines):
    one = engines.client[[0]]
    code = "import os, tpviz as tv; pids = tv.launch(os.getpid, world_size=2); tv.shutdown()"
    one.execute(code, block=True)
    [pids] = one.pull("pids", block=True)
    assert len(set(pids)) == 2 and not seen(one, "os.getpid() in pids")[0]


def test_a_fake_world_is_none(monkeypatch):
    """As of `tv.simulate` in another thread, and torch's own."""
    from tpviz.ranks.fake import fake_world

    with fake_world(0, 4):
        assert not launch.in_torchrun()
    code = """
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
import tpviz as tv
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
assert tv.launch(int, world_size=2) == [0, 0]
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
