"""What torch and programs ask of a recorded group, they are answered as on the plain backend."""

from datetime import timedelta

import pytest
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
    from tpviz.runtime.backend import is_recorded

    group = dist.new_group()
    return [
        (str(dist.get_backend(g)), dist.get_backend(g) is dist.Backend.GLOO, is_recorded(g))
        for g in (None, group)
    ]


def test_get_backend_says_what_moves_the_bytes():
    assert tv.launch(_asked, world_size=2, device="cpu") == [[("gloo", True, True)] * 2] * 2
    plain = tv.launch(_asked, world_size=2, backend="gloo")
    assert plain == [[("gloo", True, False)] * 2] * 2
