"""What `parallelize` takes of a strategy: its layout on the plane, and which knobs are refused."""

from typing import TYPE_CHECKING

from torch import nn

from tpviz.schemes.atp.strategy import ATP
from tpviz.schemes.axonn.strategy import AxoNN
from tpviz.schemes.context.strategy import Context
from tpviz.schemes.experts.strategy import Experts
from tpviz.schemes.megatron.strategy import Megatron
from tpviz.schemes.zero.strategy import DataParallel

if TYPE_CHECKING:
    from tpviz.schemes.grid.layout import Layout
    from tpviz.schemes.strategy import Strategy

REFUSED = {
    "gather": "a model that is not ours is not made of blocks, each weight is gathered by itself",
    "recompute": "recompute with the model's own means (torch.utils.checkpoint, for which Hugging "
    "Face's have a switch): it repeats collectives, too",
    "accumulation": "run the microbatches yourself, all but the last within model.no_sync()",
    "zero": "optimizer states of a model that is not ours are its optimizer's "
    "(torch.distributed.optim.ZeroRedundancyOptimizer shards them)",
    "gradients": "a DDP hook such as torch's own compresses those of a model that is not ours",
    "within": "sums and gathers of a model that is not ours have one level",
    "tune": "products of a model that is not ours are not timed",
    "clip": "call model.clip_grad_norm_(most) after backward",
}
"""Knobs that belong to a step of our own program, and what does it instead."""


def layout_of(strategy: "Strategy") -> "Layout":
    """The `Layout` of a strategy that can split models it does not know.

    Raises ``ValueError`` for any other, and for knobs that ask for a model of our own.
    """
    if isinstance(strategy, (Context, Experts)):
        return strategy.layout
    if hasattr(strategy, "inner"):
        raise ValueError(_around(strategy))
    if not isinstance(strategy, (ATP, Megatron, AxoNN)):
        raise ValueError(
            "parallelize works with ATP(...), Megatron(...) and AxoNN(...), and with Context(...) "
            f"or Experts(...) around the first two, not {strategy!r}"
        )
    _refuse_knobs(strategy)
    if strategy.layout.sp:
        raise ValueError(
            f"sp=True is not possible here: between pairs a foreign model needs the "
            f"whole sequence: use sp=False, not {strategy.short}"
        )
    if strategy.layout.pipelined:
        raise ValueError(
            "chunking='pipelined' needs the operations between the two layers: use "
            "chunking='batch' or 'tokens'"
        )
    return strategy.layout


def _refuse_knobs(strategy):
    for name, instead in REFUSED.items():
        knob = type(strategy).__dataclass_fields__.get(name)
        if knob and (value := getattr(strategy, name)) != knob.default:
            raise ValueError(
                f"{name}={value!r} is not possible here: {instead}; use {name}={knob.default!r}"
            )


def factors_of(strategy: "Strategy") -> "tuple[Strategy, Context | Experts | None, int]":
    """(what splits layers, the `Context` or `Experts` around it or None, dp) of a strategy; one
    without such a factor inside splits none, and stands in its place.

    Raises ``ValueError`` for products that are not possible, and for their knobs.
    """
    data = strategy if isinstance(strategy, DataParallel) else None
    around = data.inner if data else strategy
    if not isinstance(around, (Context, Experts)):
        return strategy, None, 1
    for factor in filter(None, (data, around)):
        _refuse_knobs(factor)
    inner, name = around.inner or around, type(around).__name__
    if isinstance(inner, AxoNN):
        raise ValueError(
            f"{strategy.short}: AxoNN shares the batch itself: use Megatron(...) or ATP(...) in a "
            f"{name} here"
        )
    if isinstance(around, Context):
        if isinstance(inner, Experts):
            raise ValueError(
                f"{strategy.short}: sequences of a model with experts over ranks are not cut: use "
                f"{inner.short} without Context, or Context without Experts"
            )
        return inner, around if around.sequence else None, data.dp if data else 1
    if around.etp > 1:
        raise ValueError(
            f"etp={around.etp} is not possible here: how a module that is not ours orders the "
            "features of an expert is not known: use etp=1"
        )
    return inner, around, data.dp if data else 1


def refuse_sparse(model: nn.Module) -> None:
    """Raise ``ValueError`` for layers with sparse gradients, which cannot be averaged."""
    for path, module in model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise ValueError(
                f"{path or 'the model'} has sparse gradients, which AxoNN's means "
                "over shares cannot take: use sparse=False"
            )


def _around(strategy):
    if isinstance(getattr(strategy, "inside", None), Context):
        return (
            f"{strategy.short}: stages of a model that is not ours take whole sequences: use "
            "Context without Pipeline, or Merak without Context"
        )
    inner = strategy.inner.short if strategy.inner else "ATP(mesh=(2, 1))"
    return (
        f"{strategy.short}: parallelize splits layers only; for data parallelism around them "
        f"use a mesh with an axis more, parallelize(model, {inner}, mesh=mesh), and wrap the "
        "result: torch.nn.parallel.DistributedDataParallel(result, "
        "process_group=mesh.get_group('dp'))"
    )
