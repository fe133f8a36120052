"""Recomputation against memory in Merak's lab: both rules, the budget, times of the clock."""

from dataclasses import replace

import pytest

import tpviz as tv
from tpviz.core.mesh import Mesh
from tpviz.core.schedules import schedule, timeline
from tpviz.evidence import merak
from tpviz.evidence.merak.trading import RULES, Uniform
from tpviz.schemes.pipeline.step import clock

W = tv.GPT(layers=16, hidden=2048, heads=16, seq=2048, batch=8, vocab=256)
NODES = tv.clusters.perlmutter(1)
S = tv.Merak(pp=4, microbatches=8)


@pytest.fixture(scope="module", params=["shifted_critical_path", "1f1b"])
def found(request):
    return merak.tradeoff(W, NODES, replace(S, schedule=request.param))


@pytest.mark.parametrize(
    "p, m, k0, times",
    [
        (4, 8, 0.0, (380, 380, 440, 420)),
        (4, 8, 0.2, (370, 369, 418, 392)),
        (4, 8, 0.5, (355, 352.5, 385, 360)),
        (8, 32, 0.0, (1460, 1460, 1560, 1540)),
        (8, 32, 0.2, (1402, 1391.7, 1482, 1429.4)),
    ],
)
def test_both_rules_give_the_known_times(p, m, k0, times):
    """Equal stages, f = 10, b = 20, r = (1 - k) f: uniform and stage-aware, under two schedules."""
    times_found = []
    for name in ("shifted_critical_path", "1f1b"):
        for kind in (Uniform, tv.Merak):
            kept = kind(
                pp=p, microbatches=m, schedule=name, keep=k0, recompute="stage_aware"
            ).kept()
            times_found.append(
                timeline(schedule(name, p, m), 10, 20, [10 * (1 - k) for k in kept]).makespan
            )
    assert times_found == pytest.approx(times, abs=0.05)


def test_points_are_those_of_predict_and_memory(found):
    for p in found.points["stage-aware"]:
        s = replace(found.strategy, recompute="stage_aware", keep=p.keep)
        assert p.step == tv.predict(s, W, NODES).step_time and p.most == s.memory(W).total
        assert p.num_recomputed == tuple(s.num_recomputed(W))


def test_times_are_the_clocks_with_what_each_stage_drops(found):
    """A stage that drops d of L layers recomputes for d/L of what all of them take."""
    plain = replace(found.strategy, recompute="full")
    mesh = Mesh(plain.axes)
    line, pieces = clock(plain, W, NODES, mesh)

    def seconds(kind):
        return [sum(x.seconds for x in pieces[kind, stage]) for stage in range(4)]

    again = [x / 4 for x in seconds("R")]
    ends = tv.predict(plain, W, NODES).step_time - line.makespan
    for rule in RULES:
        for p in found.points[rule]:
            expected = timeline(
                schedule(plain.schedule, 4, 8),
                seconds("F"),
                seconds("B"),
                [d * r for d, r in zip(p.num_recomputed, again)],
                latency=line.latency,
            ).makespan
            assert p.step == pytest.approx(expected + ends, rel=1e-6)


def test_uniform_drops_as_many_layers_everywhere(found):
    last = found.strategy.schedule == "1f1b"
    for aware, even in zip(*(found.points[rule] for rule in RULES)):
        assert even.keep == aware.keep and even.num_recomputed[0] == aware.num_recomputed[0]
        assert even.num_recomputed == (*even.num_recomputed[:1] * 3, even.num_recomputed[0] * last)
        assert aware.num_recomputed[3] == 0 and all(
            a <= e for a, e in zip(aware.num_recomputed, even.num_recomputed)
        )
        assert aware.step <= even.step * (1 + 1e-9)
    steps = [p.step for p in found.points["stage-aware"]]
    assert steps == sorted(steps, reverse=True) and steps[0] > steps[-1]
    assert max(found.saving().values()) > (0.05 if last else 0.005)


def test_the_picked_k0_is_that_of_within():
    low, high = (replace(S, recompute=r).memory(W).total for r in ("full", "none"))
    budget = (low + 2 * high) // 3
    found = merak.tradeoff(W, NODES, S, budget)
    picked = found.picked["stage-aware"]
    assert picked.keep == S.within(W, budget).keep and 0 < picked.keep < 1
    assert picked.most <= budget and picked.step < found.points["stage-aware"][0].step
    assert f"allow k0 = {picked.keep:.3g}: " in found.describe()
    assert f"k0 = {picked.keep:.3g} fits" in repr(found) and "predicted" in repr(found)
    fits = {row[-1] for row in found.to_table()[1:]}
    assert fits == {"yes", "no"} and found.badges == ("predicted",)
    none = merak.tradeoff(W, NODES, S, low // 2)
    assert none.picked == dict.fromkeys(RULES) and "nothing fits" in repr(none)
    assert "are less than recomputing everything takes" in none.describe()
    assert merak.tradeoff(W, NODES, S).budget == NODES.device.memory


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((tv.Megatron(tp=2),), "third comes a strategy such as tv.Merak"),
        ((S, 0), "budget=0: give bytes"),
        ((S, True), "budget=True: give bytes"),
        ((S, float("nan")), "budget=nan"),
        ((tv.Merak(pp=32, microbatches=8),), "layers=16 are fewer"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        merak.tradeoff(W, NODES, *arguments)
