"""What `gpt.offload` copies, as operations of a step: bytes, and where they are waited for."""

from typing import TYPE_CHECKING, Any

from tpviz.core.copies import COPY, FROM_HOST, TO_HOST
from tpviz.core.step import Collective, Issue, Part, Wait

from .memory import block_kept, dropped_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpviz.core.workload import GPT


def with_copies(strategy: Any, w: "GPT", parts: "Iterable[Part]") -> tuple[Part, ...]:
    """The parts of a microbatch of a tensor parallelism, with the copies of ``offload`` blocks."""
    count, at, recompute = strategy.offload, strategy.layout, strategy.recompute
    if not count:
        return tuple(parts)
    of = {kind: block_kept(at, kind) - dropped_bytes(at, kind, recompute) for kind, _ in w.kinds()}
    sizes = [of[w.like(block)] for block in range(count)]
    made: list[Part] = []
    for part in parts:
        block = _block(part)
        ours = 0 <= block <= count
        if ours and part.phase != "forward" and block != _block(made[-1]):
            _enter(made, block, sizes)
        made.append(part)
        if ours and part.phase == "forward" and part.layer.endswith(".mlp"):
            made.append(Part("forward", f"blocks.{block}", _left(block, sizes)))
    return tuple(made)


def _left(block, sizes):
    """Behind a block's forward: the one before has left, and its own leave."""
    wait = (Wait(TO_HOST),) if block else ()
    return wait + tuple(Issue(Collective(TO_HOST, COPY, size)) for size in sizes[block : block + 1])


def _enter(made, block, sizes):
    """Before a block's backward: its own are back, those of the block before come. What completes
    as a gradient enters it (`completes`) does so behind that."""
    own = (Wait(FROM_HOST),) if block < len(sizes) else ()
    come = (Issue(Collective(FROM_HOST, COPY, sizes[block - 1])),) if block else ()
    last, inside = made[-1], f"blocks.{block}."
    late = tuple(name for name in last.ready if name.startswith(inside))
    made[-1] = last._replace(ready=last.ready[: len(last.ready) - len(late)])
    made.append(Part("backward", inside[:-1], own + come, late))


def _block(part):
    """The number of its block; -1 outside of blocks."""
    return int(part.layer.split(".")[1]) if part.layer.startswith("blocks.") else -1
