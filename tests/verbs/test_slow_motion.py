"""Slow motion that is chosen by itself: for an event and a step, for strategies, by the labs."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as some

import tpviz as tv
from tpviz.evidence import atp, axonn, merak, peers, t3
from tpviz.verbs.slow_motion import (
    FAITHFUL,
    LONGEST_STEP,
    SHORTEST_STEP,
    auto_slow_motion,
    shortest,
)

TIMES = some.floats(1e-9, 10.0)


@given(TIMES, TIMES)
def test_slow_motion_serves_the_event_and_the_step_up_to_its_bound(event, step):
    event = min(event, step)
    found = auto_slow_motion("mm", event, step)
    assert found.factor >= 1
    assert found.factor == 1 or found.factor * step <= LONGEST_STEP * (1 + 1e-9)
    long_enough = found.factor * event >= FAITHFUL * (1 - 1e-9)
    assert long_enough == ("unfaithfully short" not in found.words)
    if found.factor * step < SHORTEST_STEP * (1 - 1e-6):
        assert found.factor * 1.1 * step > LONGEST_STEP  # two digits leave no finer choice


def test_slow_motion_says_what_decided():
    assert auto_slow_motion("mm", 1e-5, 3e-3) == (
        1000,
        ("1,000 x: mm, the shortest event that matters (10 µs at full speed), lasts 10 ms"),
    )
    assert "a step lasts 1.5 s" in auto_slow_motion("mm", 1e-3, 2e-3).words
    capped = auto_slow_motion("mm", 1e-6, 1.0)
    assert (capped.factor, "lasts only 4 µs" in capped.words) == (4, True)


def test_the_shortest_event_leaves_out_what_does_not_matter():
    """On links with long hops the kernels of a small model are next to nothing."""
    prediction = tv.predict(tv.Megatron(tp=4), tv.GPT(), tv.clusters.nvlink_pairs())
    name, seconds, step = shortest(prediction)
    assert name == "all_gather on tp"
    assert 3 * 10e-6 < seconds < 4 * 10e-6
    assert step == prediction.step_time
    assert min(s.compute for s in prediction.segments if s.compute) < seconds
    large = tv.clusters.nvlink_pairs().scale_model(hidden=64)
    assert "of blocks.0" in shortest(tv.predict(tv.Megatron(tp=4), tv.GPT(), large))[0]


def test_one_process_has_kernels_only():
    cluster = tv.clusters.nvlink_pairs()
    prediction = tv.predict(tv.Megatron(tp=1), tv.GPT(), cluster)
    assert 0 < shortest(prediction)[1] < prediction.step_time


# -- chosen by itself ------------------------------------------------------------------------------
W = tv.GPT(layers=2, hidden=32, heads=8, seq=8, batch=8, vocab=32)
BOX = tv.clusters.nvlink_pairs(pairs=2)
RUNS = {
    "study": lambda c: tv.study(
        [tv.ATP(mesh=(2, 2)), tv.Megatron(tp=4)], W, c, ("predicted", "measured")
    ),
    "chunk_curve": lambda c: atp.chunk_curve(W, c, counts=(1, 2), simulate=False, run=True),
    "winners": lambda c: atp.winners(W, {"box": c}, world_size=4, run=1),
    "overlaps": lambda c: axonn.overlaps(W, c, (2, 1, 2, 1), "alone", simulate=False, run=True),
    "validation": lambda c: axonn.validation(W, c, run=2),
    "schedules": lambda c: merak.schedules(W, c, ("1f1b", "gpipe"), pp=2, run=2),
    "halves": lambda c: merak.halves(W, c, tp=4, run=4),
    "modes": lambda c: t3.modes(W, c, run=3),
}
PLAIN = {
    "study": lambda c: tv.study(tv.Megatron(tp=4), W, c, "predicted"),
    "chunk_curve": lambda c: atp.chunk_curve(W, c, counts=(1, 2), simulate=False),
    "winners": lambda c: atp.winners(W, {"box": c}, world_size=4),
    "overlaps": lambda c: axonn.overlaps(W, c, (2, 1, 2, 1), "alone", simulate=False),
    "validation": lambda c: axonn.validation(W, c),
    "schedules": lambda c: merak.schedules(W, c, ("1f1b", "gpipe"), pp=2),
    "halves": lambda c: merak.halves(W, c, tp=4),
    "modes": lambda c: t3.modes(W, c),
}


def test_several_strategies_are_slowed_alike():
    """By what the one that needs most needs, if no step of another is much too long then."""
    both = tv.Megatron(tp=4), tv.Megatron(tp=2) * tv.DataParallel(dp=2)
    for hidden, capped in ((1, True), (64, False)):
        box = BOX.scale_model(hidden=hidden)
        slow = tv.in_slow_motion(both, W, box)
        each = [tv.in_slow_motion(one, W, box).slow_motion for one in both]
        found = [auto_slow_motion(*shortest(tv.predict(one, W, box))).factor for one in both]
        assert each == found and min(each) > 1
        steps = [tv.predict(one, W, slow).step_time for one in both]
        assert (slow.slow_motion < max(each)) is capped and max(steps) <= LONGEST_STEP
        assert slow.slow_motion == max(each) or 1.1 * max(steps) > LONGEST_STEP
        assert min(steps) >= SHORTEST_STEP or capped


def test_what_is_slow_or_unknown_stays_as_it_is():
    slow, no_formula = BOX.scale_model(slow_motion=3), peers.DTensorTP(tp=4)
    assert tv.in_slow_motion(tv.Megatron(tp=4), W, slow) is slow
    assert tv.in_slow_motion(no_formula, W, BOX) is BOX
    mixed = tv.in_slow_motion([no_formula, tv.Megatron(tp=4)], W, BOX)
    assert mixed == tv.in_slow_motion(tv.Megatron(tp=4), W, BOX)
    with pytest.raises(ValueError, match="ranks"):
        tv.in_slow_motion(tv.Megatron(tp=8), W, BOX)


@pytest.mark.parametrize("lab", RUNS)
def test_labs_run_in_faithful_slow_motion_unless_told_another(lab, monkeypatch):
    asked = []

    captured = cache(tv.capture)

    def on_the_virtual_clock(strategy, workload, cluster, **options):
        asked.append((strategy, cluster))
        return tv.simulate(strategy, workload, cluster, capture=captured(strategy, workload))

    monkeypatch.setattr("tpviz.verbs.run.run", on_the_virtual_clock)
    made = RUNS[lab](BOX)
    strategies, [cluster] = [s for s, _ in asked], {c for _, c in asked}
    assert cluster == tv.in_slow_motion(strategies, W, BOX) != BOX
    if hasattr(made, "cluster"):
        assert made.cluster == cluster and f"{cluster.slow_motion:g} x" in made.cluster.caption
    else:
        assert made.clusters == {"box": cluster}
        assert f"in {cluster.slow_motion:,g} x slow motion" in made.describe()
    asked.clear()
    RUNS[lab](BOX.scale_model(slow_motion=7))
    assert {c.slow_motion for _, c in asked} == {7}
    plain = PLAIN[lab](BOX)
    assert getattr(plain, "cluster", BOX) == BOX, "nothing is run: nothing is slowed"
