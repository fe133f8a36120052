"""Bytes of one rank under data parallelism, by ZeRO stage: peaks within a step.

`paper` has the formula; `flat_param` decides which buffers are full when. Derived, with a share
1/dp of every bucket:

stage  parameters                            gradients
0      all                                   all
1      all                                   all, and the shares
2      all                                   the shares, and the buckets that fill or are in flight
3      the shares, the root, two blocks      the same, with blocks and the root as buckets

At stage 3, of blocks that are not freed after forward, or not wholly, all that stays is added.

Gradients that are complete only after the inner strategy's synchronisation also exist outside
their bucket until then.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from tpviz.cluster.clock.cost import Memory
from tpviz.core.step import ready_order
from tpviz.schemes.gpt.memory import of_step

from .paper import model_states
from .step import inner_parts

if TYPE_CHECKING:
    from tpviz.core.workload import GPT

    from .strategy import DataParallel


def memory(strategy: "DataParallel", workload: "GPT") -> Memory:
    """The `tpviz.cluster.clock.cost.Memory` of one rank."""
    local, dp = strategy.local(workload), strategy.replicas.ranks
    found = of_step(inner_memory(strategy, local), workload, local)
    if dp == 1:
        return found
    buckets, zero, item = strategy.buckets(workload), strategy.zero, workload.itemsize
    sizes, in_flight = [b.numel * item for b in buckets], 0
    if zero > 1:
        order = ready_order(inner_parts(strategy.inside, local))
        in_flight = _in_flight(buckets, order, strategy.accumulation > 1)
    if zero:
        kept = strategy.kept if strategy.reshard_after_forward else 0
        in_use = _in_use(buckets, kept) if zero == 3 else 0
        found.update(flat_states(sizes, zero, dp, in_use * item, in_flight * item))
    elif strategy.padding > 1:
        found["gradients"] += sum(b.numel - sum(n for _, _, n in b.parts) for b in buckets) * item
    if zero < 2:
        found["gradients"] += sum(n for b in buckets if b.late for _, _, n in b.parts) * item
    return found


def flat_states(
    sizes: Sequence[int], zero: int, ranks: int, parameters: int, gradients: int
) -> dict[str, int]:
    """{kind: bytes of a rank} of flat buffers at stages 1 to 3, under AdamW: two moments, and 4
    bytes a buffer to count steps. sizes : bytes of each buffer. parameters, gradients : bytes of
    those that are whole for a moment, where they are shared out."""
    size = sum(sizes)
    share = size // ranks
    return {
        "parameters": share + parameters if zero == 3 else size,
        "gradients": share + (gradients if zero > 1 else size),
        "optimizer": 2 * share + 4 * len(sizes),
    }


def least(strategy: "DataParallel", workload: "GPT") -> Memory:
    """A lower bound of `memory` by kind: without padding and buffers that are full for a moment."""
    found = inner_memory(strategy, strategy.local(workload))
    if strategy.zero:
        found["optimizer"] = 2 * found["parameters"]  # two moments of the flat buffers
    return Memory(found | model_states(found, strategy.zero, strategy.replicas.ranks))


def inner_memory(strategy: "DataParallel", local: "GPT") -> Memory:
    """The `Memory` of the strategy inside."""
    return Memory(_inner_memory_of(strategy.inside, local))


@lru_cache(maxsize=64)
def _inner_memory_of(inside, local):
    """The same at every stage."""
    return inside.memory(local)


def _in_use(buckets, kept):
    """Elements of the root and of two neighbouring blocks, whole at once at stage 3, and of what
    stays after forward of the first of them and those before: 1/kept, if that is above 1. kept : 0
    where all blocks stay whole."""
    blocks = [b.numel for b in reversed(buckets) if b.block >= 0]
    root = sum(b.numel for b in buckets if b.block < 0)
    if not (kept and blocks):
        return root + sum(blocks)
    stays = [n // kept * (kept > 1) for n in blocks]
    until = list(accumulate(stays))
    two = [sum(pair) + stay for pair, stay in zip(pairwise(blocks), until)]
    return root + max([*two, blocks[-1] + until[-1]])


def _in_flight(buckets, order, again):
    """The most elements of whole gradients at once from stage 2 on: the steps of `program`. again :
    of a microbatch before there are late ones, which are reduced once a step."""
    bucket_of = {name: k for k, b in enumerate(buckets) for name, _, _ in b.parts}
    numel_of = {name: numel for b in buckets for name, _, numel in b.parts}
    missing, begun = [len(b.parts) for b in buckets], set()
    live = alone = again * sum(n for b in buckets if b.late for _, _, n in b.parts)
    peak = launched = 0

    def launch():
        nonlocal launched, live
        while launched < len(buckets) and not missing[launched]:
            live -= buckets[launched - 1].numel if launched else 0
            launched += 1

    for name in order:
        k = bucket_of[name]
        if buckets[k].late:
            if again:
                continue
            live, alone = live + numel_of[name], alone + numel_of[name]
            peak = max(peak, live)
            continue
        if k not in begun:
            begun.add(k)
            live += buckets[k].numel
            peak = max(peak, live)
        missing[k] -= 1
        launch()
    late = sum(b.numel for b in buckets if b.late)
    return max(peak, live - alone + late)
