"""`microscope`: a collective written over send and receive, run on real ranks, message by message.

The steps of a `Microscope` are rows of the recorded trace: a send and a receive belong together
when they have the same members (sender, receiver) and the same number in their order.
"""

from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tpviz.cluster import Cluster
from tpviz.core.checks import divides, whole_number
from tpviz.core.trace import Trace
from tpviz.ranks.launch import launch
from tpviz.ranks.recorder import record

from .algorithms import ALGORITHMS, find
from .result import ArrivedMessage, Microscope
from .wire import Wire

ITEM = 4  # bytes of a float32


def microscope(
    collective: str = "all_reduce",
    algorithm: str | None = None,
    world_size: int = 4,
    elements: int | None = None,
    chunks: int | None = None,
    cluster: Cluster | None = None,
    timeout: float | None = 60,
) -> Microscope:
    """Run a collective made of sends and receives on real ranks, and record every message.

    Parameters
    ----------
    collective, algorithm : "all_reduce" by "ring" (the default), "tree", "double_tree" or
        "recursive_doubling"; "all_gather" or "reduce_scatter" by "ring"; "all_to_all" by
        "pairwise".
    elements : float32 numbers of the full tensor; one per chunk if left out.
    chunks : into how many chunks a tree splits the tensor (pipelined up and down); rings split it
    into one chunk per rank.
    cluster : a `Cluster` to emulate, with a predicted time for each step; None is this machine.

    Returns a `Microscope`. Raises ValueError for an unknown algorithm, or sizes that do not fit.
    """
    found = find(collective, algorithm, world_size)
    algorithm = next(name for (c, name), a in ALGORITHMS.items() if a is found and c == collective)
    if chunks is None:
        chunks = found.chunks(world_size)
    elif found.fixed:
        raise ValueError(
            f"chunks={chunks}: {algorithm} {collective} on {world_size} ranks has "
            f"{found.chunks(world_size)} of them; only trees let you choose"
        )
    whole_number("chunks", chunks, found.chunks(world_size))
    pieces = world_size if collective == "all_to_all" else chunks
    elements = whole_number("elements", pieces if elements is None else elements, 1)
    divides("elements", elements, "chunks", pieces)
    if not isinstance(cluster, Cluster | None):
        raise ValueError(
            f"cluster={cluster!r}; use a cluster such as tv.clusters.nvlink_pairs(), "
            "or None for this machine"
        )
    if cluster is not None:
        cluster.check_world(world_size)
    job = collective, algorithm, elements, pieces, cluster
    ranks = launch(_in_rank, *job, world_size=world_size, timeout=timeout)
    meta = {"cluster": cluster.caption} if cluster is not None else {}
    trace = Trace.merge([part for part, _, _ in ranks], **meta)
    values = [list(frame) for frame in zip(*(notes for _, notes, _ in ranks))]
    return Microscope(
        collective,
        algorithm,
        found.formula,
        found.layout,
        world_size,
        elements * ITEM,
        trace,
        matched(trace, values),
        values,
        max(error for _, _, error in ranks),
        cluster,
    )


def matched(
    trace: Trace, values: list[list[list[float]]]
) -> tuple[tuple[ArrivedMessage, ...], ...]:
    """The messages of each step from the recorded sends and receives.

    Raises ValueError where one has no partner.
    """
    rows = {"send": {}, "recv": {}}
    for event in trace.select(kind="comm", name=["send", "recv"]):
        rows[event.name][event.members, event.seq] = event
    for members, seq in rows["send"].keys() ^ rows["recv"].keys():
        raise ValueError(f"message {seq} between ranks {members} was only sent or only received")
    steps = [[] for _ in range(len(values) - 1)]
    for key, sent in rows["send"].items():
        sender, receiver = map(int, sent.members.split(","))
        got = rows["recv"][key]
        steps[sent.step].append(
            ArrivedMessage(
                sent.step,
                sender,
                receiver,
                sent.chunk,
                got.chunk,
                sent.bytes,
                values[sent.step][sender][sent.chunk],
                sent.phase,
                sent.start,
                got.end,
            )
        )
    return tuple(tuple(sorted(step)) for step in steps)


def _in_rank(
    collective: str, algorithm: str, elements: int, pieces: int, cluster: Cluster | None
) -> tuple[Trace, list[list[Any]], float]:
    """Runs on every rank: (trace, notes, largest difference from torch's own collective)."""
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = _numbers(rank, elements).reshape(pieces, -1)
    run = find(collective, algorithm, size).run
    run(Wire(_start(collective, whole, rank)))  # the first message between two ranks connects them
    wire = Wire(_start(collective, whole, rank))
    dist.barrier()
    with record(cluster=cluster) as recorder:
        wire.recorder = recorder
        run(wire)
    mine, own = _outcome(collective, wire.buffer, rank), _by_torch(collective, whole)
    return recorder.trace, wire.notes, float((mine - own).abs().max())


def _numbers(rank: int, elements: int):
    """The tensor of a rank: whole numbers from 1 to 9, so that sums are exact."""
    draw = np.random.default_rng([7, rank]).integers(1, 10, size=elements)
    return torch.from_numpy(draw.astype(np.float32))


def _start(collective: str, whole: torch.Tensor, rank: int):
    """The buffer a rank starts with, one row per chunk; empty places hold zeros."""
    if collective == "all_gather":
        buffer = torch.zeros_like(whole)
        buffer[rank] = whole[rank]
        return buffer
    if collective == "all_to_all":
        received = torch.zeros_like(whole)
        received[rank] = whole[rank]
        return torch.cat([whole, received])
    return whole.clone()


def _outcome(collective: str, buffer: torch.Tensor, rank: int):
    """The part of the buffer that is the collective's result on this rank."""
    if collective == "reduce_scatter":
        return buffer[rank]
    return buffer[len(buffer) // 2 :] if collective == "all_to_all" else buffer


def _by_torch(collective: str, whole: torch.Tensor):
    """What torch.distributed makes of the same tensors."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if collective == "all_gather":
        blocks = list(torch.empty_like(whole))
        dist.all_gather(blocks, whole[rank].clone())
        return torch.stack(blocks)
    if collective == "reduce_scatter":
        block = torch.empty_like(whole[rank])
        dist.reduce_scatter(block, [whole[i].clone() for i in range(size)])
        return block
    if collective == "all_to_all":
        blocks = torch.empty_like(whole)
        dist.all_to_all_single(blocks, whole.clone())
        return blocks
    total = whole.clone()
    dist.all_reduce(total)
    return total
