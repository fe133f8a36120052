"""An all-reduce written as messages: read from text, checked, and run as data parallelism.

A step is a line of messages ``sender>receiver:chunk``, with ``+`` where the receiver adds what
comes to its own chunk; without, it replaces it. All messages of a step carry what their senders
had before it.

>>> steps = read(["0>1:0+ 1>0:1+", "1>0:0 0>1:1"], ranks=2, chunks=2)
>>> steps[0][1], wrong(steps, 2, 2)
(Parcel(sender=1, receiver=0, chunk=1, adds=True), '')
>>> wrong(steps[:1], 2, 2)
'at the end chunk 0 of rank 0 lacks the part of rank 1 (2 of 4 chunks are wrong)'
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from tpviz.core.checks import text, whole_number
from tpviz.core.labels import label
from tpviz.core.trace.ledger import Ledger
from tpviz.schemes.custom import Custom

if TYPE_CHECKING:
    import torch

    from tpviz.core.workload import GPT

CHUNKS, STEPS, MESSAGES = 256, 256, 16_384
"""The most that an entry may have."""
_WRITTEN = re.compile(r"(\d{1,9})>(\d{1,9}):(\d{1,9})(\+?)")


class Parcel(NamedTuple):
    """One message. adds : whether the receiver adds it to its own chunk."""

    sender: int
    receiver: int
    chunk: int
    adds: bool


Steps = tuple[tuple[Parcel, ...], ...]


def read(lines: Any, ranks: int, chunks: Any) -> Steps:
    """The steps that a list of texts says. Raises ``ValueError`` for what is none, names a rank or
    chunk that is not there, or is more than `CHUNKS`, `STEPS` or `MESSAGES`."""
    whole_number("chunks", chunks, 1, CHUNKS)
    if not isinstance(lines, list) or not 0 < len(lines) <= STEPS:
        raise ValueError(f"steps must be a list of 1 to {STEPS} texts")
    steps, number = [], 0
    for at, line in enumerate(lines, 1):
        words = text("a step", line).split()
        number += len(words)
        if number > MESSAGES:
            raise ValueError(f"{number} messages up to step {at}: at most {MESSAGES} work")
        steps.append(tuple(_parcel(word, f"step {at}", ranks, chunks) for word in words))
    return tuple(steps)


def _parcel(word: str, where: str, ranks: int, chunks: int) -> Parcel:
    found = _WRITTEN.fullmatch(word)
    if found is None:
        raise ValueError(
            f"{where}: {word[:40]!r} is no message: write sender>receiver:chunk, such as 0>1:3, or "
            "0>1:3+ where the receiver adds"
        )
    parcel = Parcel(int(found[1]), int(found[2]), int(found[3]), found[4] == "+")
    for name, value, most in (
        ("rank", parcel.sender, ranks),
        ("rank", parcel.receiver, ranks),
        ("chunk", parcel.chunk, chunks),
    ):
        if value >= most:
            raise ValueError(
                f"{where}: {word} names {name} {value}, and there are {most}: 0 to {most - 1}"
            )
    if parcel.sender == parcel.receiver:
        raise ValueError(f"{where}: {word} goes from rank {parcel.sender} to itself")
    return parcel


def wrong(steps: Steps, ranks: int, chunks: int) -> str:
    """The first chunk that does not end as the sum of every rank's part, once each; "" if none."""
    held = {(r, c): Counter([r]) for r in range(ranks) for c in range(chunks)}
    for step in steps:
        came = [(parcel, held[parcel.sender, parcel.chunk]) for parcel in step]
        for (_, receiver, chunk, adds), parts in came:
            held[receiver, chunk] = held[receiver, chunk] + parts if adds else parts
    whole = Counter(range(ranks))
    bad = [(place, parts) for place, parts in held.items() if parts != whole]
    if not bad:
        return ""
    (rank, chunk), parts = bad[0]
    missing = [f"{r}" for r in range(ranks) if not parts[r]]
    several = [f"{r}" for r in range(ranks) if parts[r] > 1]
    said = [f"lacks the part of rank {', '.join(missing)}"] if missing else []
    said += [f"has that of rank {', '.join(several)} more than once"] if several else []
    of = f"{len(bad)} of {len(held)} chunks are wrong"
    return f"at the end chunk {chunk} of rank {rank} {' and '.join(said)} ({of})"


class ByMessages(Custom):
    """Data parallelism over as many ranks, which add up all gradients by these messages.

    Gradients lie in one buffer, in the order of the parameters, with zeros behind to make chunks
    of one size.
    """

    steps: Steps
    number: int

    def __init__(self, steps: Steps, ranks: int, chunks: int):
        super().__init__({"dp": ranks}, partial(_build, steps=steps, chunks=chunks))
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "number", chunks)

    @property
    def short(self) -> str:
        """How much there is of it."""
        messages = sum(map(len, self.steps))
        return f"{self.number} chunks, {len(self.steps)} steps, {messages} messages"

    def ledger_of(self, workload: "GPT", rank: int) -> Ledger:
        """The rank's own messages, all of one size."""
        numel = sum(map(prod, workload.parameter_shapes().values()))
        size = -(-numel // self.number) * workload.itemsize
        ends = Counter(
            name
            for step in self.steps
            for parcel in step
            for name, end in (("send", parcel.sender), ("recv", parcel.receiver))
            if end == rank
        )
        return Ledger.of([("dp", name, "sync", n, size, 2) for name, n in ends.items()])


def _build(workload: "GPT", mesh: Any, steps: Steps, chunks: int):
    import torch
    from torch.nn.functional import pad

    import tpviz as tv

    model, group = tv.reference_model(workload), mesh.get_group("dp")

    def step(batch: Any):
        loss = model(*[rows.chunk(group.size())[group.rank()] for rows in batch])
        loss.backward()
        gradients = [p.grad for p in model.parameters()]
        flat = torch.cat([g.reshape(-1) for g in gradients])  # pyright: ignore[reportOptionalMemberAccess]
        numel = flat.numel()
        buffer = pad(flat, (0, -numel % chunks)).view(chunks, -1)
        with label(phase="sync"):
            for of_step in steps:
                _travel(buffer, of_step, group)
        mean = buffer.view(-1)[:numel] / group.size()
        for p, part in zip(model.parameters(), mean.split([p.numel() for p in model.parameters()])):
            p.grad = part.view_as(p)
        return loss

    return model, step


def _travel(buffer: "torch.Tensor", step: Sequence[Parcel], group: Any) -> None:
    """One step of this rank. What arrives waits aside until all has been sent."""
    import torch
    import torch.distributed as dist

    rank, works, arrived = group.rank(), [], []
    for sender, receiver, chunk, adds in step:
        if receiver == rank:
            block = torch.empty_like(buffer[chunk])
            works.append(dist.irecv(block, sender, group=group))
            arrived.append((chunk, block, adds))
        elif sender == rank:
            works.append(dist.isend(buffer[chunk], receiver, group=group))
    for work in works:
        work.wait()
    for chunk, block, adds in arrived:
        buffer[chunk] = buffer[chunk] + block if adds else block
