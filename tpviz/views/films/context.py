"""One attention over sequences that are cut, rank by rank on a clock, or as a trace has it.

A rank's operations are those of `tpviz.schemes.context.step`, each rank with its own blocks, and
the times those of `tpviz.cluster.clock.cost.rates`, with which a step is predicted. A message
starts once both ends have issued it and the one before it has come (derived). No torch.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tpviz.cluster.clock.cost import rates
from tpviz.core.mesh import Mesh
from tpviz.core.step import RING_SHIFT, Collective, Issue, Kernel, Simple, Wait, expanded
from tpviz.schemes.context.sequence import SequenceCut

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.cluster.clock.queues import Transfer
    from tpviz.core.trace import Trace
    from tpviz.core.workload import GPT
    from tpviz.schemes.context.strategy import Context

PHASES = ("forward", "backward")
INSIDE = 1  # the step of Ulysses' film in which it computes
Span = tuple[float, float]


class RankLane(NamedTuple):
    """What a rank does, s: (start, end, position) of its kernels, (start, end) of the messages that
    it receives, and of what kernels wait for them."""

    computing: tuple[tuple[float, float, int], ...]
    messages: tuple[Span, ...]
    exposed: tuple[Span, ...]

    @property
    def end(self) -> float:
        """When it has done."""
        return max((span[1] for part in self for span in part), default=0.0)


class AttentionFilm(NamedTuple):
    """One attention: how its sequences are cut, a lane of each rank, and where times come from."""

    cut: SequenceCut
    lanes: tuple[RankLane, ...]
    badge: str

    @property
    def seconds(self) -> float:
        """When the last rank has done."""
        return max(lane.end for lane in self.lanes)

    @property
    def computing(self) -> list[float]:
        """Seconds of each rank's kernels."""
        return [sum(end - start for start, end, _ in lane.computing) for lane in self.lanes]

    @property
    def exposed(self) -> list[float]:
        """Seconds that each rank's kernels wait."""
        return [sum(end - start for start, end in lane.exposed) for lane in self.lanes]

    @property
    def steps(self) -> int:
        """Steps of its film: positions of the ring, or Ulysses' exchange, attention, exchange."""
        return 3 if self.cut.kind == "ulysses" else self.cut.cp


def predicted(s: "Context", w: "GPT", cluster: "Cluster", phase: str = "forward") -> AttentionFilm:
    """The attention of one layer and microbatch, in a phase of `PHASES`, on a cluster."""
    cut, part = s.sequence or SequenceCut(1, s.kind), s.local(w)
    at = s.layout
    cuts = at.i * (at.s if at.a3 else 1)
    sizes = part, w.heads // cuts, w.num_kv_heads // cuts
    programs, positions = [], []
    for rank in range(cut.cp):
        programs.append([*expanded(cut.operations(*sizes, rank)[PHASES.index(phase)])])
        positions.append(positions_of(cut, rank))
    pace = rates(cluster, Mesh(s.axes), w.dtype, s.parent_axis, s.device(w, cluster))
    return AttentionFilm(cut, tuple(_March(programs, positions, *pace).lanes()), "predicted")


def positions_of(cut: SequenceCut, rank: int) -> list[int]:
    """The position of each of a rank's kernels, in order."""
    if cut.kind == "ulysses":
        return [INSIDE]
    return [p for p, other in enumerate(cut.passing(rank)) for _ in cut.blocks(rank, other)]


