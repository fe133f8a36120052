"""The models of AxoNN's papers as workloads, their FLOPs, and how much of a device they use.

`facts.json` has the sizes with their sources. What is computed here is derived, never a number of
the papers.

>>> f"{paper_models()['80B'].num_parameters / 1e9:.1f}"
'76.8'
"""

import json
from pathlib import Path
from typing import NamedTuple

from tpviz.core.workload import GPT

_FACTS = json.loads(Path(__file__).with_name("facts.json").read_text())
SIZES = {name: (layers, hidden) for name, (layers, hidden) in _FACTS["sizes"]["value"].items()}
"""{name: (layers, hidden)}; heads of 128 features."""
LEAST_RANKS: dict[str, int] = _FACTS["least_ranks"]["value"]
"""Ranks that x y z must have at least in the authors' launch script."""
NOMINAL: dict[str, float] = _FACTS["nominal"]["value"]
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


def hardware_flops(w: GPT, skipped: bool = False) -> int:
    """FLOPs of a step that computes all blocks twice forward: what the authors' code counts.

    96 B s l h^2 (1 + s/6h + V/16lh) for an MLP of ratio 4: `GPT.step_flops` and the blocks again.
    skipped : without attention's masked half, which kernels skip (`tpviz.schemes.gpt.kernels`).
    """
    attention = 4 * w.pairs * w.query_features * (1 - 2 * skipped)  # half of 4 passes
    return w.step_flops + w.batch * w.layers * (2 * w.seq * w.block_matrices + attention)


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
