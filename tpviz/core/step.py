"""A training step as data: kernels and collectives of one rank, in the order of the program.

A scheme's ``step`` is a sequence of `Part`s. From it come the ledger (`count`), the predicted time
(`tpviz.cluster.clock.fast.Clock`) and the films, so these cannot disagree. Collectives of one axis
queue in the order in which they are issued; a kernel waits for none unless a `Wait` says so.

>>> kernel, move = Kernel(2_000_000, 3_000), Collective("tp", "all_reduce", 4096)
>>> step = [Part("forward", "up", (kernel, move)), Part("forward", "", (Overlapped(move, kernel),))]
>>> print(count(step, {"tp": 4}))
axis  collective  phase    count  payload_bytes  wire_bytes
tp    all_reduce  forward      2           8192       12288
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple

from .mesh import ranks_along
from .trace.ledger import Ledger

RING_SHIFT = "ring_shift"
"""A message to a neighbour on the axis's ring and one from the other: a send and a receive."""


class Kernel(NamedTuple):
    """The work of one kernel: floating-point operations, bytes that it reads and writes, and the
    dtype at whose rate it computes; "": the workload's."""

    flops: int
    bytes: int
    dtype: str = ""

    def __repr__(self):
        own = f", dtype={self.dtype!r}" if self.dtype else ""
        return f"Kernel(flops={self.flops}, bytes={self.bytes}{own})"


class Collective(NamedTuple):
    """A collective that kernels wait for; ``payload`` bytes of the full tensor. parts : of an
    all-to-all of unequal ones, the bytes from rank to rank, as `tpviz.cluster.exchanges.between`
    takes them; its time follows from these, and ``payload`` is what one rank sends to others."""

    axis: str
    collective: str
    payload: int
    parts: tuple[Any, ...] = ()


class Issue(NamedTuple):
    """Start a collective without waiting. phase : for the ledger; "" means the `Part`'s."""

    move: Collective
    phase: str = ""


class Issues(NamedTuple):
    """Start several collectives without waiting; those of one axis run one after another."""

    moves: tuple[Collective, ...]

    def expand(self) -> "Iterator[Operation]":
        """Yield an `Issue` for each collective."""
        return map(Issue, self.moves)


class Wait(NamedTuple):
    """Wait until at most the last ``in_flight`` collectives of the axis are unfinished."""

    axis: str
    in_flight: int = 0


class Overlapped(NamedTuple):
    """A collective with a kernel over it: both start together, then both are waited for."""

    move: Collective
    kernel: Kernel

    def expand(self) -> "Iterator[Operation]":
        """Yield the kernels and collectives that this operation consists of."""
        yield Issue(self.move)
        yield self.kernel
        yield Wait(self.move.axis)


class Chunks(NamedTuple):
    """``count`` equal chunks: a kernel, then a collective that overlaps the next chunks' kernels.

    Two stages of a pipeline with equal items: T(C) = max(C g + a, g + C a), g and a of one chunk
    (derived; references: ATP's chunk-based overlap).
    """

    kernel: Kernel
    move: Collective
    count: int

    def expand(self) -> "Iterator[Operation]":
        """Yield the kernels and collectives that this operation consists of."""
        for _ in range(self.count):
            yield self.kernel
            yield Issue(self.move)
        yield Wait(self.move.axis)


class PairInChunks(NamedTuple):
    """``count`` chunks through two kernels, each followed by its collective (None: none)."""

    first: Kernel
    first_move: Collective | None
    second: Kernel
    second_move: Collective | None
    count: int

    def expand(self) -> "Sequence[Operation]":
        """The operations in order: kernel 1 of chunks 1 and 2, kernel 2 of chunk 1, kernel 1 of
        chunk 3, ...; kernel 2 of a chunk waits for the collective after its kernel 1.

        The collectives of both axes are in flight at once. Contention on links that they share is
        ignored here; `tpviz.simulate` models it.
        """
        made, tickets = Operations(), []
        for number in range(self.count + 1):
            if number < self.count:
                made.append(self.first)
                tickets.append(made.issue(self.first_move))
            if number:
                made.wait(tickets[number - 1])
                made.append(self.second)
                last = made.issue(self.second_move)
        made.wait(last)
        return made


Composite = Issues, Overlapped, Chunks, PairInChunks
Operation = Kernel | Collective | Issue | Wait | Issues | Overlapped | Chunks | PairInChunks
"""What a part of a step is made of."""
Simple = Kernel | Collective | Issue | Wait
"""What all of these expand to."""


class Part(NamedTuple):
    """Operations of one layer in one phase. ready : parameters whose gradients are complete at its
    end, in that order. An item that is no `Operation` is private: the scheme's ``step`` replaces
    it."""

    phase: str
    layer: str
    operations: tuple[Any, ...]
    ready: tuple[str, ...] = ()


class Repeat(NamedTuple):
    """The same parts ``count`` times."""

    parts: "Step"
    count: int


Step = Sequence[Part | Repeat]


class Operations(list[Operation]):
    """A list of operations under construction, which computes ``in_flight`` of each `Wait`."""

    def __init__(self):
        super().__init__()
        self.issued: Counter[str] = Counter()

    def issue(self, move: Collective | None, phase: str = "") -> tuple[str, int] | None:
        """Append the start of a collective (None: nothing); returns a ticket for `wait`."""
        if move is None:
            return None
        self.append(Issue(move, phase))
        self.issued[move.axis] += 1
        return move.axis, self.issued[move.axis]

    def wait(self, ticket: tuple[str, int] | None) -> None:
        """Append a wait for the collective with this ticket from `issue`."""
        if ticket:
            axis, number = ticket
            self.append(Wait(axis, self.issued[axis] - number))


