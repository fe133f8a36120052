"""Is a split model's output that of the whole model? Compared for the example inputs."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Largest difference of outputs that rounding explains, beside their largest value (derived: some
thousands of units in the last place, for sums in another order); else 5e-2, for 16 bits."""


def outputs_of(
    model: torch.nn.Module, inputs: tuple[tuple[Any, ...], dict[str, Any]]
) -> list[torch.Tensor]:
    """The output's tensors in evaluation mode; random numbers, if any, are the same each time."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            outputs = tree_leaves(model(*inputs[0], **inputs[1]))
    finally:
        for module, mode in training.items():
            module.training = mode
    return [t for t in outputs if isinstance(t, torch.Tensor) and t.is_floating_point()]


def compare(before: Iterable[torch.Tensor], after: Iterable[torch.Tensor]) -> None:
    """Raise ``ValueError`` where an output changed by more than rounding explains."""
    for number, (a, b) in enumerate(zip(before, after)):
        if a.shape != b.shape:
            raise ValueError(
                f"output {number} has shape {tuple(b.shape)} after the split, "
                f"{tuple(a.shape)} before: {WRONG}"
            )
        close = CLOSE.get(a.dtype, 5e-2)
        a, b = a.double(), b.double()
        error = float((a - b).abs().max() / a.abs().max().clamp(min=1e-30)) if a.numel() else 0.0
        if not error <= close:
            raise ValueError(
                f"output {number} changed by {error:.1e} when the model was split: {WRONG}"
            )


WRONG = "a rule does not say how this model uses its layers; the model is no longer usable"
