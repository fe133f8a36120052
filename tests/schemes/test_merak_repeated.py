"""Capturing Merak: repeating the record of the second microbatch records what doing all does."""

from contextlib import nullcontext

import pytest

import tpviz as tv
from tpviz.core.schedules import SCHEDULES
from tpviz.schemes.pipeline.stage import Runner

W = tv.GPT(layers=4, batch=8)
CASES = [
    *({"schedule": name, "recompute": ("full", "none")[k % 2]} for k, name in enumerate(SCHEDULES)),
    {"recompute": "stage_aware", "keep": 0.5},
    {"schedule": "1f1b", "recompute": "none", "tp": 2, "subpipeline": 1},
    {"schedule": "zb_h1", "tp": 2, "subpipeline": 2},
    {"schedule": "1f1b", "tp": 2, "subpipeline": 3, "skip_last_allreduce": False},
]


def both(strategy, monkeypatch):
    """[the capture, with every microbatch done]."""
    found = tv.capture(strategy, W)
    with monkeypatch.context() as patch:
        patch.setattr("tpviz.verbs.capture.repeating", nullcontext)
        return found, tv.capture(strategy, W)


@pytest.mark.parametrize("knobs", CASES, ids=lambda knobs: "-".join(map(str, knobs.values())))
def test_repeating_a_microbatch_is_doing_it(knobs, monkeypatch):
    found, whole = both(tv.Merak(**{"pp": 2, "microbatches": 4} | knobs), monkeypatch)
    assert found.traces.keys() == whole.traces.keys()
    for rank, trace in whole.traces.items():
        mine = found.traces[rank]
        assert list(mine) == list(trace)  # stamps, seq, waits and layers are part of it
        assert _step(mine, rank) == _step(trace, rank)


def _step(trace, rank):
    """What is allocated while the step lasts; tensors there before are counted in any order."""
    (start,) = trace.select(kind="step")["start"].tolist()
    series = trace.meta["memory"][rank]
    return [row for row in zip(*series.values()) if row[0] > start]


def test_later_microbatches_are_not_done(monkeypatch):
    done, plain = [], Runner.forward
    monkeypatch.setattr(
        Runner,
        "forward",
        lambda self, microbatch, *args: (done.append(microbatch), plain(self, microbatch, *args))[
            1
        ],
    )
    capture = tv.capture(tv.Merak(pp=2, microbatches=8, schedule="1f1b"), W)
    assert set(done) == {0, 1} and len(done) == 2 * (1 + 2)  # before it is recorded, once
    assert set(capture.trace(0)["microbatch"].tolist()) == {-1, *range(8)}
