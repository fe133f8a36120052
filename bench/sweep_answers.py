"""Every answer of tests/course to every exercise, on forty seeds: right ones pass on all of
them, wrong ones fail on all.

    python bench/sweep_answers.py                    # all exercises
    python bench/sweep_answers.py mem_states 5 beat  # names that begin so, on five seeds

Numbers are asked in this process, which is cheap; programs of ranks run together, one launch for
all answers on a world. Plans with marks take minutes each and are not drawn: `test_capstone` has
them. Exits with 1 where an answer's verdict is wrong on any seed.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "course"))
import batches

from tpviz.course import Exercise, exercises
from tpviz.course.marks import PlanExercise

SEEDS = 40


def wrong_verdicts(task: Exercise, seeds: range) -> dict[str, list[int]]:
    """{answer, with what it should get: the seeds on which it gets the other verdict}."""
    right, wrong = batches.answers(task.name)
    tries = [(fn, seed) for seed in seeds for fn in (*right, *wrong)]
    found: dict[str, list[int]] = {}
    for (fn, seed), passed in zip(tries, batches.passed(task, tries)):
        if passed != (fn in right):
            should = "should pass" if fn in right else "should fail"
            found.setdefault(f"{named(fn)} {should}", []).append(seed)
    return found


def named(fn: Callable[..., Any]) -> str:
    """A function's name, with its module's."""
    return f"{fn.__module__}.{fn.__name__}"


def main() -> int:
    """Sweeps the exercises that were asked for."""
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    begins = tuple(word for word in sys.argv[1:] if not word.isdigit()) or ("",)
    seeds, bad, count = range(*numbers or [SEEDS]), 0, 0
    for task in exercises():
        if isinstance(task, PlanExercise) or not task.name.startswith(begins):
            continue
        found = wrong_verdicts(task, seeds)
        right, wrong = batches.answers(task.name)
        print(
            f"{task.name}: {len(right)} right, {len(wrong)} wrong, {len(seeds)} seeds", flush=True
        )
        for words, where in found.items():
            print(f"  {words} on seeds {', '.join(map(str, where))}", flush=True)
        bad, count = bad + len(found), count + (len(right) + len(wrong)) * len(seeds)
    print(f"{count} verdicts, {bad} answers with a wrong one")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