def expanded(operations: Iterable[Operation]) -> Iterator[Simple]:
    """Yield kernels, collectives, `Issue` and `Wait`: composite operations are expanded."""
    for operation in operations:
        if isinstance(operation, Composite):
            yield from operation.expand()  # pyright: ignore[reportReturnType]
        else:
            yield operation  # pyright: ignore[reportReturnType]


def count(step: Step, sizes: Mapping[str, int]) -> Ledger:
    """The `Ledger` of a step. sizes : ranks of each axis; an axis of size 1 sends nothing."""
    return Ledger.of(_rows(step, sizes))


def _rows(step, sizes):
    """What `Ledger.of` takes: each tuple of operations is looked at once, however often it runs."""
    times, moves = Counter(), {}
    for part, repeats in flat(step):
        times[id(part.operations), part.phase] += repeats
        if id(part.operations) not in moves:
            moves[id(part.operations)] = Counter(_moves(part.operations))
    for (key, phase), repeats in times.items():
        for (move, other), each in moves[key].items():
            axis, collective, payload, _ = move
            names = ("send", "recv") if collective == RING_SHIFT else (collective,)
            ranks = ranks_along(sizes, axis)
            size = min(ranks, 2) if collective == RING_SHIFT else ranks
            for name in names:
                yield axis, name, other or phase, each * repeats, payload, size


def _moves(operations):
    """(`Collective`, phase or "") of each that is issued."""
    for operation in expanded(operations):
        if isinstance(operation, Collective):
            yield operation, ""
        elif isinstance(operation, Issue):
            yield operation


def accumulated(step: Sequence[Part], count: int, each: Sequence[Part] | None = None) -> Step:
    """A step of ``count`` microbatches, from the step of one: the phases sync and optimizer occur
    once, and only the last microbatch completes gradients (`Part.ready`). each : the microbatches
    before it, where they are not just `microbatch_of` the step."""
    if count == 1:
        return step
    before = microbatch_of(step) if each is None else tuple(p._replace(ready=()) for p in each)
    return Repeat(before, count - 1), *step


def microbatch_of(step: Iterable[Part]) -> tuple[Part, ...]:
    """The parts of a step without sync and optimizer, with empty ``ready``."""
    return tuple(p._replace(ready=()) for p in step if p.phase not in ("sync", "optimizer"))


class Blocks(NamedTuple):
    """A run of parts that occurs ``count`` times, up to the names of layers and parameters, such as
    the blocks of a GPT. waited : the axes that kernels of these parts wait for."""

    parts: tuple[Part, ...]
    count: int
    waited: frozenset[str]


class Interned(tuple[Part | Repeat, ...]):
    """A step with equal operations as one tuple, so that what goes over them does it once, and with
    its ``blocks``: the same parts in the same order, by what repeats."""

    blocks: tuple[Blocks | Repeat, ...]

    def __new__(cls, items: Iterable[Part | Repeat]) -> "Interned":  # noqa: D102
        made = super().__new__(cls, items)
        made.blocks = tuple(_blocks_of(made))
        return made


def interned(step: Step, found: dict[Any, Any] | None = None) -> Interned:
    """The step as an `Interned` one. found : {operations: the shared tuple equal to them}; pass the
    same dict for several steps, so that these share tuples too."""
    known: dict[Any, Any] = {} if found is None else found

    def once(item: Part | Repeat) -> Part | Repeat:
        if isinstance(item, Repeat):
            return Repeat(interned(item.parts, known), item.count)
        same = known.setdefault(item.operations, item.operations)
        return item if same is item.operations else item._replace(operations=same)

    return Interned(map(once, step))


LONGEST, FEWEST = 64, 30
"""How many parts the longest block has that is looked for; and a repetition of how many parts, at
most, is walked part by part, which is as fast."""


def _blocks_of(step: Any) -> Iterator[Blocks | Repeat]:
    """What repeats, and the parts between as blocks that are there once."""
    for kind, items in groupby(step, type):
        if kind is Repeat:
            yield from items
            continue
        parts = tuple(items)
        marks = [(part.phase, id(part.operations), not part.ready) for part in parts]
        alone = start = 0
        while start < len(parts):
            length, count = _repetition(marks, start)
            end = start + length * count
            if count > 1:
                if alone < start:
                    yield _blocks(parts[alone:start], 1)
                yield _blocks(parts[start:end], count)
                alone = end
            start = end
        if alone < start:
            yield _blocks(parts[alone:], 1)


def _blocks(parts, count):
    distinct = {id(p.operations): p.operations for p in parts[: len(parts) // count]}
    every = chain.from_iterable(map(expanded, distinct.values()))
    waited = (o.axis for o in every if isinstance(o, (Collective, Wait)))
    return Blocks(parts, count, frozenset(waited))


def _repetition(marks, start):
    """(length, count) of the repetition from ``start`` on that covers most; (1, 1) of none."""
    best, left = (1, 1), len(marks) - start
    for length in range(1, min(LONGEST, left // 3) + 1) if left > FEWEST else ():
        if marks[start + length] != marks[start]:
            continue
        one, count = marks[start : start + length], 1
        while one == marks[start + count * length : start + (count + 1) * length]:
            count += 1
        if count > 2 and count * length > max(FEWEST, best[0] * best[1]):
            best = length, count
    return best


def ready_order(step: Step) -> list[str]:
    """Parameter names in the order in which the step completes their gradients."""
    return [name for part, _ in flat(step) for name in part.ready]


def flat(step: Step) -> Iterator[tuple[Part, int]]:
    """Yield (`Part`, number of repetitions) for the parts of a step."""
    for item in step:
        if isinstance(item, Repeat):
            yield from ((part, times * item.count) for part, times in flat(item.parts))
        else:
            yield item, 1
