"""Schedules on a clock: Merak's makespans, closed forms, activations held."""

from random import Random

import pytest

from tpviz.core.schedules import SCHEDULES, Schedule, schedule, timeline
from tpviz.core.schedules.formulas import bubble, in_flight, makespan
from tpviz.core.schedules.order import needs

MERAK = ("1f1b", "early_recompute", "last_no_recompute", "shifted_critical_path")


@pytest.mark.parametrize(
    "p, m, plain, times",
    [
        (2, 8, 27, (36, 35, 33, 32)),
        (4, 4, 21, (28, 25, 23, 22)),
        (4, 6, 27, (36, 33, 31, 30)),
        (4, 8, 33, (44, 41, 39, 38)),
        (4, 16, 57, (76, 73, 71, 70)),
        (8, 8, 45, (60, 53, 51, 50)),
    ],
)
def test_makespans_of_merak_s_schedules(p, m, plain, times):
    assert timeline(schedule("1f1b", p, m, recompute=False)).makespan == plain
    assert tuple(timeline(schedule(name, p, m)).makespan for name in MERAK) == times
    assert tuple(makespan(name, p, m, recompute=1.0) for name in MERAK) == times


def test_where_the_shifted_schedule_is_idle():
    """The critical rank p-2 never waits between first and last action; rank p-1 is idle most."""
    found = timeline(schedule("shifted_critical_path", 4, 6))
    assert found.bubble_inside[2] == 0
    assert found.busy == (24, 24, 24, 18)
    assert found.bubble == (6, 6, 6, 12)
    assert found.start[3][:4] == (3, 4, 6, 7)


def test_each_extra_early_recompute_of_the_shifted_schedule_counts():
    """R and B taken together as RB: later by one, whichever of the three it is."""
    for p, m in ((4, 8), (6, 12)):
        found = schedule("shifted_critical_path", p, m)
        best = timeline(found).makespan
        for stage, microbatch in ((p - 2, 0), (p - 2, 1), (p - 3, 0)):
            early = f"R{microbatch} B{microbatch}"
            lines = str(found).splitlines()
            assert f" {early} " in lines[stage]
            lines[stage] = lines[stage].replace(f" {early} ", f" RB{microbatch} ")
            assert timeline(Schedule.parse("\n".join(lines))).makespan == best + 1


@pytest.mark.parametrize("p, held", [(4, (4, 3, 3, 1)), (8, (8, 7, 6, 5, 4, 3, 3, 1))])
def test_microbatches_in_flight(p, held):
    m = 2 * p
    assert timeline(schedule("shifted_critical_path", p, m)).peak_in_flight == held
    for name in MERAK[:3]:
        assert timeline(schedule(name, p, m)).peak_in_flight == tuple(range(p, 0, -1))
    assert timeline(schedule("gpipe", p, m)).peak_in_flight == (m,) * p


