"""One attention over sequences that are cut, rank by rank, as a trace has it: of a run, or of the
simulator's clock (`tpviz.cluster.clock.replay`), on which ranks do the operations of
`tpviz.schemes.context.step`, each with its own blocks. No torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tpviz.cluster import Cluster
from tpviz.cluster.clock.program import Capture
from tpviz.cluster.clock.replay import replay
from tpviz.core.mesh import Mesh
from tpviz.core.step import RING_SHIFT, Collective, Issue, Kernel, Simple, Wait, expanded
from tpviz.core.trace import Event, Trace
from tpviz.core.trace.members import members_text
from tpviz.core.workload import GPT
from tpviz.schemes.context.sequence import SequenceCut
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
    def begin(self) -> float:
        """When it is there."""
        return min((span[0] for part in self for span in part), default=0.0)

    @property
    def end(self) -> float:
        """When it has done."""
        return max((span[1] for part in self for span in part), default=0.0)


class AttentionFilm(NamedTuple):
    """One attention: how its sequences are cut, each rank's lane, whence times come, its phase."""

    cut: SequenceCut
    lanes: tuple[RankLane, ...]
    badge: str
    phase: str

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


def simulated(s: Context, w: GPT, cluster: Cluster, phase: str = "forward") -> AttentionFilm:
    """The attention of one layer and microbatch, in a phase of `PHASES`, on a cluster: what
    `tpviz.simulate` gives for it. Ranks of a "ring" come to the first layer's backward one after
    another, as the other layers leave them."""
    cut, part, at = s.sequence or SequenceCut(1, s.kind), s.local(w), s.layout
    cuts, mesh = at.i * (at.s if at.a3 else 1), Mesh(s.axes)
    sizes = part, w.heads // cuts, w.num_kv_heads // cuts
    layers = w.layers if (cut.kind, phase) == ("ring", "backward") else 1
    ring, traces = mesh.group(0, "cp") if cut.cp > 1 else [0], {}
    for place, rank in enumerate(ring):
        forward, backward = ([*expanded(each)] for each in cut.operations(*sizes, place))
        rows = _Rows(cut, ring, place, part)
        for layer in range(layers):
            rows.run(forward, "forward", layer)
        for layer in reversed(range(layers)):
            rows.run(backward, "backward", layer)
        traces[rank] = Trace.from_events(rows)
    model = {rank: ring[mesh.coords(rank).get("cp", 0)] for rank in range(mesh.size)}
    devices = dict.fromkeys(ring, s.device(w, cluster))
    return traced(replay(Capture(s.axes, traces, model), cluster, devices=devices), cut, phase)


def positions_of(cut: SequenceCut, lengths: tuple[int, ...], rank: int) -> list[int]:
    """The position of each of a rank's kernels, in order."""
    if cut.kind == "ulysses":
        return [INSIDE] * len(lengths)
    ranks = enumerate(cut.passing(rank))
    return [p for p, other in ranks for _ in cut.rectangles(lengths, rank, other)]


class _Rows(list[Event]):
    """The program of the rank at a place of the ring, in order, as a `Capture` has it."""

    def __init__(self, cut: SequenceCut, ring: Sequence[int], place: int, w: GPT):
        super().__init__()
        self.cut, self.ring, self.place, self.w = cut, ring, place, w
        self.here: dict[str, Any] = {}

    def run(self, operations: Iterable[Simple], phase: str, layer: int) -> None:
        """Append one attention."""
        self.here = {"phase": phase, "layer": f"blocks.{layer}.attention"}
        positions = iter(positions_of(self.cut, self.w.lengths, self.place))
        issued, sent = [], []  # messages; those whose other half has come
        for op in operations:
            if isinstance(op, Kernel):
                work = {"flops": op.flops, "bytes": op.bytes, "dtype": self.w.dtype}
                self._add("compute", "attention", chunk=next(positions), **work)
            elif isinstance(op, Wait):
                sent += self._wait(issued[-1 - op.in_flight])
            else:
                issued.append(self._issue(op.move if isinstance(op, Issue) else op))
                sent = [each for half in sent for each in self._wait([half])]
                sent += self._wait(issued[-1]) if isinstance(op, Collective) else []
        for half in sent:
            self._wait([half])

    def _issue(self, move):
        """The rows of a collective, or of a message from the rank above and one to that below."""
        ways = {move.collective: self.ring}
        if move.collective == RING_SHIFT:
            above, here, below = (self.ring[(self.place + by) % self.cut.cp] for by in (1, 0, -1))
            ways = {"recv": (above, here), "send": (here, below)}
        axis = {"axis": move.axis, "lane": f"comm/{move.axis}", "bytes": move.payload}
        return [
            self._add("comm", name, members=members_text(ranks), **axis)
            for name, ranks in ways.items()
        ]

    def _wait(self, rows):
        """Wait for the first; what is left: a message that was sent is waited for once the next
        one is in flight, as `tpviz.schemes.ring.RingMessages` does."""
        first, *others = rows
        same = {name: getattr(first, name) for name in ("axis", "members")}
        self._add("wait", f"wait {first.name}", waits_for=first.id, **same)
        return others

    def _add(self, kind, name, **columns):
        number = len(self)
        at = {"id": number, "start": number, "end": number + 1, "rank": self.ring[self.place]}
        self.append(Event(kind=kind, name=name, **at, **self.here, **columns))
        return self[-1]


def traced(
    trace: Trace, cut: SequenceCut, phase: str = "forward", axes: Mapping[str, int] | None = None
) -> AttentionFilm:
    """The first attention of a trace's last step, of the ranks that share rank 0's sequences.

    axes : of the mesh; None: the trace tells them. Raises ``ValueError`` where it has none.
    """
    mesh = Mesh(dict(trace.meta["mesh"]["axes"] if axes is None else axes))
    ranks = mesh.group(0, "cp") if cut.cp > 1 else [0]
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
    return AttentionFilm(cut, tuple(lanes), trace.badge, phase)
