"""Ranks of clocks that began at other times, or run faster, compare them by ping-pong."""

import time

import pytest

import tpviz as tv

AHEAD, FAST = 1000.0, 1e-3


def _told():
    """A rank, of which 2 and 3 are on a clock that is ahead and fast: (offset, a trace, clocks)."""
    from types import SimpleNamespace

    import torch.distributed as dist

    from tpviz.ranks import hosts, offsets

    began, rank = time.perf_counter(), dist.get_rank()
    shared = [began]
    dist.broadcast_object_list(shared)
    away = rank > 1

    def clock():
        now = time.perf_counter()
        return now + away * (AHEAD + FAST * (now - shared[0]))

    offsets.time = SimpleNamespace(perf_counter=clock)
    hosts.host = offsets.host = lambda: ["b", "2e"] if away else ["a", "1f"]
    try:
        offsets.meet()
        offsets.begin()
        with tv.record() as rec, rec.step():
            time.sleep(0.3)
        offsets.compare()
        return offsets.offset(), rec.trace.fact("offsets"), shared[0]
    finally:
        import importlib

        importlib.reload(hosts)
        importlib.reload(offsets)


def test_a_clock_that_is_ahead_and_fast_is_found():
    ranks = tv.launch(_told, world_size=4)
    assert [offset for offset, *_ in ranks[:2]] == [{}, {}]
    assert ranks[2][0] == ranks[3][0]  # of one clock, compared once
    for rank in (2, 3):
        offset, recorded, began = ranks[rank]
        assert offset["to"] == "1f"
        first, last = offset["moments"]
        for moment in (first, last):
            shift = (moment["time"] - AHEAD - began) * FAST / (1 + FAST)
            assert moment["ahead"] == pytest.approx(AHEAD + shift, abs=moment["error"])
            assert 0 < moment["error"] < 0.02
        assert last["time"] - first["time"] > 0.3
        # what was recorded before the last moment knows it: its trace is sent after it
        assert recorded == {rank: offset}
