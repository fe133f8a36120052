"""The clock runs AxoNN's like microbatches once: the same step as if it ran them all."""

from random import Random

import pytest

import tpviz as tv
from tpviz.cluster import Cluster, Device, Level
from tpviz.cluster.clock.fast import Clock
from tpviz.cluster.clock.queues import Ahead
from tpviz.schemes.axonn.step import num_local_parameters

W = tv.GPT(layers=2, hidden=32, heads=8, seq=8, batch=256, vocab=32)


def random_case(rng):
    """(strategy, cluster) of rates far apart, so that anything may be what hides the rest."""
    rates = [10 ** rng.uniform(5, 9) for _ in range(4)]
    hops = [10 ** rng.uniform(-6, -2) for _ in range(2)]
    strategy = tv.AxoNN(
        **{axis: rng.choice((1, 2, 4)) for axis in ("x", "y", "z", "data")},
        overlap=tuple(name for name in ("oar", "ors", "oag") if rng.random() < 0.7),
        keep=rng.random() < 0.5,
        recompute=rng.random() < 0.5,
        accumulation=rng.choice((4, 8, 16)),
    )
    return strategy, Cluster(
        "made",
        Device({"float32": rates[0]}, 1e12, rates[1]),
        (
            Level("in", 4, rates[2] / 9, None, hops[0]),
            Level("out", 64, rates[3] / 9, None, hops[1]),
        ),
    )


def test_microbatches_that_are_not_run_again_take_what_they_would(monkeypatch):
    passes, run = [], Clock.run
    monkeypatch.setattr(Clock, "run", lambda self, step: passes.append(1) or run(self, step))
    rng, asked = Random(0), 0
    for _ in range(40):
        strategy, cluster = random_case(rng)
        asked += strategy.accumulation + 1
        short = strategy.cost(W, cluster)
        with monkeypatch.context() as patch:
            patch.setattr(Ahead, "recurs", lambda *_: False)
            count = len(passes)
            full = strategy.cost(W, cluster)
            del passes[count:]
        assert [s[:2] for s in short] == [s[:2] for s in full]
        total = sum(s.seconds for s in full)
        assert sum(s.seconds for s in short) == pytest.approx(total, rel=1e-11)
        for a, b in zip(short, full):
            for one, other in ((a.exposed, b.exposed), (a.hidden, b.hidden)):
                for axis in one.keys() | other.keys():
                    close = pytest.approx(other.get(axis, 0.0), abs=1e-11 * total)
                    assert one.get(axis, 0.0) == close
    assert len(passes) < asked / 2, "most microbatches are not run again"


def test_one_block_says_what_all_hold():
    """`num_local_parameters`, from one block, against every parameter of the model."""
    w = tv.GPT(layers=3, hidden=32, heads=8, seq=8, batch=256, vocab=64, tied=False)
    for x, y, z in ((2, 1, 1), (1, 2, 4), (2, 4, 2), (1, 1, 1)):
        strategy = tv.AxoNN(x=x, y=y, z=z)
        shapes, splits = w.parameter_shapes(), strategy.splits(w)
        sizes = {"x": x, "y": y}
        total = {True: 0, False: 0}
        for name, (first, *rest) in shapes.items():
            count = first * (rest[0] if rest else 1)
            for _, axis in splits.get(name, ()):
                count //= sizes[axis]
            total[name in strategy.blocks(w)] += count
        assert num_local_parameters(strategy, w) == (total[True] // z, total[False])
