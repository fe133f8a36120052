"""Why a number is wrong: which mistake leads to all of the answers that were given.

A mistake is known by its numbers: an exercise lists typical ones, and `general` adds those that any
formula can have: it is right for other arguments (one more, exchanged, left out), or the answer is
the right one but for a factor or a term. Of several that explain the first wrong answer, the one
that agrees with most answers of the draw is told.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple

CLOSE = 1e-6  # relative: formulas differ only in the order of float operations


def same(got: Any, want: Any) -> bool:
    """Whether two answers are equal: numbers up to rounding, names and lengths exactly."""
    if isinstance(want, tuple) and isinstance(got, tuple):
        return len(got) == len(want) and all(map(same, got, want))
    if isinstance(want, tuple) or isinstance(got, tuple):
        return False
    if isinstance(want, str | None) or isinstance(got, str | None):
        return got == want
    return math.isclose(got, want, rel_tol=CLOSE)


class Cause(NamedTuple):
    """A mistake in ``words``, and the answer to which it leads: all of it, or the wrong part.

    whole: all parts of a given answer have to be those of this one. general: of any formula. sure:
    it explains all wrong answers of the draw.
    """

    words: str
    value: Any
    whole: bool = False
    general: bool = True
    sure: bool = True


@dataclass(frozen=True)
class Given:
    """An answer that was given to a question: its arguments, the right answer and this one; and the
    exercise's own mistakes."""

    arguments: Mapping[str, Any]
    want: Any
    got: Any
    listed: Mapping[int, Cause]

    def like(self, value: Any) -> bool:
        """Whether a value is a number or name, or a tuple as long as the right one."""
        if isinstance(self.want, tuple):
            return isinstance(value, tuple) and len(value) == len(self.want)
        return isinstance(value, (int, float, str))


def first_wrong(got: Any, want: Any) -> int | None:
    """The place of the first wrong part of a tuple; None for a number, or another length."""
    if not isinstance(want, tuple) or len(got) != len(want):
        return None
    return next((i for i, two in enumerate(zip(got, want)) if not same(*two)), None)


def likeliest(
    first: Given,
    draw: Sequence[Given],
    solution: Callable[..., Any] | None = None,
    seen: Mapping[str, Sequence[Any]] | None = None,
) -> Cause | None:
    """The cause that explains the ``first`` wrong answer, and most of the ``draw``; or None.

    solution: the right answer to arguments, for those that any formula can have. seen: {argument:
    its values in a draw}, of which names and switches are tried.
    """
    place = first_wrong(first.got, first.want)

    def causes(given):
        more = general(given, place, solution, seen or {}) if solution else ()
        return {**given.listed, **dict(more)}

    def fits(given, value):
        return given.like(value) or (place is not None and isinstance(value, (int, float)))

    def part(cause, value):
        whole = cause.whole or place is None or not isinstance(value, tuple)
        return value if whole else next(iter(value[place:]), None)

    def explains(given, cause):
        value = given.want  # where the mistake cannot be made
        if fits(given, cause.value):
            value = cause.value
        return same(part(cause, given.got), part(cause, value))

    def told(cause):
        if not fits(first, cause.value):
            return False
        differs = not same(part(cause, cause.value), part(cause, first.want))
        return differs and explains(first, cause)

    found = {key: cause for key, cause in causes(first).items() if told(cause)}
    others = [given for given in draw if given.like(given.got)] if found else []
    made = [(given, causes(given)) for given in others]

    def agrees(key):
        there = [(given, those[key]) for given, those in made if key in those]
        right = [explains(*each) for each in there]
        wrong = [each for each, (given, _) in zip(right, there) if not same(given.got, given.want)]
        listed, full = key in first.listed, same(first.got, found[key].value)
        entire = sum(same(given.got, cause.value) for given, cause in there)
        return listed and full, all(wrong), listed, sum(right), entire, full

    best = max(found, key=agrees, default=None)
    # Many that are tried, and names, which are few, fit by chance.
    if best is None:
        return None
    by_chance, sure = found[best].general or isinstance(found[best].value, str), agrees(best)[1]
    return found[best]._replace(sure=sure) if sure or not by_chance else None


# -- mistakes that any formula can have --------------------------------------------------------
def general(
    given: Given, place: int | None, solution: Callable[..., Any], seen: Mapping[str, Sequence[Any]]
) -> Iterator[tuple[Any, Cause]]:
    """(key, `Cause`) of each; see `likeliest`."""
    parts = given.want if isinstance(given.want, tuple) else ()
    want = given.want if place is None else next(iter(parts[place:]), None)
    yield from _of_order(given.want)
    if isinstance(want, (int, float)):
        yield from _of_form(want)
        yield from _of_factor(want, given.arguments)
    yield from _of_arguments(given.arguments, solution, seen)
    if isinstance(want, (int, float)):
        yield from _of_term(want, given.arguments)


