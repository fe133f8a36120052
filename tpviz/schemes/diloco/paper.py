"""DiLoCo, in its symbols: Douillard et al. 2023, https://arxiv.org/abs/2311.08105.

Algorithm 1: k workers, rounds t = 1 to T of H inner steps each:

    theta_i(t) = InnerOpt of theta(t-1), H times, each on data of worker i       AdamW
    Delta(t)   = 1/k sum over i of (theta(t-1) - theta_i(t))                      outer gradient
    theta(t)   = OuterOpt of theta(t-1) and Delta(t)                              Nesterov momentum

So a number of a parameter crosses workers once in H steps, where data parallelism sends one each
step: H times fewer bytes (the paper's H is 500). Ours: a round is `strategy.DiLoCo`'s step.
"""

from typing import Any


def outer_step(theta: Any, delta: Any, v: Any, lr: float, m: float) -> tuple[Any, Any]:
    """(theta(t), v(t)) of Nesterov momentum m, as PyTorch's SGD has it (Sutskever et al. 2013).

    >>> outer_step(1.0, 0.5, 0.0, lr=1.0, m=0.0)
    (0.5, 0.5)
    >>> outer_step(1.0, 0.5, 1.0, lr=0.1, m=0.9)
    (0.824, 1.4)
    """
    v = m * v + delta
    return theta - lr * (delta + m * v if m else delta), v
