"""Scaling of AxoNN's lab: the choice is that of brute force, bounds hold, theirs is theirs."""

from dataclasses import replace
from random import Random

import pytest

import tpviz as tv
from tpviz.evidence import axonn
from tpviz.evidence.axonn import scaled
from tpviz.evidence.axonn.choosing import (
    cheapest,
    fewest,
    least_step,
    microbatches,
    needs,
    predicted,
)
from tpviz.evidence.axonn.claims import RUNS, runs_of
from tpviz.schemes.axonn.models import paper_models, utilisation
from tpviz.schemes.axonn.paper import fitting, ranking
from tpviz.schemes.axonn.rates import of_cluster

SMALL = replace(paper_models(32)["5B"], layers=3)


@pytest.fixture(scope="module")
def found():
    return axonn.scaling("10B", "perlmutter", (2, 16, 64), batch=64)


def short(grid, w, cluster, memory):
    """(all grids, those that fit with their fewest microbatches), by trying all numbers."""
    grids = [replace(s, recompute=True) for s in fitting(tv.AxoNN.space(w, grid), w)]
    fit = []
    for s in grids:
        cuts = (
            replace(s, accumulation=n)
            for n in range(1, w.batch + 1)
            if w.batch % (n * s.data * s.z) == 0
        )
        fit += [c for c in cuts if c.memory(w).total <= memory][:1]
    return grids, fit


# -- the choice ------------------------------------------------------------------------------------
def test_the_choice_is_that_of_brute_force(monkeypatch):
    """Memory is short: of all grids, of all microbatches, every one predicted in full."""
    cluster = tv.clusters.perlmutter(4)
    tight = replace(cluster, device=replace(cluster.device, memory=3e9))
    monkeypatch.setattr(scaled, "paper_models", lambda batch: {"5B": replace(SMALL, batch=batch)})
    asked = []
    monkeypatch.setattr(scaled, "predicted", lambda *a: asked.append(1) or predicted(*a))
    [point] = axonn.scaling("5B", lambda n: tight, (16,), batch=32).points
    w = SMALL
    grids, fit = short(16, w, tight, 3e9)
    assert (point.grids, point.fit) == (len(grids), len(fit)) and 0 < len(fit) < len(grids)
    assert len({s.accumulation for s in fit}) > 2
    best, seconds = ranking(fit, w, of_cluster(tight, 16))[0]
    assert point.first.strategy == best and point.first.communication == pytest.approx(seconds)
    steps = {s: tv.predict(s, w, tight).step_time for s in fit}
    least = min(steps, key=steps.get)
    assert point.fastest.strategy == least
    assert point.fastest.step == pytest.approx(steps[least], rel=1e-9)
    assert point.first.step == pytest.approx(steps[best], rel=1e-9)
    assert point.fastest.step < point.first.step, "else one would do"
    assert len(asked) < len(fit) / 2, "few are predicted"


def test_cheapest_is_the_least_by_the_last_stage():
    rng = Random(1)
    for _ in range(200):
        costs = [
            (a := rng.random(), b := a + rng.random(), b + rng.random())
            for _ in range(rng.randint(1, 12))
        ]
        place, asked = _asked(costs)
        least = min(c[2] for c in costs)
        assert costs[place][2] == least
        assert asked[0] == len(costs) >= asked[1] >= asked[2]
        assert asked[2] <= sum(c[1] <= least for c in costs)


def _asked(costs):
    """(the cheapest, how often each stage was asked)."""
    asked = [0, 0, 0]

    def stage(k):
        def cost(n):
            asked[k] += 1
            return costs[n][k], n

        return cost

    return cheapest(range(len(costs)), *map(stage, range(3))), asked


@pytest.mark.parametrize("preset", [tv.clusters.perlmutter, tv.clusters.frontier])
def test_no_step_takes_less_than_the_bound(preset):
    w, cluster, rng = SMALL, preset(4), Random(2)
    rates, tight = of_cluster(cluster, 16), []
    for s in rng.sample(list(fitting(tv.AxoNN.space(w, 16), w)), 20):
        s = replace(
            s,
            recompute=True,
            keep=rng.random() < 0.5,
            accumulation=rng.choice(microbatches(s, w)),
            overlap=rng.choice([("oar", "ors", "oag"), (), ("oag",)]),
        )
        step = tv.predict(s, w, cluster).step_time
        bound = least_step(s, w, rates, cluster.device.flops[w.dtype])
        assert bound <= step
        tight.append(bound / step)
    assert max(tight) > 0.8, "a bound near the truth"


def test_many_microbatches_take_as_long_as_if_all_were_predicted():
    w, cluster = replace(SMALL, batch=128), tv.clusters.perlmutter(4)
    for grid, overlap in (
        ((2, 1, 4, 2), ("oar", "ors", "oag")),
        ((1, 2, 8, 1), ("ors",)),
        ((4, 4, 1, 1), ("oag",)),
        ((1, 1, 16, 1), ("oar", "ors", "oag")),
    ):
        for count in (2, 8):
            s = tv.AxoNN(*grid, overlap=overlap, recompute=True, accumulation=count)
            p = tv.predict(s, w, cluster)
            assert predicted(s, w, cluster) == pytest.approx(
                (p.step_time, sum(p.exposed.values())), rel=1e-9
            )


