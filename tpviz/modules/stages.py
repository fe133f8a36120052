"""A stage of a traced module as Merak's pipeline runs it, with the loss behind the last one."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch

from tpviz.core.labels import label
from tpviz.schemes.pipeline.stage import Stage, StageSpec

from .parallelized import held_in
from .structure import commonpath
from .watch import in_evaluation

if TYPE_CHECKING:
    from torch import nn

    from .layers import HeldLinear
    from .partition import ModelGraph, Partition
    from .partition.emit import TracedStage as PartStage
    from .partition.stages import StagePart


class ModuleStage(Stage):
    """One stage of a `Partition`. loss : function (output, targets) -> a mean over rows, or None
    where the model gives its own."""

    module: "PartStage"

    def __init__(
        self,
        part: "StagePart",
        module: "PartStage",
        loss: Callable[..., torch.Tensor] | None = None,
    ):
        super().__init__()
        self.number, self.last, self.loss = part.index, part.sends is None, loss
        self.__dict__["module"] = module  # its parameters keep the names they have there
        self.parts = module.in_parts()
        self.receives, self.sends = (
            [StageSpec(m.shape, m.dtype, m.trained) for m in side or ()]
            for side in (part.receives, part.sends)
        )
        self.paths = [_path(piece) for piece in part.pieces]

    def own(self) -> dict[str, torch.nn.Parameter]:
        return dict(self.module.named_parameters(remove_duplicate=False))

    def held(self) -> "dict[str, HeldLinear]":
        """{path: `HeldLinear`} of the layers that are split over tp."""
        return held_in(self.module)

    @property
    def layers(self) -> tuple[Callable[..., Any], ...]:
        return self.parts.layers

    def trained(self, layer: int) -> list[bool] | None:
        if layer < len(self.parts.trained):
            return list(self.parts.trained[layer])
        return [spec.trained for spec in self.sends] or None

    def begin(
        self, received: tuple[torch.Tensor, ...], inputs: tuple[dict[str, torch.Tensor], Any]
    ) -> tuple[torch.Tensor, ...]:
        return self.parts.begin(received, inputs[0])

    def run(
        self, values: tuple[torch.Tensor, ...], start: int, stop: int | None, summed: bool = True
    ) -> tuple[torch.Tensor, ...]:
        for layer, path in list(zip(self.layers, self.paths))[start:stop]:
            with label(layer=path):
                values = layer(values)
        return values

    def finish(
        self, values: tuple[torch.Tensor, ...], inputs: tuple[dict[str, torch.Tensor], Any]
    ) -> tuple[torch.Tensor, ...]:
        output = self.parts.finish(values)
        if not self.last:
            return output
        return (loss_of(output, self.loss, inputs[1]),)


def loss_of(output: Any, loss: Callable[..., torch.Tensor] | None, targets: Any) -> torch.Tensor:
    """The loss of a microbatch: by the function given, or what the model says it is.

    Raises ``ValueError`` where there is none.
    """
    if loss is not None:
        found = loss(output) if targets is None else loss(output, targets)
    elif isinstance(output, dict):
        found = output.get("loss")
    else:
        found = getattr(output, "loss", output)
    if not isinstance(found, torch.Tensor) or found.dim() or not found.is_floating_point():
        what = "gives" if loss is not None else "has"
        raise ValueError(
            f"the {'loss' if loss is not None else 'output'} of the last stage {what} "
            f"{_kind(found)} where a number is needed: use loss=function(output) or "
            "function(output, targets), or, with Hugging Face's models, give labels"
        )
    return found


def _kind(found):
    if isinstance(found, torch.Tensor):
        return f"a tensor of shape {tuple(found.shape)}"
    return "nothing" if found is None else type(found).__name__


def _path(piece):
    """The innermost module around all of a shard's operations that have one."""
    return commonpath(node.path for node in piece.nodes if node.path and node.parameters)


# -- the program in evaluation mode, over the parameters that are trained --------------------------
# What a trace has seen of dropout and the like is fixed in it. So a model that trains has two
# programs: the second is traced when the first loss of an evaluation is asked for.
class Evaluation:
    """Evaluation of a pipelined model. cut(model, inputs) : its `Partition`, traced with a batch.
    loss : as `ModuleStage` takes it. The model is not kept alive."""

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
