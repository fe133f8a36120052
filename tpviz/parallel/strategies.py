"""What `parallelize` takes of a strategy: its layout on the plane, and which knobs it refuses."""

from typing import TYPE_CHECKING

from torch import nn

from tpviz.schemes.atp.layout import Layout
from tpviz.schemes.atp.strategy import ATP
from tpviz.schemes.axonn.strategy import AxoNN
from tpviz.schemes.megatron.strategy import Megatron

if TYPE_CHECKING:
    from tpviz.strategy import Strategy

REFUSED = {
    "gather": "a model that is not ours is not made of blocks, each weight is gathered by itself",
    "recompute": "recompute with the model's own means (torch.utils.checkpoint, for which Hugging "
    "Face's have a switch): it gathers weights once more",
    "accumulation": "run the microbatches yourself, all but the last within model.no_sync()",
    "tune": "products of a model that is not ours are not timed",
    "clip": "call model.clip_grad_norm_(most) after backward",
}
"""Knobs of `AxoNN` that belong to a step of our own program, and what does it instead."""


def layout_of(strategy: "Strategy") -> Layout:
    """The `Layout` of a strategy that can split models it does not know.

    Raises ``ValueError`` for any other, and for knobs that ask for a model of our own.
    """
    if hasattr(strategy, "inner"):
        raise ValueError(_around(strategy))
    if not isinstance(strategy, (ATP, Megatron, AxoNN)):
        raise ValueError(
            f"parallelize works with ATP(...), Megatron(...) and AxoNN(...), not {strategy!r}"
        )
    if isinstance(strategy, AxoNN):
        return _grid(strategy)
    if strategy.sp:
        raise ValueError(
            f"sp=True is not possible here: between pairs a foreign model needs the "
            f"whole sequence: use sp=False, not {strategy.short}"
        )
    if isinstance(strategy, Megatron):
        return Layout("tp", "", strategy.tp, 1, strategy.chunks, "batch", False, False, False)
    if strategy.chunking == "pipelined" and strategy.chunks > 1:
        raise ValueError(
            "chunking='pipelined' needs the operations between the two layers: use "
            "chunking='batch' or 'tokens'"
        )
    return strategy.layout


def _grid(strategy):
    for name, instead in REFUSED.items():
        value, default = getattr(strategy, name), type(strategy).__dataclass_fields__[name].default
        if value != default:
            raise ValueError(
                f"{name}={value!r} is not possible here: {instead}; use {name}={default!r}"
            )
    return strategy.layout


def refuse_sparse(model: nn.Module) -> None:
    """Raise ``ValueError`` for layers with sparse gradients, which cannot be averaged."""
    for path, module in model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise ValueError(
                f"{path or 'the model'} has sparse gradients, which AxoNN's means "
                "over shares cannot take: use sparse=False"
            )


def _around(strategy):
    inner = strategy.inner.short if strategy.inner else "ATP(mesh=(2, 1))"
    return (
        f"{strategy.short}: parallelize splits layers only; for data parallelism around them "
        f"use a mesh with an axis more, parallelize(model, {inner}, mesh=mesh), and wrap the "
        "result: torch.nn.parallel.DistributedDataParallel(result, "
        "process_group=mesh.get_group('dp'))"
    )