def test_microbatches_are_as_few_as_memory_allows():
    grid = tv.AxoNN(x=2, y=1, z=4, data=2, recompute=True)
    counts = microbatches(grid, SMALL)
    assert counts == [1, 2, 4]
    sizes = [replace(grid, accumulation=n).memory(SMALL).total for n in counts]
    assert min(needs(grid, SMALL)) == min(sizes)
    for n, size in zip(counts, sizes):
        assert (
            fewest(grid, SMALL, size).accumulation
            == next(c for c, s in zip(counts, sizes) if s <= size)
            <= n
        )


# -- the numbers -----------------------------------------------------------------------------------
def test_numbers_of_a_point(found):
    w, point = paper_models(64)["10B"], found.at(64)
    best, cluster = point.fastest, tv.clusters.perlmutter(16)
    p = tv.predict(best.strategy, w, cluster)
    assert best.strategy.recompute == "full" and best.step == pytest.approx(p.step_time, rel=1e-9)
    assert best.exposed == pytest.approx(sum(p.exposed.values()), rel=1e-9)
    assert best.used == utilisation(w, best.step, 64, 312e12) and best.used.hfu > best.used.mfu
    assert best.communication == pytest.approx(best.strategy.communication(w, cluster))
    assert best.step <= point.first.step and point.first.communication <= best.communication


def test_what_does_not_fit_is_named(found):
    [left] = [p for p in found.points if not p.first]
    assert (
        left.devices == 2
        and left.fit == 0 < left.grids
        and [p.devices for p in found.possible] == [16, 64]
    )
    assert "Left out: 2 (a rank needs" in found.describe() and "has 40 GB" in left.reason
    assert found.to_table()[1][:2] == ["2", f"0 of {left.grids}"]


def test_theirs_is_theirs():
    """57 % of 1024 A100s is the abstract's own; the arithmetic of our references' percentages."""
    by = {(r.cluster, r.model, r.devices): r for r in RUNS}
    assert by["Perlmutter", "80B", 1024].fraction == pytest.approx(0.57, abs=5e-4)
    assert by["Perlmutter", None, 4096].fraction == pytest.approx(0.485, abs=5e-4)
    assert by["Frontier", None, 32768].fraction == pytest.approx(0.220, abs=5e-4)
    per_device = {r.devices: r.flops / r.devices for r in RUNS if r.cluster == "Frontier"}
    for devices, efficiency in ((8192, 0.883), (16384, 0.7902), (32768, 0.535)):
        assert per_device[devices] / per_device[512] == pytest.approx(efficiency, abs=3e-3)
    assert [r.sure for r in runs_of("Perlmutter", "80B")] == [True, False]
    assert {r.model for r in runs_of("Frontier", "40B")} == {"40B", None}
    assert (
        not by["Frontier", "40B", 4096].sure
        and "not confirmed" in by["Frontier", "40B", 4096].words
    )


def test_words(found):
    words = found.describe()
    assert words.startswith("Predicted: 10B on Perlmutter.") and found.badges == ("predicted",)
    assert "The paper, not reproduced: a model that the abstract does not name on 4096" in words
    assert "moments in bfloat16" in words and "peak, 312 TFLOP/s" in words
    assert repr(found).endswith("predicted>") and "HFU" in found._repr_html_()
    assert found.at(64).fastest.words in found.to_table()[3]


def test_other_machines_and_knobs():
    made = axonn.scaling("5B", tv.clusters.nvswitch, (8,), batch=32, overlap=(), order="yxz")
    s = made.at(8).fastest.strategy
    assert (s.overlap, s.order, s.recompute) == ((), "yxz", "full") and made.peak == 989e12
    own = tv.clusters.torus(4, 4)
    assert axonn.scaling("5B", lambda n: own, (16,), batch=32).peak == own.device.flops["bfloat16"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"model": "81B"}, "model='81B' is not possible: use '5B', "),
        ({"cluster": "alps"}, "cluster='alps' is not possible: use 'perlmutter' or 'frontier'"),
        (
            {"cluster": tv.clusters.perlmutter(2)},
            "has 8 devices, and .* give a function from a number",
        ),
        (
            {"cluster": lambda n: "perlmutter"},
            "for 8 devices the function gave 'perlmutter', not a cl",
        ),
        (
            {"cluster": lambda n: tv.clusters.perlmutter(2), "devices": (8, 16)},
            "for 16 devices the function gave .*, which has 8: as in lambda n: ",
        ),
        ({"devices": 8}, "devices=8: give numbers of devices in a list"),
        ({"devices": ()}, "no devices"),
        ({"devices": (1,)}, "devices=1 is too small"),
        ({"batch": 0}, "batch=0 is too small"),
        ({"x": 2}, "x=2 cannot be set here"),
        ({"recompute": False}, "recompute=False cannot be set here"),
        ({"devices": (8,)}, "80B fits none of these: 8 devices, a rank needs .* and has 40 GB"),
        ({"devices": (7,)}, "80B fits none of these: 7 devices, "),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        axonn.scaling(**arguments)


def test_an_unknown_size_is_refused(found):
    with pytest.raises(ValueError, match="devices=32 is not possible: use 2, 16 or 64"):
        found.at(32)
