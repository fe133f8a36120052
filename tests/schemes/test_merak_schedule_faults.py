"""Schedules that people write: what cannot be read, what cannot run, and that nothing else is
refused."""

from random import Random

import pytest
from test_merak_schedules import runs

from tpviz.core.schedules import SCHEDULES, Action, Schedule, schedule, schedule_errors, validate


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "empty schedule"),
        ("s0: F0 X0\ns1: F0 B0", "line 1: 'X0' is no action: use F0"),
        ("s0: F0 B0\ns1: F0 BR0", "line 2: 'BR0'"),
        ("s0: F0 B\ns1: F0 B0", "'B' is no action"),
        ("s0: F0 B0\ns2: F0 B0", "line 2 begins with 's2:', but it is that of rank 1"),
        ("r0: 0F0 B0", "name it before all"),
        ("r0: 0F0 2F0 2B0 0B0", "stage 1 is on no line, but stage 2 is: number the stages 0 to 1"),
        ("s0: F0+B0+B1", "no action"),
    ],
)
def test_what_cannot_be_read(text, message):
    with pytest.raises(ValueError) as error:
        Schedule.parse(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "text, more, expected",
    [
        ("F0 F1 B0 \n F0 B0 F1 B1", {}, ["stage 0 has no backward of microbatch 1: add B1"]),
        ("F0 B0 B1 \n F0 B0 F1 B1", {}, ["stage 0 has no forward of microbatch 1: add F1"]),
        ("F0 F0 B0 \n F0 B0", {}, ["stage 0 does F0 2 times: once is enough"]),
        (
            "F0 RB0 \n F0 B0",
            {"recomputes": (False, False)},
            ["stage 0 keeps its activations, so there is nothing to recompute: use B0 for RB0"],
        ),
        (
            "F0 R0 B0 \n F0 B0",
            {"recomputes": (False, False)},
            ["stage 0 keeps its activations, so there is nothing to recompute: leave R0 out"],
        ),
        (
            "F0 F1 RB0 B1 \n F0 B0 F1 B1",
            {},
            [
                "stage 0 keeps only checkpoints, so B1 has nothing to go backward through: "
                "put R1 before "
                "it, or use RB1"
            ],
        ),
        (
            "F0 F1 RB0 I1 W1 \n F0 B0 F1 B1",
            {},
            [
                "stage 0 keeps only checkpoints, so I1 has nothing to go backward through: "
                "put R1 before "
                "it"
            ],
        ),
        (
            "F0 R0 RB0 \n F0 B0",
            {},
            ["stage 0 recomputes microbatch 0 twice: use R0 and B0, or RB0 alone"],
        ),
        (
            "F0 B0 \n F0 I0",
            {},
            ["stage 1 does I0 and never W0: its weights get no gradient of microbatch 0"],
        ),
        ("F0 B0 \n F0 B0 W0", {}, ["stage 1 does W0 without I0: B0 is whole, leave W0 out"]),
        (
            "F0 B0 I0 W0 \n F0 B0",
            {},
            ["stage 0 runs backward more than once for microbatch 0: keep one of B0, I0"],
        ),
        ("F0 B0 \n B0 F0", {}, ["stage 1 does B0 before F0, which it needs"]),
        ("F0 B0 R0 \n F0 B0", {}, ["stage 0 does B0 before R0, which it needs"]),
        ("R0 F0 B0 \n F0 B0", {}, ["stage 0 does R0 before F0, which it needs"]),
        ("F0 B0 \n F0 W0 I0", {}, ["stage 1 does W0 before I0, which it needs"]),
        (
            "F0 F1 B1 B0 \n F0 F1 B1 B0",
            {},
            [
                "stage 0 runs backward in the order 1, 0: gradients are added in the order 0 to 1",
                "stage 1 runs backward in the order 1, 0: gradients are added in the order 0 to 1",
            ],
        ),
        (
            "F0 F1 I0 I1 W1 W0 \n F0 B0 F1 B1",
            {},
            ["stage 0 adds gradients in the order 1, 0: gradients are added in the order 0 to 1"],
        ),
        (
            "F0 B0 F1 B1 \n F0 F1 B0 B1",
            {},
            [
                "deadlock: rank 0 at B0 waits for the gradient of microbatch 0 "
                "from stage 1 on rank 1; "
                "rank 1 at F1 waits for the activation of microbatch 1 from stage 0 on rank 0"
            ],
        ),
        (
            "F0 F1 B0 B1 \n F0 B0 F1 B1 \n F0 F1 B0 B1",
            {},
            [
                "deadlock: rank 1 at B0 waits for the gradient of microbatch 0 "
                "from stage 2 on rank 2; "
                "rank 2 at F1 waits for the activation of microbatch 1 from stage 1 on rank 1"
            ],
        ),
        (
            "1F0 0F0 1B0 0B0",
            {},
            [
                "deadlock: rank 0 at 1F0 waits for the activation of microbatch 0 "
                "from stage 0 on rank 0"
            ],
        ),
        (
            "0F0 1F0 1B0 0B0 \n 1F0",
            {"rank_of": (0, 0)},
            ["rank 1: 1F0 is of stage 1, which is on rank 0"],
        ),
        (
            "F0 B0 F1 \n F0 B0",
            {"microbatches": 1},
            ["rank 0: F1 has no microbatch: there are 0 to 0"],
        ),
        ("0F0 2F0 0B0", {"rank_of": (0,)}, ["rank 0: 2F0 has no stage: there are 0 to 0"]),
        (
            "F0+F1 B0 B1 \n F0 B0 F1 B1",
            {},
            ["rank 0: only a forward and the backward after it can be a pair, not F0+F1"],
        ),
        (
            "F0 F1+B0 B1 \n F0 F1+B0 B1",
            {},
            [
                "deadlock: rank 0 at F1 waits for the gradient of microbatch 0 "
                "from stage 1 on rank 1; "
                "rank 1 at F1 waits for the activation of microbatch 1 from stage 0 on rank 0"
            ],
        ),
    ],
)
def test_faults_in_words(text, more, expected):
    wrong = Schedule.parse(text, **more)
    found = schedule_errors(wrong)
    assert found == expected
    with pytest.raises(ValueError, match="cannot run") as error:
        validate(wrong)
    assert expected[0] in str(error.value)


