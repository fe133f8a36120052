"""Rounds in one process: a whole model for each worker, one after another, and the outer step by
its formula. The oracle of `program`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from tpviz.schemes.gpt.program import Program, reference_program

from .paper import outer_step

if TYPE_CHECKING:
    from tpviz.core.workload import GPT

    from .strategy import DiLoCo


class DiLoCoReference(Program):
    """Workers with an AdamW each; all begin each round where the first one is, and it ends with
    `paper.outer_step`."""

    def __init__(self, strategy: "DiLoCo", workload: "GPT", device: "torch.device | str"):
        local = strategy.local(workload)
        self.strategy = strategy
        self.workers = [
            reference_program(local, device=device, clip=strategy.clip)
            for _ in range(strategy.workers)
        ]
        self.module = self.workers[0].module
        self.begun: dict[str, torch.Tensor] = {}
        self.velocity: dict[str, torch.Tensor] = {}
        self.outer: dict[str, torch.Tensor] = {}
        self.seen: dict[str, list[Any]] = {"logits": [], "inputs": []}

    def watch(self) -> None:
        for worker in self.workers:
            worker.watch()

    def step(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        """All inner steps of the round, each worker's after the last one's."""
        self.begun = {n: p.detach().clone() for n, p in self.workers[0].named.items()}
        for tensors in self.seen.values():
            tensors.clear()
        rows = zip(*(t.chunk(len(self.workers)) for t in batch))
        losses = [self._round(worker, part) for worker, part in zip(self.workers, rows)]
        return torch.stack(losses).mean()

    def _round(self, worker: Program, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            for name, p in worker.named.items():
                p.copy_(self.begun[name])
        losses = []
        for part in zip(*(t.chunk(self.strategy.sync_every) for t in rows)):
            losses.append(worker.step(part))
            if worker.watched:
                self.seen["logits"].append(worker.outputs().detach())
                self.seen["inputs"].append(worker.input_gradient())
            worker.optimizer_step()
        return torch.stack(losses).mean()

    @torch.no_grad()
    def optimizer_step(self) -> None:
        """The outer step."""
        lr, m = self.strategy.outer_lr, self.strategy.outer_momentum
        for name, old in self.begun.items():
            away = [old - worker.named[name] for worker in self.workers]
            delta = self.outer[name] = torch.stack(away).mean(0)
            v = self.velocity.get(name, torch.zeros_like(old))
            new, self.velocity[name] = outer_step(old, delta, v, lr, m)
            self.workers[0].named[name].copy_(new)

    def outputs(self) -> torch.Tensor:
        return torch.cat(self.seen["logits"])

    def input_gradient(self) -> torch.Tensor:
        return torch.cat(self.seen["inputs"])

    def gradients(self) -> dict[str, torch.Tensor]:
        """{name: outer gradient of the last round}."""
        return self.outer

    def parameters(self) -> dict[str, torch.Tensor]:
        return dict(self.workers[0].named)
