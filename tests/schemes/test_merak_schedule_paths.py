"""Slack and the critical path of schedules on a clock."""

from itertools import pairwise
from random import Random

import pytest

from tpviz.core.schedules import SCHEDULES, schedule, timeline


def random_timeline(rng):
    """(schedule, its durations, its timeline), of whole numbers, so that there are ties."""
    p = rng.randint(2, 6)
    found = schedule(rng.choice(list(SCHEDULES)), p, 2 * p, recompute=rng.random() < 0.5)
    f, b = ([rng.randint(1, 9) for _ in range(found.stages)] for _ in range(2))
    more = {"latency": rng.choice((0, 0.5)), "overlapped": rng.random() < 0.5}
    return found, timeline(found, f, b, **more)


def fewest_messages(clock, rank, index):
    """On any way without gaps to an action from one that begins at 0 (pairs in turn)."""
    steps, begins = clock.schedule.step_of, clock.start[rank][index]
    found = [] if begins else [0]
    if index and clock.end[rank][index - 1] == begins:
        found.append(fewest_messages(clock, rank, index - 1))
    if steps[rank, index].needs >= 0:
        maker = clock.schedule.order[steps[rank, index].needs]
        crosses = maker.rank != rank
        if clock.end[maker.rank][maker.index] + clock.latency * crosses == begins:
            found.append(fewest_messages(clock, maker.rank, maker.index) + crosses)
    return min(found)


def test_the_critical_path_is_without_gap_and_without_slack():
    rng = Random(2)
    for _ in range(40):
        _, clock = random_timeline(rng)
        path = clock.critical_path()
        assert clock.overlapped or (
            len(clock.critical_messages()) == fewest_messages(clock, *path[-1])
        )
        (rank, index), (last, end) = path[0], path[-1]
        assert clock.start[rank][index] == 0 and clock.end[last][end] == clock.makespan
        for (rank, index), (other, after) in pairwise(path):
            crosses = rank != other
            assert clock.start[other][after] == clock.end[rank][index] + clock.latency * crosses
            assert crosses or after > index
        assert all(clock.slack[rank][index] == pytest.approx(0, abs=1e-9) for rank, index in path)
        assert clock.critical_messages() == [(a, b) for a, b in pairwise(path) if a[0] != b[0]]


def delayed(clock, rank, index, by):
    """The makespan if one action takes ``by`` longer, all others as they are."""
    found, ends = clock.schedule, {}
    pairs = found.pairs if clock.overlapped else ()
    for place, step in enumerate(found.order):
        r, i = step[:2]
        if (r, i - 1) in pairs:
            ends[r, i] = ends[r, i - 1]
            continue
        both = (step, found.order[place + 1]) if (r, i) in pairs else (step,)
        begins = max(
            [ends[r, i - 1] if i else 0.0]
            + [
                ends[found.order[x.needs][:2]] + clock.latency * x.is_message
                for x in both
                if x.needs >= 0
            ]
        )
        late = by if any(x[:2] == (rank, index) for x in both) else 0.0
        ends[r, i] = begins + clock.end[r][i] - clock.start[r][i] + late
    return max(ends.values())


def test_slack_is_what_an_action_can_be_late():
    rng = Random(3)
    for _ in range(40):
        found, clock = random_timeline(rng)
        for _ in range(5):
            rank = rng.randrange(found.ranks)
            index = rng.randrange(len(found.of(rank)))
            late = clock.slack[rank][index]
            assert late >= -1e-9
            assert delayed(clock, rank, index, late) == pytest.approx(clock.makespan)
            assert delayed(clock, rank, index, late + 2) == pytest.approx(clock.makespan + 2)


@pytest.mark.parametrize("name, rank", [("1f1b", 3), ("shifted_critical_path", 2)])
def test_the_critical_path_shifts(name, rank):
    """With recompute everywhere it is on the last rank; Merak's schedule shifts it to p-2."""
    clock = timeline(schedule(name, 4, 8))
    path = [r for r, _ in clock.critical_path()]
    assert set(path[rank:-rank]) == {rank} and path[: rank + 1] == list(range(rank + 1))
    assert len(clock.critical_messages()) == 2 * rank
    assert max(clock.slack[rank]) == 0
    assert (max(clock.slack[3]) > 0) == (name == "shifted_critical_path")
