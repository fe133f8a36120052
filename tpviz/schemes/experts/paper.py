"""What a rank sends for a mixture of experts, and what uneven choices cost.

Shazeer et al. 2017, https://arxiv.org/abs/1701.06538; GShard: Lepikhin et al. 2020,
https://arxiv.org/abs/2006.16668; Megatron Core's parallel folding: Yan et al. 2025,
https://arxiv.org/abs/2504.14960. The papers' bodies were not read; what is below is derived.

n = ep ranks, T tokens of a rank, k of E experts each, h features, e bytes a number. Bytes that a
rank sends forward for one MLP, choices being even:

    dispatch and combine       V = 2 T k h (n - 1)/n e                                    (1)

Where expert j gets the part p_j of all choices, the rank with experts J computes n T k p_J rows,
p_J the sum over J. All others wait for the busiest, which has as many times the mean:

    imbalance                  I = n max_J p_J                                            (2)

Where all ranks get all tokens, each sends as many bytes however uneven the choices are, the few of
weights and choices aside:

    gather and scatter         G = 2 T h (n - 1) e                                        (3)

A ring's step waits for all; an all-to-all for its busiest rank, about I V. So gathering sends less
where n < I k, and where choices are even, fewer ranks than experts of a token.

>>> from tpviz import GPT, Routing
>>> w = GPT(hidden=8, seq=16, batch=2, experts=4, top_k=1)
>>> row_bytes(w, 2), gathered_bytes(w, 2), gathering_sends_less(w, 2)
(1024.0, 2048, False)
>>> [gathering_sends_less(GPT(experts=8, top_k=4), n) for n in (2, 4, 8)]
[True, False, False]
>>> [round(imbalance(Routing(skew), 4, 1, 2), 2) for skew in (0, 1, 3)]
[1.0, 1.28, 1.76]
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpviz.core.routing import Routing
    from tpviz.core.workload import GPT


def row_bytes(w: "GPT", n: int) -> float:
    """Bytes that each of ``n`` ranks sends forward for one MLP, by (1). w : of the rank."""
    return 2 * w.batch * w.seq * w.top_k * w.hidden * w.itemsize * (n - 1) / n


def gathered_bytes(w: "GPT", n: int) -> int:
    """Bytes that each of ``n`` ranks sends forward for one MLP where all get all tokens, by (3). w
    : of the rank."""
    return 2 * w.batch * w.seq * w.hidden * w.itemsize * (n - 1)


def gathering_sends_less(w: "GPT", n: int, imbalance: float = 1.0) -> bool:
    """Whether (3) is less than (1) as often as the busiest of ``n`` ranks has the mean, by (2)."""
    return gathered_bytes(w, n) < imbalance * row_bytes(w, n)


def imbalance(routing: "Routing", experts: int, top_k: int, n: int) -> float:
    """Rows of the busiest of ``n`` ranks over the mean of all, by (2); 1 is even."""
    of_ranks = routing.shares(experts, top_k).reshape(n, -1).sum(1)
    return float(n * of_ranks.max() / top_k)
