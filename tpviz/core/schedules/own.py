"""Schedules that people write, as text where the name of one is expected.

>>> text = as_text("schedule", ["F0 F1 B0 B1", "F0 B0 F1 B1"])
>>> own(text, ranks=2, microbatches=2)
<Schedule own: 2 ranks, 2 stages, 2 microbatches>
>>> own(text, ranks=4, microbatches=2)
Traceback (most recent call last):
ValueError: your schedule has 2 ranks, not 4: write a line for each rank, or use 2 ranks
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from tpviz.core.checks import one_of

from .table import Schedule


def as_text(name: str, value: Any, known: Collection[str] = ()) -> str:
    """A schedule as text: a known name, or lines as `str` prints a `Schedule`.

    value : a name, a `Schedule`, or its lines, as one text or a list. Raises ``ValueError`` where
    it is none of these, with the word that cannot be read.
    """
    if isinstance(value, Schedule):
        return str(value)
    if isinstance(value, (list, tuple)) and all(isinstance(line, str) for line in value):
        value = "\n".join(value)
    if not isinstance(value, str) or value in known or not any(c.isspace() for c in value.strip()):
        one_of(name, value, tuple(known))
        return str(value)
    return str(read(value))


@lru_cache(maxsize=64)
def read(text: str) -> Schedule:
    """The `Schedule` of some lines, unchecked."""
    return Schedule.parse(text)


def own(
    text: str,
    ranks: int,
    microbatches: int,
    chunks: int | None = None,
    recompute: bool | Sequence[bool] = True,
) -> Schedule:
    """The `Schedule` of a text, which has these sizes and can run.

    recompute : as for `tpviz.core.schedules.schedule`: stages that do not recompute have B for RB,
    and no R. Raises ``ValueError`` with the numbers that clash, or all that is wrong with it.
    """
    made = read(text)
    for name, has, asked, write in (
        ("ranks", made.ranks, ranks, "a line for each rank"),
        ("microbatches", made.microbatches, microbatches, "a forward and a backward of each"),
    ):
        if has != asked:
            raise ValueError(
                f"your schedule has {has} {name}, not {asked}: write {write}, or use {has} {name}"
            )
    each = [len(made.stages_of(rank)) for rank in range(ranks)]
    if len({*each, *([] if chunks is None else [chunks])}) > 1:
        raise ValueError(
            f"your schedule has {', '.join(map(str, each))} stages on its ranks: each rank has "
            f"{chunks or 'as many'}"
        )
    made.order  # noqa: B018  (raises where it cannot run)
    return without(made, recompute)


def without(made: Schedule, recompute: bool | Sequence[bool]) -> Schedule:
    """The schedule without recomputation on the stages for which ``recompute`` is False."""
    asked = [recompute] * made.stages if isinstance(recompute, bool) else recompute
    rows, pairs = [], set()
    for rank, actions in enumerate(made.actions):
        row = []
        for index, action in enumerate(actions):
            if not asked[action.stage] and action.kind == "R":
                continue
            if (rank, index) in made.pairs:
                pairs.add((rank, len(row)))
            plain = action.kind == "RB" and not asked[action.stage]
            row.append(action._replace(kind="B") if plain else action)
        rows.append(tuple(row))
    does = tuple(does and wish for does, wish in zip(made.recomputes, asked))
    return replace(made, actions=tuple(rows), recomputes=does, pairs=frozenset(pairs))
