"""`Microscope`: the messages of one collective as they were recorded, and its arithmetic. No torch.

Words as in nccl-tests: algbw = S / t, how fast the collective looks to the program; busbw = algbw
times 2(n-1)/n (all_reduce) or (n-1)/n (all_gather, reduce_scatter, all_to_all), the speed that each
rank's link would need if the collective were done with the fewest bytes, one link a rank.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tpviz.cluster import Cluster
from tpviz.cluster.clock.flows import Flows
from tpviz.cluster.collectives import cost
from tpviz.core.show import Drawn, figure_of
from tpviz.core.trace import Trace
from tpviz.core.trace.ledger import wire_bytes


class ArrivedMessage(NamedTuple):
    """One message that arrived: a recorded send and the receive that belongs to it.

    chunk is its index in the sender's buffer, slot in the receiver's; value is its first number;
    phase is "reduce" (the receiver adds it) or "copy"; start (of the send) and end (of the receive)
    are seconds on the clock of the trace.
    """

    step: int
    sender: int
    receiver: int
    chunk: int
    slot: int
    bytes: int
    value: float
    phase: str
    start: float
    end: float


class BufferCell(NamedTuple):
    """One slot of a rank's buffer: the chunk in it, that chunk's first number, and the ranks whose
    data it holds or sums."""

    chunk: int
    value: float
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Microscope(Drawn):
    """A collective seen message by message.

    ``steps[i]`` are the `ArrivedMessage`s of step i, from the recorded ``trace``;
    ``values[i][rank]`` the first number of each chunk before step i, ``values[-1]`` at the end.
    payload is S, the bytes of the full tensor; error the largest difference from what
    torch.distributed's own collective gave.
    """

    collective: str
    algorithm: str
    formula: str
    layout: str
    world_size: int
    payload: int
    trace: Trace = field(repr=False)
    steps: tuple[tuple[ArrivedMessage, ...], ...] = field(repr=False)
    values: list[list[list[float]]] = field(repr=False)
    error: float = 0.0
    cluster: Cluster | None = None

    # -- worked arithmetic -------------------------------------------------------------------------
    @property
    def messages(self) -> list[ArrivedMessage]:
        """All messages, in order of their steps."""
        return [message for step in self.steps for message in step]

    @property
    def sent(self) -> list[int]:
        """Bytes that each rank has sent."""
        counts = Counter()
        for message in self.messages:
            counts[message.sender] += message.bytes
        return [counts[rank] for rank in range(self.world_size)]

    @property
    def seconds(self) -> float:
        """t: from the start of the first message to the end of the last."""
        return max(m.end for m in self.messages) - min(m.start for m in self.messages)

    @property
    def step_seconds(self) -> list[float]:
        """Seconds of each step: first start to last end of its messages."""
        return [max(m.end for m in step) - min(m.start for m in step) for step in self.steps]

    @property
    def algbw(self) -> float:
        """S / t in bytes/s."""
        return self.payload / self.seconds

    @property
    def bus_factor(self) -> float:
        """busbw / algbw: 2(n-1)/n for an all_reduce, else (n-1)/n."""
        return wire_bytes(self.collective, 1, self.world_size)

    @property
    def busbw(self) -> float:
        """algbw times `bus_factor` in bytes/s."""
        return self.algbw * self.bus_factor

    @property
    def cost(self) -> tuple[int, float]:
        """(hops, bytes through the busiest port) by the formula of `tpviz.cluster.collectives`."""
        return cost(self.formula, self.collective, self.payload, self.world_size)

    @property
    def predicted(self) -> list[float] | None:
        """Seconds of each step on the cluster, or None without one.

        Each message takes a hop's latency and then its bytes at the rate that its link leaves it,
        by the rule that the emulator keeps to as well.
        """
        return None if self.cluster is None else [self._predict(step) for step in self.steps]

    def _predict(self, step):
        assert self.cluster is not None
        flows, volumes, end = Flows(), defaultdict(list), 0.0
        for message in step:
            volumes[message.sender, message.receiver].append(message.bytes)
        for pair, sizes in volumes.items():  # messages of one pair follow each other
            shift = pair[1] - pair[0]
            link = self.cluster.link(pair, self.world_size, shift)
            flows.add(pair, shift, link, len(sizes) * link.latency, sum(sizes), 0.0)
        while flows.next_time() is not None:
            flow = flows.step()
            end = max(end, flow.end if flow else 0.0)  # pyright: ignore[reportArgumentType]
        return end

    @property
    def cluster_seconds(self) -> float | None:
        """Seconds by the formula on the cluster's own links for the whole group, or None."""
        if self.cluster is None:
            return None
        link = self.cluster.link(range(self.world_size), self.world_size)
        hops, volume = self.cost
        return hops * link.latency + volume / link.bandwidth

    # -- what the buffers hold ---------------------------------------------------------------------
    @property
    def cells(self) -> list[list[list[BufferCell | None]]]:
        """``cells[i][rank]``: for each place a `BufferCell` or None (empty), before step i, or
        last.

        Which ranks are in a sum is followed through the messages; the numbers are those noted.
        """
        held: list[list[Any]] = [self._at_first(rank) for rank in range(self.world_size)]
        frames = [self._frame(held, 0)]
        for number, step in enumerate(self.steps):
            moves = [(m, held[m.sender][m.chunk]) for m in step]
            for message, (chunk, ranks) in moves:
                here = held[message.receiver]
                if message.phase == "reduce":
                    ranks = tuple(sorted((*here[message.slot][1], *ranks)))
                here[message.slot] = chunk, ranks
            frames.append(self._frame(held, number + 1))
        return frames

    def _at_first(self, rank):
        """What a rank starts with: its own chunk (all_gather), or something in every place."""
        places, n = len(self.values[0][rank]), self.world_size
        if self.collective == "all_gather":
            return [(rank, (rank,)) if place == rank else None for place in range(places)]
        if self.collective == "all_to_all":
            received = [(rank, (rank,)) if place == rank else None for place in range(n)]
            return [(place, (rank,)) for place in range(n)] + received
        return [(place, (rank,)) for place in range(places)]

    def _frame(self, held, number):
        return [
            [
                here and BufferCell(here[0], value, here[1])
                for here, value in zip(held[rank], self.values[number][rank])
            ]
            for rank in range(self.world_size)
        ]

    # -- words and pictures ------------------------------------------------------------------------
    def __repr__(self):
        return (
            f"<Microscope {self.algorithm} {self.collective}, {self.world_size} ranks, "
            f"{self.payload} bytes, {len(self.steps)} steps, {len(self.messages)} messages>"
        )

    def to_svg(self, step: int = 0, **options: Any) -> str:
        """Buffers before a step and the step's messages in flight; see `tpviz.views.figures`.

        step: 0 to the number of steps, where everything has arrived.
        """
        figure = figure_of(self)
        return figure.film_svg(figure.microscope_scene(self), step, **options)

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: each message, its step, its bytes and its number."""
        return figure_of(self).to_table(self)

    def arithmetic(self) -> list[str]:
        """Lines that compute steps, bytes, algbw and busbw with the numbers of this run."""
        return figure_of(self).arithmetic(self)

    def describe(self) -> str:
        """The collective in words, with its arithmetic."""
        return figure_of(self).describe(self)
