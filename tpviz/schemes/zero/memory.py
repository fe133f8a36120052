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
from tpviz.schemes.gpt.memory import of_step, under_adamw

from .paper import FROM_STAGE, model_states
from .step import inner_parts

if TYPE_CHECKING:
    from tpviz.core.workload import GPT

    from .strategy import DataParallel


def memory(strategy: "DataParallel", workload: "GPT") -> Memory:
    """The `tpviz.cluster.clock.cost.Memory` of one rank."""
    local = strategy.local(workload)
    found = of_step(inner_memory(strategy, local), workload, local)
    if strategy.replicas.ranks == 1:
        return found
    buckets, zero, item = strategy.buckets(workload), strategy.zero, workload.itemsize
    sizes, alone = [(b.numel * item, b.share * item) for b in buckets], strategy.alone(workload)
    in_flight = sum(alone.values())
    if zero > 1:
        order = ready_order(inner_parts(strategy.inside, local))
        in_flight = _in_flight(buckets, order, strategy.accumulation > 1, alone)
    if zero:
        kept = strategy.kept if strategy.reshard_after_forward else 0
        in_use = _in_use(buckets, kept) if zero == 3 else 0
        whole = under_adamw(sum(alone.values()) * item, len(alone)) | {"gradients": 0}
        states = flat_states(sizes, zero, in_use * item, in_flight * item)
        found.update({kind: size + whole[kind] for kind, size in states.items()})
    elif strategy.sent_in_parts:
        found["gradients"] += sum(b.numel - sum(n for _, _, n in b.parts) for b in buckets) * item
    if zero < 2:
        found["gradients"] += sum(n for b in buckets if b.late for _, _, n in b.parts) * item
    return found


def flat_states(
    sizes: Sequence[tuple[int, int]], zero: int, parameters: int, gradients: int
) -> dict[str, int]:
    """{kind: bytes of a rank} of flat buffers at stages 1 to 3, under AdamW: two moments, and 4
    bytes a buffer to count steps. sizes : (bytes of a buffer, of a rank's share of it). parameters,
    gradients : bytes of those besides that are whole, perhaps for a moment."""
    size, share = (sum(one[i] for one in sizes) for i in range(2))  # of an empty stage: 0
    return {
        "parameters": share + parameters if zero == 3 else size,
        "gradients": share + gradients + (size if zero == 1 else 0),
        "optimizer": 2 * share + 4 * len(sizes),
    }


def least(strategy: "DataParallel", workload: "GPT") -> Memory:
    """A lower bound of `memory` by kind: without padding and buffers that are full for a moment."""
    found = inner_memory(strategy, strategy.local(workload))
    if strategy.zero:
        found["optimizer"] = 2 * found["parameters"]  # two moments of the flat buffers
    states = dict.fromkeys(FROM_STAGE, 0)
    for of, (part, _) in strategy.parts(workload).items():
        whole = {kind: int(part * found[kind]) for kind in states}
        share = model_states(whole, strategy.zero, of.ranks)
        states = {kind: size + share[kind] for kind, size in states.items()}
    return Memory(found | states)


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
    of_block: dict[int, int] = {}
    for b in reversed(buckets):
        if b.block >= 0:
            of_block[b.block] = of_block.get(b.block, 0) + b.numel
    blocks = [*of_block.values()]
    root = sum(b.numel for b in buckets if b.block < 0)
    if not (kept and blocks):
        return root + sum(blocks)
    stays = [n // kept * (kept > 1) for n in blocks]
    until = list(accumulate(stays))
    two = [sum(pair) + stay for pair, stay in zip(pairwise(blocks), until)]
    return root + max([*two, blocks[-1] + until[-1]])


def _in_flight(buckets, order, again, alone):
    """The most elements of whole gradients at once from stage 2 on: the steps of `program`. again :
    of a microbatch before there are late ones, which are reduced once a step. alone : {parameter:
    elements} of those in no bucket."""
    bucket_of = {name: k for k, b in enumerate(buckets) for name, _, _ in b.parts}
    numel_of = {name: numel for b in buckets for name, _, numel in b.parts}
    missing, begun = [len(b.parts) for b in buckets], set()
    outside = again * sum(n for b in buckets if b.late for _, _, n in b.parts)
    live = outside + again * sum(alone.values())
    peak = launched = 0

    def launch():
        nonlocal launched, live
        while launched < len(buckets) and not missing[launched]:
            live -= buckets[launched - 1].numel if launched else 0
            launched += 1

    for name in order:
        if name in alone:
            live += alone[name] * (not again)
            peak = max(peak, live)
            continue
        k = bucket_of[name]
        if buckets[k].late:
            if again:
                continue
            live, outside = live + numel_of[name], outside + numel_of[name]
            peak = max(peak, live)
            continue
        if k not in begun:
            begun.add(k)
            live += buckets[k].numel
            peak = max(peak, live)
        missing[k] -= 1
        launch()
    late = sum(b.numel for b in buckets if b.late)
    return max(peak, live - outside + late)
