"""Schedules as data: Merak's orders, what exists for which sizes, reading what is printed."""

import doctest
import re
from importlib import import_module
from itertools import pairwise
from random import Random

import pytest

from tpviz.core.schedules import SCHEDULES, Action, Schedule, schedule, schedule_errors, validate
from tpviz.core.schedules.order import walk

SHIFTED = """\
s0: F0 F1 F2 F3 RB0 F4 RB1 F5 RB2 R3 B3 R4 B4 R5 B5
s1: F0 F1 F2 R0 B0 F3 RB1 F4 RB2 F5 RB3 R4 B4 R5 B5
s2: F0 F1 F2 R0 B0 R1 B1 F3 RB2 F4 RB3 F5 RB4 RB5
s3: F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5"""
WHOLE = """\
s0: F0 F1 F2 F3 RB0 F4 RB1 F5 RB2 RB3 RB4 RB5
s1: F0 F1 F2 RB0 F3 RB1 F4 RB2 F5 RB3 RB4 RB5
s2: F0 F1 RB0 F2 RB1 F3 RB2 F4 RB3 F5 RB4 RB5
s3: F0 RB0 F1 RB1 F2 RB2 F3 RB3 F4 RB4 F5 RB5"""
EARLY = """\
s0: F0 F1 F2 F3 RB0 F4 RB1 F5 RB2 R3 B3 R4 B4 R5 B5
s1: F0 F1 F2 RB0 F3 RB1 F4 RB2 F5 RB3 R4 B4 R5 B5
s2: F0 F1 RB0 F2 RB1 F3 RB2 F4 RB3 F5 RB4 R5 B5
s3: F0 RB0 F1 RB1 F2 RB2 F3 RB3 F4 RB4 F5 RB5"""
NOT_LAST = """\
s0: F0 F1 F2 F3 RB0 F4 RB1 F5 RB2 R3 B3 R4 B4 R5 B5
s1: F0 F1 F2 RB0 F3 RB1 F4 RB2 F5 RB3 R4 B4 R5 B5
s2: F0 F1 R0 B0 F2 RB1 F3 RB2 F4 RB3 F5 RB4 RB5
s3: F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5"""


@pytest.mark.parametrize(
    "module",
    [
        "",
        ".table",
        ".clock",
        ".formulas",
        ".interleaved",
        ".one_f_one_b",
        ".v_shaped",
        ".validity",
    ],
)
def test_examples_in_docstrings(module):
    done = doctest.testmod(import_module(f"tpviz.core.schedules{module}"))
    assert done.attempted and not done.failed


@pytest.mark.parametrize(
    "name, text",
    [
        ("1f1b", WHOLE),
        ("early_recompute", EARLY),
        ("last_no_recompute", NOT_LAST),
        ("shifted_critical_path", SHIFTED),
    ],
)
def test_merak_s_orders(name, text):
    assert str(schedule(name, 4, 6)) == text


def test_short_pipelines_of_the_shifted_schedule():
    two, three = (schedule("shifted_critical_path", p, 5) for p in (2, 3))
    assert str(two) == (
        "s0: F0 F1 F2 R0 B0 R1 B1 F3 RB2 F4 RB3 RB4\ns1: F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"
    )
    assert str(three).splitlines()[0] == "s0: F0 F1 F2 R0 B0 F3 RB1 F4 RB2 R3 B3 R4 B4"


def runs(schedule):
    """Whether the ranks finish, each waiting until what an action needs is done: another way to
    say what `schedule_errors` says, one action at a time from sets of what is done."""
    done, at, last = set(), [0] * schedule.ranks, {}
    every = [a for row in schedule.actions for a in row]
    for s in range(schedule.stages):
        for i in range(schedule.microbatches):
            kinds = sorted(a.kind for a in every if a[1:] == (s, i))
            again = schedule.recomputes[s]
            if kinds not in (
                [["B", "F", "R"], ["F", "RB"], ["F", "I", "R", "W"]]
                if again
                else [["B", "F"], ["F", "I", "W"]]
            ):
                return False
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(schedule.actions):
            for kind, s, i in row[at[rank] : at[rank] + 1]:
                if not (0 <= i < schedule.microbatches and schedule.rank_of[s] == rank):
                    return False
                need = {("F", s - 1, i)} if kind == "F" else {("F", s, i)}
                if kind in ("B", "RB", "I"):
                    need.add(("G", s + 1, i))
                if kind in ("B", "I") and schedule.recomputes[s]:
                    need.add(("R", s, i))
                if kind == "W":
                    need.add(("I", s, i))
                outside = {("F", -1, i), ("G", schedule.stages, i)}
                if not need - outside <= done:
                    continue
                sums = [("G", s)] * (kind in "RBI") + [("W", s)] * (kind in "RBW")
                for place in sums if kind != "R" else []:
                    if last.get(place, -1) > i:
                        return False
                    last[place] = i
                done |= {(kind, s, i)} | ({("G", s, i)} if kind in ("B", "RB", "I") else set())
                at[rank] += 1
                moved = True
    return all(place == len(row) for place, row in zip(at, schedule.actions))


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_runs_or_is_refused(name):
    """Ranks 2-8, microbatches 1-24; recompute on all, no, or some stages."""
    rng, made, refusals = Random(name), 0, []
    for p in range(2, 9):
        for m in range(1, 25):
            try:
                stages = schedule(name, p, m, recompute=False).stages
            except ValueError as error:
                refusals.append(re.search(rf"(not {m}:|; {m} are).* microbatches=\d", str(error)))
                continue
            some = tuple(rng.random() < 0.5 for _ in range(stages))
            found = schedule(name, p, m, recompute=rng.choice((True, False, some)))
            assert schedule_errors(found) == []
            made += 1
            if m <= 10:
                assert runs(found)
    assert all(refusals)
    assert made >= {"interleaved_1f1b": 38, "dualpipe_v": 60, "shifted_critical_path": 120}.get(
        name, 7 * 24
    )


