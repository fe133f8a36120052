"""The scheme of docs/add-a-scheme.md, as it stands there, is one that every verb works on."""

import re
from dataclasses import replace
from functools import reduce
from operator import mul
from pathlib import Path
from types import ModuleType

import pytest

import tpviz as tv
from tpviz.schemes import strategy as strategies

PAGE = Path(__file__).parents[1] / "docs" / "add-a-scheme.md"


@pytest.fixture
def scheme(monkeypatch):
    """The page's code as a module that is not run as a script."""
    monkeypatch.setattr(strategies, "_REGISTERED", dict(strategies._REGISTERED))
    module = ModuleType("one_message")  # nobody can import it: ranks get its code by value
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S):
        exec(block, vars(module))
    return module


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_the_page_adds_a_scheme(scheme, replicas):
    strategy, workload = scheme.OneMessage(replicas=replicas), tv.GPT(batch=4, seq=16)
    scheme.checks(strategy, workload, tv.clusters.nvswitch(4))
    assert tv.strategies()["OneMessage"] is scheme.OneMessage


def test_its_memory_is_what_a_run_allocates(scheme):
    strategy, workload = scheme.OneMessage(replicas=2), tv.GPT(batch=4, seq=16)
    held = tv.run(strategy, workload, steps=1, progress=False).memory(0).peaks
    for kind, bytes in strategy.memory(workload).items():
        assert held[kind] == pytest.approx(bytes, rel=0.12), kind


def test_search_ranks_it_and_bad_sizes_are_refused(scheme):
    workload = tv.GPT(batch=4, seq=16)
    found = tv.search(workload, tv.clusters.nvswitch(4), ["OneMessage"], simulate=False)
    assert found.best == scheme.OneMessage(replicas=4)
    with pytest.raises(ValueError, match="batch=4 does not split evenly over replicas=3"):
        scheme.OneMessage(replicas=3).check(workload)


def test_a_part_of_each_sequence(scheme):
    own = tv.Custom({"cp": 2}, scheme.zigzag, chunks={"cp": scheme.ORDER})
    assert tv.verify(own, tv.GPT(batch=4, seq=16), steps=1, progress=False).ok


GPT = tv.GPT(layers=2, hidden=32, heads=4, seq=8, batch=8, vocab=64)
FACTORS = [
    (),
    (tv.Megatron(tp=2, sp=True),),
    (tv.ATP(mesh=(2, 2)),),
    (tv.T3(tp=2),),
    (tv.Pipeline(pp=2, microbatches=2, schedule="zb_h1"),),
    (tv.Megatron(tp=2), tv.Pipeline(pp=2, microbatches=2, schedule="gpipe", recompute="full")),
    (tv.Pipeline(pp=2, microbatches=2), tv.AxoNN(x=2, z=2)),
]


def of_half_bytes(scheme, factors):
    """Its product with others, whatever their order; and the same with whole bytes."""
    of = [scheme.HalfBytes(dp=2), *factors], [*factors, tv.DataParallel(dp=2)]
    return tuple(reduce(mul, factors) for factors in of)


@pytest.mark.parametrize("factors", FACTORS, ids=repr)
def test_its_axis_multiplies_with_all_others(scheme, factors):
    half, whole = of_half_bytes(scheme, factors)
    assert "HalfBytes(dp=2)" in half.short
    cluster, times = tv.clusters.nvswitch(half.world_size), []
    for one in (half, whole):
        program = tv.capture(one, GPT)
        assert program.ledger() == one.ledger_of(GPT, 0)
        predicted = tv.predict(one, GPT, cluster).step_time
        simulated = tv.simulate(one, GPT, cluster, capture=program).step_time
        times.append((predicted, simulated))
    (half_time, half_simulated), (whole_time, whole_simulated) = times
    assert half_time < whole_time and half_simulated < whole_simulated
    gap = simulated / predicted  # of axes that share links, which a formula does not know
    assert half_simulated / half_time == pytest.approx(gap, rel=0.01)
    sent = [
        sum(row.payload_bytes for row in one.ledger_of(GPT, 0).rows if row.axis == "dp")
        for one in (half, whole)
    ]
    assert 2 * sent[0] == sent[1] > 0


@pytest.mark.parametrize("factors", [FACTORS[1], FACTORS[5]], ids=repr)
def test_its_axis_runs(scheme, factors):
    found = tv.verify(of_half_bytes(scheme, factors)[0], GPT, steps=2, progress=False)
    assert found.ledger_diff == ()
    assert 1e-10 < found.max_error < 1e-5  # gradients are rounded to float32 on their way


def test_half_bytes_of_zero_or_of_half_are_refused(scheme):
    with pytest.raises(ValueError, match="zero=1 shards whole gradients"):
        scheme.HalfBytes(dp=2, zero=1).check(GPT)
    with pytest.raises(ValueError, match="dtype='bfloat16' is half already"):
        scheme.HalfBytes(dp=2).check(replace(GPT, dtype="bfloat16"))
