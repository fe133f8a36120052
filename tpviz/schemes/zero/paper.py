"""ZeRO's memory: the bytes of parameters, gradients and optimizer states on a rank, by stage.

Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054. The paper's symbols: Psi parameters, K
bytes of optimizer states for each, N_d ranks (our dp); a parameter and its gradient have 2 bytes:

    stage 0, baseline     (2 + 2 + K) Psi
    stage 1, P_os         (2 + 2) Psi + K Psi / N_d
    stage 2, P_os+g       2 Psi + (2 + K) Psi / N_d
    stage 3, P_os+g+p     (2 + 2 + K) Psi / N_d

K = 12 for mixed-precision Adam: parameters, momentum and variance in 32 bits. Our runs keep one
copy of the parameters, e bytes each, and two moments: e in place of 2, and K = 2 e. `memory` adds
what is whole for a moment, `step` has the communication (the paper's section 7).

The paper's figure 1, in GB, for Psi = 7.5 billion and N_d = 64:

>>> psi = 7_500_000_000
>>> states = {"parameters": 2 * psi, "gradients": 2 * psi, "optimizer": 12 * psi}
>>> [round(sum(model_states(states, zero, 64).values()) / 1e9, 1) for zero in range(4)]
[120.0, 31.4, 16.6, 1.9]
"""

from collections.abc import Mapping

FROM_STAGE = {"optimizer": 1, "gradients": 2, "parameters": 3}
"""{kind of memory: the stage from which each rank has 1/N_d of it}."""


def model_states(states: Mapping[str, int], zero: int, ranks: int) -> dict[str, int]:
    """{kind: bytes of a rank} at stage ``zero`` over N_d = ``ranks`` ranks, rounded down.

    states : the same without ZeRO. Source: Rajbhandari et al. 2020 (arXiv 1910.02054), section 5.
    """
    return {
        kind: states[kind] // (ranks if zero >= stage else 1) for kind, stage in FROM_STAGE.items()
    }
