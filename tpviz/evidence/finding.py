"""What an experiment on a paper's headline says: the rows of `tpviz.claims` are made of these."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

Ends = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""{name of an unknown: {its value in words: arguments of an experiment}}."""
_heard: ContextVar[Callable[[str], object]] = ContextVar("heard", default=lambda words: None)


@contextmanager
def told_to(hear: Callable[[str], object]) -> Iterator[None]:
    """While inside, ``hear(words)`` is called before each figure that `vary` asks for."""
    before = _heard.set(hear)
    try:
        yield
    finally:
        _heard.reset(before)


class Unknown(NamedTuple):
    """What the public text leaves open. ends : ((its value in words, the figure there), ...)."""

    name: str
    ends: tuple[tuple[str, float], ...]


class Finding(NamedTuple):
    """A figure of ours, in the unit of the claim, and how it came about.

    badge : its source, as of a figure. setting : the experiment in words. unknowns : those that
    move the figure most, by our experiments. fitted : whether a number of the experiment was fitted
    to the claim, so that to meet it is no evidence.
    """

    figure: float
    badge: str
    setting: str
    unknowns: tuple[Unknown, ...] = ()
    fitted: bool = False


def vary(figure: Callable[..., float], ends: Ends) -> tuple[Unknown, ...]:
    """An `Unknown` for each of ``ends``, by ``figure`` of their arguments.

    >>> vary(lambda x: 2.0 * x, {"size": {"one": {"x": 1}, "three": {"x": 3}}})
    (Unknown(name='size', ends=(('one', 2.0), ('three', 6.0))),)
    """

    def at(name, words, given):
        _heard.get()(f"{name}: {words}")
        return words, figure(**given)

    return tuple(
        Unknown(name, tuple(at(name, words, given) for words, given in each.items()))
        for name, each in ends.items()
    )
