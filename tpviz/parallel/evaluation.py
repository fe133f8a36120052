"""A pipelined model's program in evaluation mode, over the parameters that are trained.

What a trace has seen of dropout and the like is fixed in it. So a model that trains has two
programs: the second is traced when the first loss of an evaluation is asked for.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import ref

from .stages import ModuleStage

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tpviz.partition import ModelGraph, Partition
    from tpviz.schemes.merak.stage import Stage


class Evaluation:
    """cut(model, inputs) : the `Partition` of a model, traced with a whole batch. loss : as
    `ModuleStage` takes it. The model is not kept alive."""

    def __init__(
        self,
        model: "nn.Module",
        cut: "Callable[[nn.Module, Any], Partition]",
        loss: "Callable[..., torch.Tensor] | None",
    ):
        self.model, self.cut, self.loss, self.made = ref(model), cut, loss, None

    def program(
        self,
        partition: "Partition",
        stages: "Mapping[int, Stage]",
        inputs: tuple[tuple[Any, ...], dict[str, Any]],
    ) -> "tuple[ModelGraph, Mapping[int, Stage]]":
        """(graph, {number: stage}) for the numbers in ``stages``, those of training in
        ``partition``.

        Raises ``ValueError`` where the model is gone, and where it would be cut elsewhere.
        """
        if not partition.graph.training:
            return partition.graph, stages
        if self.made is None:
            self.made = self._made(partition, stages, inputs)
        return self.made

    def _made(self, partition, stages, inputs):
        model = self.model()
        if model is None:
            raise ValueError(
                "evaluation traces the model once more, in evaluation mode, which was deleted: "
                "keep the model passed to parallelize"
            )
        with in_evaluation(model):
            found = self.cut(model, inputs)
            moved = [
                part.index
                for part, other in zip(partition.stages, found.stages)
                if set(part.parameters) != set(other.parameters)
            ]
            if moved:
                raise ValueError(
                    f"in evaluation mode {partition.graph.model} does other "
                    f"operations, and stages {', '.join(map(str, moved))} would hold "
                    "other parameters than in training: use balance='uniform', or "
                    "call parallelize on model.eval()"
                )
            return found.graph, {
                number: ModuleStage(found.stages[number], found.module(number, model), self.loss)
                for number in stages
            }


@contextmanager
def in_evaluation(model: "nn.Module") -> Iterator[None]:
    """Inside, all of a model is in evaluation mode; outside every part in its own."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
