"""What both verbs do on a rank: build the program on its device, and train it step by step."""

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tpviz.mesh import Mesh
from tpviz.schemes.gpt.program import batch_of

if TYPE_CHECKING:
    from tpviz.schemes.gpt.program import Program
    from tpviz.strategy import Strategy
    from tpviz.workload import GPT


def program_here(strategy: "Strategy", workload: "GPT", **options: Any) -> "tuple[Program, str]":
    """(this rank's program, its device) for a strategy, on the mesh it asks for."""
    device = os.environ.get("TPVIZ_DEVICE", "cpu")
    mesh = Mesh(strategy.axes).device_mesh(device)
    return strategy.build(workload, mesh, getattr(torch, workload.dtype), device, **options), device


def train_step(program: "Program", workload: "GPT", step: int, device: str) -> torch.Tensor | None:
    """One whole step, update included; its loss, a tensor: the mean over what this rank saw, or
    None where another stage of a pipeline has it."""
    loss = program.step(batch_of(workload, step, device))
    program.optimizer_step()
    return loss


def number_of(loss: torch.Tensor | None) -> float | None:
    """A step's loss as a number, None where this rank has none."""
    return None if loss is None else float(loss)


def mean_losses(losses_by_rank: Iterable[Sequence[float | None]]) -> list[float]:
    """The loss of the batch at each step: every rank that has one saw equally many tokens of it."""
    known = [losses for losses in losses_by_rank if None not in losses]
    return [sum(losses) / len(losses) for losses in zip(*known)]
