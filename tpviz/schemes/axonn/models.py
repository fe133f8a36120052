"""The models of AxoNN's papers as workloads, their FLOPs, and how much of a device they use.

Sizes up to 175B as in the launch script of the authors' Gordon Bell code; 320B and 640B recalled,
not confirmed. What is computed here is derived, never a number of the papers.

>>> f"{paper_models()['80B'].num_parameters / 1e9:.1f}"
'76.8'
"""

from typing import NamedTuple

from tpviz.core.workload import GPT

SIZES = {
    "5B": (24, 4096),
    "10B": (32, 5120),
    "20B": (32, 7168),
    "40B": (38, 9216),
    "50B": (48, 9216),
    "60B": (56, 9216),
    "80B": (42, 12288),
    "100B": (53, 12288),
    "160B": (84, 12288),
    "175B": (96, 12288),
    "320B": (96, 16384),
    "640B": (192, 16384),
}
"""{name: (layers, hidden)}; heads of 128 features."""
LEAST_RANKS = {
    "5B": 4,
    "10B": 8,
    "20B": 16,
    "40B": 32,
    "50B": 32,
    "60B": 64,
    "80B": 64,
    "100B": 64,
    "160B": 128,
    "175B": 128,
}
"""Ranks that x y z must have at least in the authors' launch script."""
NOMINAL = {"A100": 312e12, "MI250X GCD": 191.5e12, "H100": 989e12}
"""FLOP/s in bfloat16 by the vendors, which the papers take percentages of."""


def paper_models(batch: int = 8192) -> dict[str, GPT]:
    """{name: `GPT`}: seq 2048, vocab 51200, bfloat16.

    batch : sequences a step; 8192 are the 16.8 million tokens of their weak scaling (recalled).
    """
    return {
        name: GPT(
            layers=layers,
            hidden=hidden,
            heads=hidden // 128,
            seq=2048,
            batch=batch,
            vocab=51200,
            dtype="bfloat16",
        )
        for name, (layers, hidden) in SIZES.items()
    }


def hardware_flops(w: GPT) -> int:
    """FLOPs of a step that computes all blocks twice forward: what the authors' code counts.

    96 B s l h^2 (1 + s/6h + V/16lh) for an MLP of ratio 4: `GPT.step_flops` and the blocks again.
    """
    per_layer = 2 * w.block_matrices + 4 * w.seq * w.hidden
    return w.step_flops + w.batch * w.seq * w.layers * per_layer


class Utilisation(NamedTuple):
    """Fractions of a device's FLOP/s: ``hfu`` counts recomputation, ``mfu`` does not."""

    hfu: float
    mfu: float


def utilisation(w: GPT, seconds: float, devices: int, peak: float) -> Utilisation:
    """The `Utilisation` of a step of ``seconds`` with recomputation; peak : FLOP/s of a device.

    The papers' percentages are of the first kind, against the vendor's peak (`NOMINAL`).
    """
    return Utilisation(
        *(flops / (seconds * devices * peak) for flops in (hardware_flops(w), w.step_flops))
    )
