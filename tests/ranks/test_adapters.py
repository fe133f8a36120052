"""What torch and programs ask of a recorded group, they are answered as on the plain backend."""

import os
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import tpviz as tv


def _late():
    """Rank 1 does not come; what rank 0 is told."""
    if dist.get_rank():
        return ""
    try:
        dist.monitored_barrier(timeout=timedelta(seconds=1))
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("backend", ["gloo", "tpviz"])
def test_monitored_barrier_names_the_rank_that_does_not_come(backend):
    assert (
        "Rank 1 failed to pass monitoredBarrier"
        in tv.launch(_late, world_size=2, backend=backend)[0]
    )


def _asked():
    from tpviz.ranks.backend import is_recorded

    group = dist.new_group()
    return [
        (str(dist.get_backend(g)), dist.get_backend(g) is dist.Backend.GLOO, is_recorded(g))
        for g in (None, group)
    ]


def test_get_backend_says_what_moves_the_bytes():
    assert tv.launch(_asked, world_size=2, device="cpu") == [[("gloo", True, True)] * 2] * 2
    plain = tv.launch(_asked, world_size=2, backend="gloo")
    assert plain == [[("gloo", True, False)] * 2] * 2


def _policies():
    """The policies of this thread, and of those of two groups."""
    dist.new_group()
    of_gloo = {
        os.sched_getscheduler(int(thread.name))
        for thread in Path("/proc/self/task").iterdir()
        if "gloo" in (thread / "comm").read_text()
    }
    return os.sched_getscheduler(0), of_gloo


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux has this policy")
@pytest.mark.parametrize("backend", ["gloo", "tpviz"])
def test_threads_of_gloo_take_no_core_from_others(backend):
    for own, of_gloo in tv.launch(_policies, world_size=2, backend=backend, device="cpu"):
        assert own == os.SCHED_OTHER and of_gloo == {os.SCHED_BATCH}


def _replica(bucket_mb):
    """One step of DDP: its all-reduces, those waited for, whether that is after all computation."""
    from torch.nn.parallel import DistributedDataParallel

    from tpviz.ranks.recorder import record

    layers = [torch.nn.Linear(300, 300) for _ in range(4)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=bucket_mb)
    model(torch.ones(2, 300)).sum().backward()  # DDP makes its buckets anew after the first
    with record() as recorder:
        model(torch.ones(2, 300)).sum().backward()
    trace = recorder.trace
    reduced = [e.id for e in trace if e.name == "all_reduce"]
    waits = [e for e in trace if e.kind == "wait" and e.waits_for in reduced]
    last = max(e.start for e in trace if e.kind == "compute")
    return reduced, [e.waits_for for e in waits], min(e.end for e in waits) >= last


def test_ddp_waits_once_for_each_bucket_at_the_end_of_backward():
    for bucket_mb, several in ((100, False), (0.4, True)):
        for reduced, waited, after in tv.launch(_replica, bucket_mb, world_size=2, device="cpu"):
            assert (len(reduced) > 1) == several and waited == reduced and after
