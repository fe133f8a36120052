"""Rounds of workers that train apart equal the same in one process; exact bytes, time, memory."""

from dataclasses import replace

import pytest
import torch
from tiny import EXACT, TINY, assert_as_captured, assert_equal, named, peaks
from together import each

import tpviz as tv
from tpviz.schemes.gpt.program import batch_of, reference_program

W = replace(TINY, batch=16)
AVERAGED = tv.DiLoCo(workers=2, sync_every=1, outer_lr=1.0, outer_momentum=0.0)
CASES = [
    (tv.DiLoCo(workers=2, sync_every=3), replace(TINY, batch=12)),
    (AVERAGED, W),
    (tv.DiLoCo(workers=2, sync_every=2, outer_lr=0.5) * tv.Megatron(tp=2, sp=True), W),
    (tv.DataParallel(dp=2, zero=1, accumulation=2) * tv.DiLoCo(workers=2, sync_every=2), W),
    (tv.DiLoCo(workers=2, sync_every=2) * tv.DataParallel(dp=2, zero=3), W),
    (tv.DiLoCo(workers=2, sync_every=2) * tv.Context(cp=2), W),
    (tv.DiLoCo(workers=2, sync_every=2) * tv.AxoNN(x=1, y=1, z=2, data=1), W),
    (tv.Megatron(tp=2) * tv.DiLoCo(workers=2, sync_every=2) * tv.DataParallel(dp=2), W),
]


@pytest.mark.parametrize("strategy, w", CASES, ids=named)
def test_equals_one_process(strategy, w):
    """Workers one after another in float64; three rounds."""
    assert_equal(strategy, w, steps=3, among=CASES)


@pytest.mark.parametrize("strategy, w", CASES, ids=named)
def test_program_is_that_of_the_formulas(strategy, w):
    assert_as_captured(strategy, w)


def trained(strategy, w, steps):
    """On a rank: {parameter: value} after so many rounds."""
    program = strategy.build(w, tv.Mesh(strategy.axes).device_mesh(), torch.float64)
    for step in range(steps):
        program.step(batch_of(w, step))
        program.optimizer_step()
    return {name: p.detach().clone() for name, p in program.parameters().items()}


def averaged(w, workers, steps):
    """By hand: models that are set to their mean after each step of AdamW."""
    models = [reference_program(w, torch.float64) for _ in range(workers)]
    for step in range(steps):
        rows = zip(*(t.chunk(workers) for t in batch_of(w, step)))
        for model, (inputs, targets) in zip(models, rows):
            model.optimizer.zero_grad()
            model.module(inputs, targets).backward()
            model.optimizer.step()
        with torch.no_grad():
            for of_all in zip(*(model.module.parameters() for model in models)):
                mean = torch.stack([p.detach() for p in of_all]).mean(0)
                for p in of_all:
                    p.copy_(mean)
    return models[0].named


def test_every_step_with_an_outer_rate_of_one_averages_parameters():
    ((_, ranks),) = each(trained, [(AVERAGED, W, 3)], world_size=2).items()
    expected = averaged(W, workers=2, steps=3)
    for found in ranks:
        for name, value in expected.items():
            assert (found[name] - value).abs().max() < 1e-12 * value.abs().max(), name


def test_bytes_by_hand():
    """Once in a round the parameters that a rank updates; inside, each step as without."""
    w = replace(W, batch=32)
    size = w.num_parameters * 4
    for inner, share in ((tv.DataParallel(dp=2), 1), (tv.DataParallel(dp=2, zero=2), 2)):
        found = (tv.DiLoCo(workers=4, sync_every=4) * inner).ledger(w)
        assert found.total(axis="worker") == (1, size / share, size / share * 1.5)
        alone = inner.ledger(replace(w, batch=2))
        for row in alone:
            times = found.total(axis="dp", collective=row.collective, phase=row.phase)
            assert times == (4 * row.count, 4 * row.payload_bytes, 4 * row.wire_bytes)
    assert tv.DiLoCo(workers=1, sync_every=4).ledger(w).total() == (0, 0, 0)


def test_memory_is_tracked_to_the_byte():
    cases = [CASES[0], CASES[3], (tv.DiLoCo(workers=2, outer_momentum=0.0), W)]
    for strategy, w in cases:
        found, formula = peaks(strategy, w, cases, tries=1), strategy.memory(w)
        assert {k: found[k] for k in EXACT} == {k: formula[k] for k in EXACT}, strategy
    size = W.num_parameters * 4
    inner = tv.DataParallel(dp=1).memory(replace(W, batch=2))
    assert tv.DiLoCo(workers=2).memory(W)["optimizer"] - inner["optimizer"] == size
    assert cases[2][0].memory(W)["optimizer"] == inner["optimizer"]


def test_a_prediction_says_what_an_update_takes():
    box = tv.clusters.nvlink_pairs(4).scale_model(hidden=64)
    found = tv.predict(tv.DiLoCo(workers=2, sync_every=4), W, box)
    assert found.update_time == found.step_time / 4
    assert ["of 4 updates, each on average"] == [
        row[0] for row in found.to_table() if "4" in row[0]
    ]
    assert "It is a round of 4 updates, " in found.describe()
    plain = tv.predict(tv.DataParallel(dp=2), W, box)
    assert plain.update_time == plain.step_time and "round" not in plain.describe()


@pytest.mark.parametrize(
    "ask, message",
    [
        (
            lambda: tv.DiLoCo(workers=3).check(W),
            r"batch=16 does not split evenly over workers\*sync_every=12: use .* batch=12 or 24",
        ),
        (lambda: tv.DiLoCo(sync_every=0), "sync_every=0 is too small"),
        (lambda: tv.DiLoCo(outer_momentum=1.5), "outer_momentum=1.5"),
        (lambda: tv.DiLoCo() * tv.Pipeline(pp=2), "cannot combine"),
        (lambda: tv.DiLoCo(inner=tv.Merak()), "use factors of one stage, such as Megatron"),
        (
            lambda: tv.DiLoCo().check(replace(W, experts=4, top_k=2, moe_ffn=8)),
            r"use tv.GPT\(routing=tv.Routing\(\)\)",
        ),
    ],
)
def test_what_is_not_possible(ask, message):
    with pytest.raises(ValueError, match=message):
        ask()
