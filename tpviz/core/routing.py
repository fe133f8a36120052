"""Who goes where: the experts of each token, where not the router says it.

A real router's choices follow from the data, so nobody knows them before a run. With a `Routing`
they follow from a token's place in its sequence alone: a formula, a simulation and a run then have
the same loads, and one number makes an expert hot. The router is still there: its scores weigh the
experts that are given, and it learns.

>>> Routing().counts(experts=4, top_k=2, seq=8)
array([4, 4, 4, 4])
>>> Routing(skew=1.0).counts(experts=4, top_k=1, seq=16)
array([3, 7, 4, 2])
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from .checks import divides, number, one_of, settle, whole_number

if TYPE_CHECKING:
    from .workload import GPT

CHOICE = {"groups": 1, "top_groups": None, "bias_balance": 0.0}
CHOICE.update(norm_top_k=True, routed_scale=1.0)
"""How a router chooses and weighs, {field of `tpviz.GPT`: its value where nothing is said}."""


@dataclass(frozen=True)
class Routing:
    """Experts by shares: that of the j-th most chosen is proportional to (j + 1)^-``skew``, until a
    token would have to choose one twice.

    skew : 0: all alike; 1: Zipf's law; above, one takes nearly all. seed : which experts are hot.
    Raises ``ValueError`` for a skew below 0 or above 10.
    """

    skew: float = 0.0
    seed: int = 0

    def __post_init__(self):
        settle(self, "skew", number, 0, 10)
        settle(self, "seed", whole_number, 0)

    def shares(self, experts: int, top_k: int) -> np.ndarray:
        """The part of all tokens that chooses each expert, (experts,): at most 1, in all top_k."""
        weights = np.arange(1, experts + 1) ** -self.skew
        found, left = np.ones(experts), top_k
        for hot in range(experts):  # those that all tokens choose are settled first
            rest = weights[hot:] * left / weights[hot:].sum()
            if rest[0] <= 1:
                found[hot:] = rest
                break
            left -= 1
        return found[np.random.default_rng(self.seed).permutation(experts)]

    def decisions(self, experts: int, top_k: int, seq: int) -> np.ndarray:
        """The experts of each place of a sequence, int64 (seq, top_k); none is there twice.

        Systematic sampling (Madow 1949) by the sequence of van der Corput (1935), so that any run
        of tokens has nearly these shares (derived).
        """
        return _decisions(self, experts, top_k, seq)

    def counts(self, experts: int, top_k: int, seq: int) -> np.ndarray:
        """Choices of each expert in a whole sequence, (experts,)."""
        return np.bincount(self.decisions(experts, top_k, seq).ravel(), minlength=experts)


@lru_cache(maxsize=64)
def _decisions(routing: Routing, experts: int, top_k: int, seq: int) -> np.ndarray:
    bits = max(seq - 1, 1).bit_length()
    places, mirrored = np.arange(seq), np.zeros(seq, dtype=np.int64)
    for bit in range(bits):
        mirrored |= (places >> bit & 1) << (bits - 1 - bit)
    draws = (mirrored + 0.5) / 2**bits
    ends = np.cumsum(routing.shares(experts, top_k))
    ends[-1] = top_k
    found = np.searchsorted(ends, draws[:, None] + np.arange(top_k), side="right")
    found.flags.writeable = False
    return found


def check_choice(w: "GPT") -> None:
    """Raise ``ValueError`` where the sizes of `CHOICE` do not belong together."""
    settle(w, "bias_balance", number, 0, 1)
    settle(w, "routed_scale", number, 1e-6, 1e6)
    settle(w, "norm_top_k", one_of, (True, False))
    if not w.experts:
        return
    divides("experts", w.experts, "groups", w.groups)
    best, each = w.top_groups or w.groups, w.experts // w.groups
    if best > w.groups:
        raise ValueError(
            f"top_groups={best} is more than groups={w.groups}: use top_groups={w.groups} or less, "
            f"or groups={best}"
        )
    if w.top_k > best * each:
        raise ValueError(
            f"top_k={w.top_k} is more than the {best * each} experts of top_groups={best}: use "
            f"top_k={best * each} or less, or top_groups={-(-w.top_k // each)}"
        )
