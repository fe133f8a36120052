"""Merak's equations: the makespan of its schedule, and how much each stage keeps in memory.

Lai et al. 2023 (IEEE TPDS 34(5)), https://arxiv.org/abs/2206.04959. We used the abstract and the
released code, not the full paper: *code* marks that code's rules, *derived* what is ours. p stages
s = 0..p-1, m microbatches; f, b, r seconds of forward, backward and recomputation of a microbatch
on a stage; n_s microbatches in flight; A bytes of activations of a microbatch on a stage, C of the
stage's input; k_s the part (0..1) of a stage's layers that keep all their activations:

    shifted critical path, r = f and b = 2f:  T = 4 f m + 3 f (p - 2)           derived
    k_s = k_0 (p-1) / (p-1-s), k_(p-1) = 1                                      code
        shifted critical path: k_(p-2) = k_(p-3)                                code
    k_s = k_0 (n_0 - 1) / (n_s - 1), which gives both                           derived
    M_s = A (1 + (n_s - 1) k_s) + C n_s (1 - k_s)                               derived

The first, for all f, b and r: `tpviz.core.schedules.formulas.makespan`. The second to fourth:
`kept_shares`. M_s, the activations at the peak: `memory.activations` counts it action by action.
The order of actions itself: `tpviz.core.schedules.one_f_one_b.shifted_critical_path`.

>>> kept_shares("shifted_critical_path", 4, 8)
(1.0, 1.5, 1.5, None)
>>> print(f"{makespan_saved(4, 8):.3f}, 3 of 41")
0.073, 3 of 41
"""

from functools import lru_cache

from tpviz.core.schedules import schedule
from tpviz.core.schedules.formulas import makespan


@lru_cache(maxsize=256)
def kept_shares(
    name: str, ranks: int, microbatches: int, chunks: int | None = None
) -> tuple[float | None, ...]:
    """k_s / k_0 by stage under the schedule of a name, None where all is kept (derived).

    Of the n_s activations (one per microbatch and stage) that a rank has in flight, one is held in
    full and of the others a fraction k_s. k_s makes (n_s - 1) k_s equal on all ranks. A rank with
    n_s = 1 keeps all, and so does the last stage if it has not. With one stage on each of p ranks
    and m >= p this is the released code's rule.
    """
    order = schedule(name, ranks, microbatches, chunks)
    others = [order.most_in_flight(rank) - 1 for rank in range(ranks)]
    shares = [others[0] / others[rank] if others[rank] else None for rank in order.rank_of]
    if order.most_in_flight(order.rank_of[-1], order.stages - 1) == 1:
        shares[-1] = None
    return tuple(shares)


def makespan_saved(
    ranks: int, microbatches: int, forward: float = 1.0, backward: float = 2.0
) -> float | None:
    """The part (0..1) of 1F1B's makespan with early recomputation that the shifted critical path
    saves (derived: equal stages, all recomputed, messages free).

    At backward = 2 forward that is 3 forwards of (4 m + 3 (p - 1)): the same seconds at any number
    m of microbatches. None where the closed form does not hold.
    """
    early, shifted = (
        makespan(name, ranks, microbatches, forward, backward, forward)
        for name in ("early_recompute", "shifted_critical_path")
    )
    return None if early is None or shifted is None else 1 - shifted / early