def random_sizes(rng):
    """(name, p, m, chunks, f, b, r, w), often with some of them equal."""
    name = rng.choice(list(SCHEDULES))
    p, m = rng.randint(1, 8), rng.randint(1, 24)
    chunks = rng.randint(2, 3) if name in ("zb_h1", "interleaved_1f1b") else None
    f, r, i, w = (rng.randint(1, 8) / 2 for _ in range(4))
    kind = rng.randrange(6)
    r = (r, f, 0.0, min(r, f), 0.0, 0.0)[kind]
    i = (i, f, f, r + f, f, i)[kind]
    w = (w, f, f, w, min(w, f), w)[kind]
    return name, p, m if chunks is None else p * max(1, m // p), chunks, f, i + w, r, w


def test_closed_forms_are_exact_in_their_range():
    """1,000 random sizes in range; what is outside is left to the clock."""
    rng, inside, names = Random(0), 0, set()
    while inside < 1000:
        name, p, m, chunks, f, b, r, w = random_sizes(rng)
        overlapped = rng.random() < 0.5
        sizes = p, m, f, b, r, w, chunks, overlapped
        expected = makespan(name, *sizes)
        if (
            expected is None
            or (name == "shifted_critical_path" and 1 < p and m < max(p, 4))
            or (name == "dualpipe_v" and m < 2 * p)
        ):
            continue
        found = timeline(schedule(name, p, m, chunks, r > 0), f, b, r, w, overlapped=overlapped)
        assert found.makespan == pytest.approx(expected, rel=1e-12), (name, sizes)
        assert found.bubble == pytest.approx(bubble(name, *sizes), abs=1e-9)
        assert found.peak_in_flight == in_flight(name, p, m, chunks), (name, sizes)
        assert found.peak_in_flight == tuple(map(found.schedule.most_in_flight, range(p)))
        inside += 1
        names.add((name, r > 0))
    assert {name for name, _ in names} == set(SCHEDULES)
    assert {(name, True) for name in MERAK} <= names


@pytest.mark.parametrize(
    "name, sizes",
    [
        ("last_no_recompute", (4, 2)),
        ("early_recompute", (4, 8, 1, 2, 3)),
        ("shifted_critical_path", (4, 8, 2, 2.5, 1)),
        ("shifted_critical_path", (4, 8, 3, 2, 3)),
        ("zb_h1", (4, 3)),
        ("zb_h1", (4, 8, 1, 4, 0, 3)),
        ("zb_v", (4, 8, 1, 3, 0, 1)),
        ("zb_v", (4, 6)),
        ("dualpipe_v", (4, 8, 1, 4, 0, 2)),
        ("zb_h1", (4, 8, 1, 2, 1)),
        ("zb_h1", (4, 8, 3, 3, 0, 2)),
        ("dualpipe_v", (4, 8, 1, 4, 0, 3)),
    ],
)
def test_outside_its_range_a_formula_says_nothing(name, sizes):
    assert makespan(name, *sizes) is None
    assert bubble(name, *sizes) is None


def test_formulas_of_schedules_that_do_not_exist():
    for formula in (makespan, bubble, in_flight):
        with pytest.raises(ValueError, match="schedule='2f2b' is not possible: use 'gpipe'"):
            formula("2f2b", 4, 8)


def kept(p, k0, shifted):
    """Merak's rule: the share of a stage's layers that is not recomputed, by stage."""
    shares = [min(1.0, k0 * (p - 1) / (p - 1 - s)) for s in range(p - 1)] + [1.0]
    if shifted:
        shares[p - 2] = shares[p - 3]
    return shares


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
def test_what_stage_aware_recomputation_buys(p, m, k0, times):
    """f = 10, b = 20, recompute of (1 - k) f: the same k on all stages, and the rule's."""
    found = []
    for name in ("shifted_critical_path", "1f1b"):
        for shares in ([k0] * p, kept(p, k0, name == "shifted_critical_path")):
            again = [10 * (1 - k) for k in shares]
            found.append(timeline(schedule(name, p, m), 10, 20, again).makespan)
    assert found == pytest.approx(times, abs=0.05)


def test_a_stage_that_keeps_everything_needs_no_recompute():
    shares = kept(4, 0.5, True)
    again = [10 * (1 - k) for k in shares]
    asked = tuple(k < 1 for k in shares)
    whole = timeline(schedule("shifted_critical_path", 4, 8), 10, 20, again)
    assert (
        timeline(schedule("shifted_critical_path", 4, 8, recompute=asked), 10, 20, again).makespan
        == whole.makespan
        == pytest.approx(352.5)
    )


def ticking(found, lasts, latency):
    """Starts of all actions by a clock that ticks: another way to the timeline, for whole times."""
    at, free, starts = [0] * found.ranks, [0] * found.ranks, [[] for _ in range(found.ranks)]
    ready, now = {}, 0
    while any(place < len(row) for place, row in zip(at, found.actions)):
        for _ in range(5):  # actions that take no time
            for rank, row in enumerate(found.actions):
                if at[rank] == len(row) or free[rank] > now:
                    continue
                action = row[at[rank]]
                needed = needs(action, found.stages)
                if needed:
                    made, sender = ready.get(needed, (float("inf"), rank))
                    if made + latency * (sender != rank) > now:
                        continue
                starts[rank].append(now)
                free[rank] = now + lasts(action)
                what = {"F": "activation", "B": "gradient", "RB": "gradient", "I": "gradient"}
                ready[what.get(action.kind), action.stage, action.microbatch] = free[rank], rank
                at[rank] += 1
        now += 1
    return tuple(map(tuple, starts))


def test_starts_are_those_of_a_ticking_clock():
    rng = Random(1)
    for _ in range(60):
        p = rng.randint(1, 5)
        found = schedule(rng.choice(list(SCHEDULES)), p, 4 * p, recompute=rng.random() < 0.5)
        f, r, i, w = ([rng.randint(1, 6) for _ in range(found.stages)] for _ in range(4))
        latency = rng.randint(0, 4)

        def lasts(action, f=f, r=r, i=i, w=w):
            s = action.stage
            return {
                "F": f[s],
                "B": i[s] + w[s],
                "RB": r[s] + i[s] + w[s],
                "R": r[s],
                "I": i[s],
                "W": w[s],
            }[action.kind]

        b = [x + y for x, y in zip(i, w)]
        clock = timeline(found, f, b, r, w, latency)
        assert clock.start == ticking(found, lasts, latency)
        for starts, ends, row in zip(clock.start, clock.end, found.actions):
            assert list(ends) == [start + lasts(action) for start, action in zip(starts, row)]


def test_messages_within_a_rank_take_no_time():
    line = Schedule.parse("0F0 1F0 1B0 0B0")
    two = Schedule.parse("F0 B0 \n F0 B0")
    assert timeline(line, latency=5).makespan == 6
    assert timeline(two, latency=5).makespan == 16


def test_activations_held_are_checkpoints_until_they_are_recomputed():
    found = timeline(schedule("1f1b", 2, 2))
    assert found.held(0) == [(0, 0, 1), (1, 0, 2), (5, 1, 1), (8, 0, 1), (9, 1, 0), (12, 0, 0)]
    assert found.in_flight(0) == [(0, 1), (1, 2), (5, 2), (8, 1), (9, 1), (12, 0)]
    plain = timeline(schedule("1f1b", 2, 2, recompute=False))
    assert plain.held(0) == [(0, 1, 0), (1, 2, 0), (6, 1, 0), (9, 0, 0)]
    split = timeline(schedule("zb_h1", 1, 1, recompute=False))
    assert split.held(0) == [(0, 1, 0), (3, 0, 0)]
    early = timeline(schedule("shifted_critical_path", 4, 6))
    assert [max(full for _, full, _ in early.held(rank)) for rank in range(4)] == [1, 1, 1, 1]


def test_words_and_tables():
    found = timeline(schedule("shifted_critical_path", 4, 8))
    assert repr(found) == (
        "<Timeline of <Schedule shifted_critical_path: 4 ranks, 4 stages, "
        "8 microbatches>: simulated, 38>"
    )
    assert found.to_table()[0] == ["rank", "busy", "bubble", "bubble inside", "in flight"]
    assert found.to_table()[3] == ["2", "32", "6", "0", "3"]
    text = found.describe()
    assert text.startswith(
        "Simulated: shifted_critical_path on 4 ranks with 8 microbatches takes "
        "38. Ranks are idle 21.1 % of it, from 6 on rank 0 to 14 on rank 3. Most "
        "activations, 4 microbatches, are held on rank 0."
    )
    assert "ends with B7 on rank 0." in text


@pytest.mark.parametrize(
    "durations, message",
    [
        ({"forward": -1}, "forward=-1 is not between 0"),
        ({"forward": [1, 2]}, "forward has 2 numbers"),
        ({"backward": 1, "weight": 2}, "weight=2.0 is more than backward=1.0 of stage 0"),
        ({"latency": float("nan")}, "latency must be a number"),
        ({"recompute": ["a"] * 4}, "recompute must be a number"),
    ],
)
def test_durations_that_cannot_be(durations, message):
    with pytest.raises(ValueError) as error:
        timeline(schedule("1f1b", 4, 4), **durations)
    assert message in str(error.value)


def test_a_schedule_that_hangs_has_no_timeline():
    with pytest.raises(ValueError, match="deadlock: rank 0 at B0"):
        timeline(Schedule.parse("F0 B0 F1 B1 \n F0 F1 B0 B1"))
