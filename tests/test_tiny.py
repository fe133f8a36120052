"""The whole path in ten seconds: mesh, strategy, real run on four ranks, trace, picture."""

import pytest

import tpviz as tv
from tpviz.verbs.run import train_reference


def test_the_whole_path():
    workload = tv.GPT(layers=1, hidden=16, heads=4, seq=8, batch=4)
    strategy = tv.Megatron(tp=2) * tv.DataParallel(dp=2)
    assert tv.Mesh(axes=strategy.axes).groups("tp") == [[0, 1], [2, 3]]

    trace = tv.run(strategy, workload, steps=2, warmup=0)

    assert trace.ranks == [0, 1, 2, 3]
    assert trace.ledger() == strategy.ledger(workload)
    assert trace.meta["losses"] == pytest.approx(train_reference(workload, 2), abs=1e-5)
    picture = tv.Timeline(trace).to_svg()
    assert picture.startswith("<svg")
    # Names stand on bars only where they fit, so what is always drawn is asked for.
    for words in ("this machine, gloo", "rank 3", "communication tp", "communication dp"):
        assert words in picture