def _of_order(want):
    if isinstance(want, tuple) and len(want) > 1:
        for one, other in combinations(range(len(want)), 2):
            turned = list(want)
            turned[one], turned[other] = turned[other], turned[one]
            words = f"numbers {one + 1} and {other + 1} of your answer are exchanged."
            yield ("exchanged", one, other), Cause(words, tuple(turned), True)
        yield "reversed", Cause("your answer is in the reverse order.", want[::-1], True)


def _of_form(want):
    yield "sign", Cause("the sign is wrong.", -want)
    if 0 < want < 1:  # a share
        yield "percent", Cause("that is in per cent: a share of 1 is asked for.", 100 * want)
        yield "rest", Cause("that is the rest: 1 minus the right answer.", 1 - want)
    if want and want != int(want):
        yield "inverse", Cause("that is the inverse: numerator and denominator.", 1 / want)
    if want != int(want):
        for how in (math.floor, math.ceil, round):
            words = "you rounded, but the answer is not whole: divide with `/`, and do not round."
            yield ("rounded", how.__name__), Cause(words, how(want))
    else:
        yield "more", Cause("that is one too many.", want + 1)
        yield "fewer", Cause("that is one too few.", want - 1)


def _numbers(arguments):
    """Arguments that are numbers, and no switches."""
    return {
        name: value
        for name, value in arguments.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value
    }


def _factors(arguments):
    """(in words, number) of factors that are often one too many or one too few."""
    for number in (2, 3, 4, 8, 16, 1e3, 1e6, 1e9, 1e12, 2**10, 2**20, 2**30):
        yield f"{number:g}", number
    for name, value in _numbers(arguments).items():
        yield f"`{name}`", value
        yield f"2 `{name}`", 2 * value
        yield f"`{name}`^2", value**2
        if value > 1 and value == int(value):
            yield f"`{name}` - 1", value - 1
            yield f"(`{name}` - 1) / `{name}`", (value - 1) / value
            yield f"2 (`{name}` - 1) / `{name}`", 2 * (value - 1) / value
            yield f"(`{name}` + 1) / `{name}`", (value + 1) / value
    for (one, a), (other, b) in combinations(_numbers(arguments).items(), 2):
        yield f"`{one}` `{other}`", a * b
        yield f"`{one}` / `{other}`", a / b


def _of_factor(want, arguments):
    for name, by in _factors(arguments):
        more = f"it is {name} times the right answer: where is this factor one too many?"
        fewer = f"it lacks a factor of {name}, or is divided by it once too often."
        yield ("times", name), Cause(more, want * by)
        yield ("over", name), Cause(fewer, want / by)


def _of_term(want, arguments):
    terms = dict(_numbers(arguments))
    terms |= {f"{a}` `{b}": x * y for (a, x), (b, y) in combinations(terms.items(), 2)}
    for name, size in terms.items():
        yield ("plus", name), Cause(f"`{name}` is in your answer once too often.", want + size)
        yield ("minus", name), Cause(f"`{name}` is missing once.", want - size)


def _of_arguments(arguments, solution, seen):
    for key, words, changed in _changes(arguments, seen):
        values = tuple((arguments | changed).values())
        answer = _answer if _hashable(values) else _answer.__wrapped__
        yield key, Cause(words, answer(solution, values), True)


@lru_cache(maxsize=4096)
def _answer(solution, values):
    """The right answer to other values, or None: simulated ones take a while."""
    try:
        return solution(*values)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None


def _hashable(values):
    try:
        hash(values)
    except TypeError:
        return False
    return True


def _changes(arguments, seen) -> Iterable[tuple[Any, str, dict[str, Any]]]:
    """(key, words, {argument: another value})."""
    for name, value in arguments.items():
        few = isinstance(value, int) and len(seen.get(name, ())) in (2, 3, 4)
        if isinstance(value, (str, bool)) or few:
            for other in seen.get(name, ()):
                if other != value:
                    words = f"that is the answer for {name}={other!r}; here it is {value!r}."
                    yield (name, other), words, {name: other}
    numbers = _numbers(arguments)
    for (one, a), (other, b) in combinations(numbers.items(), 2):
        if _usual(b, seen[one]) and _usual(a, seen[other]):
            yield (one, other), f"`{one}` and `{other}` are exchanged.", {one: b, other: a}
    for name, value in numbers.items():
        if isinstance(value, int):
            for change in (1, -1):
                words = f"that is the answer with `{name}` {change:+d} for `{name}`."
                yield (name, "by", change), words, {name: value + change}
            yield (name, "one"), f"`{name}` does not count in your answer.", {name: 1}
        yield (name, "twice"), f"that is the answer for twice `{name}`.", {name: 2 * value}
        half = value // 2 if value == value // 2 * 2 else value / 2
        yield (name, "half"), f"that is the answer for half of `{name}`.", {name: half}


def _usual(value, seen):
    """Whether a number is as large as those of a draw: a simulation of 10^9 ranks would not end."""
    return min(seen) / 2 <= value <= 2 * max(seen)