def test_kinds_that_do_not_exist():
    assert (
        "no known kind: use F, B, RB, R, I, W"
        in schedule_errors(Schedule("x", 1, 1, 1, (0,), ((Action("Z", 0, 0),),), (False,)))[0]
    )


def broken(found, rng):
    """The schedule with one thing changed: swapped, dropped, doubled, moved or of another kind."""
    rows = [list(row) for row in found.actions]
    row = rng.choice(rows)
    a, b = rng.randrange(len(row)), rng.randrange(len(row))
    how = rng.randrange(5)
    if how == 0:
        row[a], row[b] = row[b], row[a]
    elif how == 1:
        row.pop(a)
    elif how == 2:
        row.insert(b, row[a])
    elif how == 3:
        row.insert(b, row.pop(a))
    else:
        row[a] = row[a]._replace(kind=rng.choice(("F", "B", "RB", "R", "I", "W")))
    return Schedule(
        found.name,
        found.ranks,
        found.stages,
        found.microbatches,
        found.rank_of,
        tuple(map(tuple, rows)),
        found.recomputes,
    )


def test_a_broken_schedule_is_found_out_unless_it_still_runs():
    rng, seen = Random(0), set()
    for _ in range(1500):
        p = rng.randint(2, 4)
        found = schedule(rng.choice(list(SCHEDULES)), p, 2 * p, recompute=rng.random() < 0.5)
        wrong = broken(found, rng)
        still = runs(wrong)
        assert (schedule_errors(wrong) == []) == still, f"{schedule_errors(wrong)}\n{wrong}"
        seen.add(still)
    assert seen == {True, False}