class _March:
    """All ranks' operations on one clock: message m of a ring goes from rank r + 1 to rank r."""

    def __init__(
        self,
        programs: Sequence[Sequence[Simple]],
        positions: Sequence[Sequence[int]],
        seconds: Callable[[Kernel], float],
        moved: Callable[[Collective], "Transfer"],
    ):
        self.seconds, self.moved, self.num = seconds, moved, len(programs)
        self.todo = [deque(program) for program in programs]
        self.positions = [deque(each) for each in positions]
        self.now = [0.0] * self.num
        self.issued: list[list[tuple[float, Collective]]] = [[] for _ in programs]
        self.computing, self.exposed = ([[] for _ in programs] for _ in range(2))

    def lanes(self):
        while any(self.todo):
            done = [self._run(rank) for rank in range(self.num)]
            assert any(done), "ranks wait for each other"
        for rank in range(self.num):
            spans = [self._span(number, rank) for number in range(len(self.issued[rank]))]
            yield RankLane(tuple(self.computing[rank]), tuple(spans), tuple(self.exposed[rank]))  # pyright: ignore[reportArgumentType]

    def _run(self, rank):
        """Do what a rank can; how many operations that were."""
        todo, before = self.todo[rank], len(self.todo[rank])
        while todo and self._do(rank, todo[0]):
            todo.popleft()
        return before - len(todo)

    def _do(self, rank, operation):
        """Whether it is done, or must wait until others have issued."""
        if isinstance(operation, Kernel):
            start = self.now[rank]
            self.now[rank] += self.seconds(operation)
            self.computing[rank].append((start, self.now[rank], self.positions[rank].popleft()))
            return True
        if isinstance(operation, Issue):
            self.issued[rank].append((self.now[rank], operation.move))
            return True
        if isinstance(operation, Collective):
            self.todo[rank].popleft()
            self.todo[rank].extendleft((Wait(operation.axis), Issue(operation), operation))
            return True
        last = len(self.issued[rank]) - operation.in_flight - 1
        return last < 0 or self._wait(rank, last)

    def _wait(self, rank, number):
        ring = self.issued[rank][number][1].collective == RING_SHIFT
        spans = [
            self._span(number, to) for to in ((rank, (rank - 1) % self.num) if ring else [rank])
        ]
        if None in spans:
            return False
        start, end = self.now[rank], max(span[1] for span in spans)  # pyright: ignore[reportOptionalSubscript]
        if end > start:
            self.exposed[rank].append((start, end))
            self.now[rank] = end
        return True

    def _span(self, number, rank):
        """(start, end) of a message to a rank; None where somebody has not issued it yet."""
        if len(self.issued[rank]) <= number:
            return None
        move = self.issued[rank][number][1]
        ring = move.collective == RING_SHIFT
        ends = (rank, (rank + 1) % self.num) if ring else range(self.num)
        if any(len(self.issued[end]) <= number for end in ends):
            return None
        before = self._span(number - 1, rank) if number else (0.0, 0.0)
        if before is None:
            return None
        sent, ready = self.moved(move), max(self.issued[end][number][0] for end in ends)
        start = max(ready, before[1])
        return start, start + sent.seconds * (sent.queued if before[1] > ready else 1.0)


def traced(trace: "Trace", cut: SequenceCut, phase: str = "forward") -> AttentionFilm:
    """The first attention of a trace's last step, of the ranks that share rank 0's sequences.

    Raises ``ValueError`` where the trace has none.
    """
    ranks = Mesh(trace.meta["mesh"]["axes"]).group(0, "cp") if cut.cp > 1 else [0]
    c = trace.whole().select(phase=phase)
    inside = np.char.endswith(c["layer"].astype(str), ".attention")
    inside &= np.isin(c["kind"], ("compute", "comm", "wait"))
    inside &= (c["axis"] == "cp") | (c["axis"] == "")
    if not inside.any():
        raise ValueError(f"the trace has no {phase} of an attention: run with a strategy that has")
    for name in ("step", "microbatch"):
        inside &= c[name] == c[name][inside].max()
    inside &= c["layer"] == min(
        c["layer"][inside].tolist(), key=lambda name: int(name.split(".")[1])
    )
    start = c["start"][inside & np.isin(c["rank"], ranks)].min()
    spans = lambda chosen: zip(*((c[end][chosen] - start).tolist() for end in ("start", "end")))
    lanes = []
    for rank in ranks:
        own = inside & (c["rank"] == rank)
        computing = own & (c["kind"] == "compute")
        if cut.kind != "ulysses":
            computing &= c["chunk"] >= 0
        at = np.where(c["chunk"][computing] < 0, INSIDE, c["chunk"][computing]).tolist()
        messages = own & (c["kind"] == "comm") & (c["name"] != "send")
        done = ((*span, position) for span, position in zip(spans(computing), at))
        lanes.append(
            RankLane(tuple(done), tuple(spans(messages)), tuple(spans(own & (c["kind"] == "wait"))))
        )
    return AttentionFilm(cut, tuple(lanes), trace.badge)
