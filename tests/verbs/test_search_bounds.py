"""What bounds exclude is never better than what is found: whole spaces, strategy by strategy."""

from contextlib import suppress
from dataclasses import replace

import pytest
from bounded import BOX, bounded

import tpviz as tv
from tpviz.verbs.room import check_states, least_needs, need
from tpviz.verbs.space import cells, space

W = tv.GPT(layers=4, hidden=32, heads=4, seq=16, batch=8, vocab=64)
LLAMA = replace(W, tied=False, gated=True, norm="rms", rotary=True, bias=False, kv_heads=4)
REAL = replace(
    BOX,
    algorithm="auto",
    queued=0.8,
    device=replace(
        BOX.device,
        gemm_efficiency=0.8,
        memory_efficiency=0.7,
        unhidden=0.4,
        startup=2e-6,
        launch=5e-6,
        check=2e-6,
        pointwise="fused",
        attention_efficiency=0.6,
    ),
    levels=tuple(replace(level, curve=((1e2, 0.2), (1e5, 0.9))) for level in BOX.levels),
)


@pytest.mark.parametrize("given", [None, tv.Context], ids=["usual", "context"])
@pytest.mark.parametrize("w, cluster", [(W, BOX), (LLAMA, REAL)], ids=["ideal", "real"])
def test_bounds_are_never_above_the_prediction(w, cluster, given):
    """Every seventh strategy of the space, both bounds and that of its cell."""
    every = lambda _, choices: choices[len(choices) % 7 :: 7]
    seen, near = bounded(w, cluster, given, every, share=0.5)
    assert seen > 150 and near > 0.8 * seen  # bounds that say something


@pytest.mark.parametrize("given, every", [(tv.Merak, 3), (tv.Context, 6)])
@pytest.mark.parametrize("w, cluster", [(W, BOX), (LLAMA, REAL)], ids=["ideal", "real"])
def test_bounds_of_groups_are_never_above_those_of_their_choices(w, cluster, given, every):
    """Of all that share ZeRO's stage and recomputation: seen on every strategy of some cells."""
    seen = near = 0
    for cell in list(cells(w, 4, given))[::every]:
        with suppress(ValueError):
            cell.strategy.check(w)
            bound = cell.strategy.bounds(w, cluster)
            assert sum(map(len, cell.groups.values())) in (0, len(cell.choices))
            for shared, group in cell.groups.items():
                steps = []
                for choice in group:
                    with suppress(ValueError):
                        steps.append(tv.predict(cell.made(choice), w, cluster).step_time)
                if steps:
                    least = bound(dict(shared))
                    assert 0 < least <= min(steps) * (1 + 1e-9), (cell.strategy.short, shared)
                    seen, near = seen + 1, near + (least > 0.5 * min(steps))
    assert seen > 20 and near > 0.5 * seen, (seen, near)


def test_memory_that_is_found_faster_is_never_above_the_whole():
    """In 16 bits, as a framework keeps it: of a strategy, and of the states of all in its group."""
    w, seen = replace(LLAMA, dtype="bfloat16", batch=8), 0
    for framework in ("Megatron-LM", "nanotron", "FSDP"):
        cluster = tv.clusters.as_run_by(tv.clusters.dgx("H100-SXM-80GB", 8), framework)
        tiny = replace(cluster, device=replace(cluster.device, memory=1e-3))
        for number, strategy in enumerate(space(w, 8, tv.Merak)):
            with suppress(ValueError):
                if number % 23 == 0:
                    strategy.check(w)
                    whole = need(strategy, w, cluster).total
                    assert max(least_needs(strategy, w, cluster)) <= whole, strategy.short
                    at = replace(tiny, device=replace(tiny.device, memory=whole))
                    check_states(strategy, w, at)
                    with pytest.raises(ValueError, match="or more for parameters"):
                        check_states(strategy, w, tiny)
                    seen += 1
    assert seen > 60, seen


def test_the_least_memory_is_never_above_the_whole():
    seen = 0
    for number, strategy in enumerate(space(W, 4)):
        if number % 5 == 0:
            with suppress(ValueError):
                strategy.check(W)
                assert strategy.least_memory(W).total <= strategy.memory(W).total, strategy.short
                seen += 1
    assert seen > 150


def test_nothing_excluded_is_faster_than_the_first():
    """The search, and the same space with every strategy predicted."""
    w = replace(W, batch=4)
    given = [tv.Megatron, tv.DataParallel, tv.Merak]
    found = tv.search(w, BOX, given, simulate=False, top=3, seconds=None)
    times = set()
    for strategy in space(w, 4, given):
        with suppress(ValueError):
            times.add(float(f"{tv.predict(strategy, w, BOX).step_time:.9e}"))
    first = sorted({float(f"{row.predicted:.9e}") for row in found.rows})[:8]
    assert found.formulas.excluded > 100 and first == sorted(times)[:8]