def test_microbatches_that_are_offered_instead_work():
    shifted, looped = "shifted_critical_path", "interleaved_1f1b"
    for name, p, m, other in [
        (shifted, 2, 3, 4),
        (shifted, 8, 5, 8),
        ("dualpipe_v", 4, 7, 8),
        (looped, 4, 6, 8),
        (looped, 4, 3, 4),
    ]:
        with pytest.raises(ValueError, match=rf"{other}\b"):
            schedule(name, p, m)
        assert schedule_errors(schedule(name, p, other)) == []
    with pytest.raises(ValueError, match="last_no_recompute"):
        schedule("shifted_critical_path", 4, 3)
    with pytest.raises(ValueError, match="microbatches=4 or 8"):
        schedule("zb_h1", 4, 6, chunks=2)


def test_one_rank_alone():
    for name in SCHEDULES:
        assert validate(schedule(name, 1, 4))


@pytest.mark.parametrize("name", SCHEDULES)
def test_recompute_is_only_where_it_is_asked_for(name):
    stages = schedule(name, 3, 6).stages
    asked = tuple(s % 2 == 0 for s in range(stages))
    found = schedule(name, 3, 6, recompute=asked)
    never = name in ("last_no_recompute", "shifted_critical_path")
    assert found.recomputes == (*asked[:-1], asked[-1] and not never)
    does = {a.stage for row in found.actions for a in row if a.kind in ("R", "RB")}
    assert does == {s for s in range(stages) if found.recomputes[s]}
    plain = schedule(name, 3, 6, recompute=False)
    assert {a.kind for row in plain.actions for a in row} <= {"F", "B", "I", "W"}

    def order(schedule):
        return [
            [("B" if a.kind == "RB" else a.kind, *a[1:]) for a in row if a.kind != "R"]
            for row in schedule.actions
        ]

    assert order(found) == order(plain)
    for row in schedule(name, 3, 6).actions:
        for before, action in pairwise(row):
            if action.kind == "I":
                assert before == action._replace(kind="R")


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_is_printed_can_be_read(name):
    rng = Random(name)
    for _ in range(10):
        p = rng.randint(1, 5)
        m = p * rng.randint(2, 3) + (4 if p == 1 else 0)
        found = schedule(name, p, m, recompute=rng.random() < 0.5)
        assert Schedule.parse(str(found), name) == found
        assert [row[2] for row in found.to_table()[1:]] == [
            line.split(": ")[1] for line in str(found).splitlines()
        ]


def test_names_of_actions():
    looped = schedule("interleaved_1f1b", 2, 2, recompute=False)
    assert str(Action("RB", 2, 3)) == "2RB3"
    assert schedule("1f1b", 3, 3).word(Action("RB", 2, 3)) == "RB3"
    assert str(looped) == "r0: 0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1\nr1: 1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"
    assert looped.stages_of(1) == (1, 3)
    pairs = schedule("dualpipe_v", 2, 4)
    assert sorted(pairs.pairs) == [(0, 8), (0, 10), (0, 13), (1, 6), (1, 8), (1, 10)]
    assert [a.kind for a in pairs.of(0)[8:10]] == ["F", "RB"]
    assert pairs.words(0)[8] == "0F3+3RB1"
    assert repr(pairs) == "<Schedule dualpipe_v: 2 ranks, 4 stages, 4 microbatches>"


def test_steps_are_in_an_order_in_which_all_is_there():
    for name in SCHEDULES:
        steps, waits = walk(schedule(name, 4, 8))
        assert not waits and len(steps) == sum(map(len, schedule(name, 4, 8).actions))
        assert all(step.needs < place for place, step in enumerate(steps))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("2f2b", 4, 8), "schedule='2f2b' is not possible: use 'gpipe'"),
        (("1f1b", 0, 8), "ranks=0 is too small"),
        (("1f1b", 4, 2.5), "microbatches must be a whole number"),
        (("1f1b", 4, 8, 2), "1f1b: chunks=2 is too large: the most that works is 1"),
        (("interleaved_1f1b", 4, 8, 1), "chunks=1 is too small: the least that works is 2"),
        (("zb_v", 4, 8, 3), "zb_v: chunks=3 is too large"),
        (("1f1b", 4, 8, None, (True, False)), "one for each of the 4 stages"),
        (("1f1b", 4, 8, None, 1), "use True, False, or a tuple"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError) as error:
        schedule(*arguments)
    assert message in str(error.value)
