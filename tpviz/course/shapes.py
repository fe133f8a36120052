"""Why a result of ranks has another shape: parts that are not joined, or joined otherwise."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import permutations, product
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .variants import Terms


def joined_otherwise(got: Sequence[Any], want: Sequence[Any], terms: "Terms | None" = None) -> str:
    """What would turn the results of all ranks into the right ones, as a sentence; or nothing."""
    for words, made in _ways(len(want), terms):
        if all(_is(made, *both, rank) for rank, both in enumerate(zip(got, want))):
            return f" {words[0].upper()}{words[1:]}."
    return ""


def _is(made, got, want, rank):
    try:
        found = made(got, want, rank)
        return np.shape(found) == want.shape and np.allclose(found, want, rtol=1e-5, atol=1e-5)
    except (ValueError, IndexError, TypeError):  # dims that are not there, or do not divide
        return False


def _ways(n: int, terms: Any) -> Iterator[tuple[str, Callable[[Any, Any, int], Any]]]:
    """(words, (result, right one, rank) -> what it is without this mistake)."""
    yield "the result is transposed", lambda x, want, rank: x.T
    yield (
        "the ranks' terms are side by side, along a new dim: add them along it",
        lambda x, want, rank: x.sum(0) if x.ndim > want.ndim else None,
    )
    for dim in range(2):
        yield (
            f"the ranks' terms are joined along dim {dim}, not added",
            lambda x, want, rank, dim=dim: sum(np.split(x, n, dim)),
        )
        yield (
            "the parts are stacked along a new dim: join them with `torch.cat`",
            lambda x, want, rank, dim=dim: (
                np.concatenate([*x], dim) if x.ndim > want.ndim else None
            ),
        )
        yield (
            f"along dim {dim} it has the right numbers {n} times",
            lambda x, want, rank, dim=dim: _alike(np.split(x, n, dim)),
        )
    for (one, other), count in product(permutations(range(2)), range(2, 9)):
        words = f"the parts are joined along dim {one}, but they are parts of dim {other}"
        cut = partial(np.split, indices_or_sections=count, axis=one)
        yield words, lambda x, want, rank, cut=cut, other=other: np.concatenate(cut(x), other)
    for dim, count in product(range(2), range(2, 9)):
        words = f"it has the numbers of all ranks along dim {dim}: a rank returns its own part"
        cut = partial(np.split, indices_or_sections=count, axis=dim)
        yield words, lambda x, want, rank, cut=cut, count=count: cut(x)[rank % count]
        yield words, lambda x, want, rank, cut=cut, count=count: cut(x)[rank * count // n]
    yield "the numbers are right: give them the shape", lambda x, want, rank: x.reshape(want.shape)
    yield (
        "a rank has a part of the right numbers alone: gather the others",
        lambda x, want, rank: want if _part_of(x, want, rank) else None,
    )
    if terms:
        yield (
            "a rank has a part of its own term alone: the terms are not added",
            lambda x, want, rank: want if _part_of(x, terms.of[rank], rank) else None,
        )


def _alike(parts):
    return parts[0] if all(np.array_equal(parts[0], one) for one in parts) else None


def _part_of(part, whole, rank):
    """Whether an array is an equal part of another, along some dim."""
    return part.ndim == whole.ndim and any(
        part.shape[dim] and np.array_equal(part, one)
        for dim in range(part.ndim)
        if part.shape[dim] < whole.shape[dim] and whole.shape[dim] % part.shape[dim] == 0
        for one in np.split(whole, whole.shape[dim] // part.shape[dim], dim)
    )
