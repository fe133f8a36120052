"""Cost: a rank's step as segments in time order, and how one axis hides behind the rest.

A strategy's formula (`Strategy.cost`) is a list of `Segment`. Within one, a collective is waited
for at once or when the kernels issued after it are done; nothing is under way at its end. So the
step's time is the sum of its segments, and an outer strategy can put its own collectives beside an
inner one's segments (`Beside`): they queue on the group's one lane, which is max-plus arithmetic.

>>> forward = Stretch().kernel(2.0).blocking(Transfer("tp", 1.0))
>>> backward = Stretch().kernel(2.0).covered(Transfer("tp", 3.0), 2.0)
>>> segments = [forward.segment("forward"), backward.segment("backward")]
>>> [s.seconds for s in segments], parts(segments)["exposed communication"]
([3.0, 5.0], 2.0)
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .cluster import Cluster
    from .mesh import Mesh

PARTS = ("compute", "exposed communication", "latency", "bubble")


class Transfer(NamedTuple):
    """One collective of a mesh axis, alone on its links: seconds, and how much of it is latency."""

    axis: str
    seconds: float
    latency: float = 0.0


def transfer(
    cluster: "Cluster", mesh: "Mesh", axis: str, collective: str, payload: float
) -> Transfer:
    """The `Transfer` of ``payload`` bytes (the full tensor) over a mesh axis, all groups at it."""
    size = mesh.axes[axis]
    if size == 1:
        return Transfer(axis, 0.0)
    link = cluster.axis_link(mesh, axis)
    latency, sending = cluster.collective_parts(collective, payload, size, link)
    return Transfer(axis, latency + sending, latency)


class Segment(NamedTuple):
    """A stretch of a rank's step, in seconds of the cluster.

    layer : the module's name. exposed : {axis: kernels wait for it}. hidden : {axis: it runs while
    they do not}: under kernels, or while they wait for another axis. latency : the part of
    ``exposed`` that is hops and not bytes. bubble : nothing to do (pipelines). ready : parameters
    whose gradients are complete at its end, in the order of their arrival.
    """

    phase: str
    layer: str = ""
    compute: float = 0.0
    exposed: dict[str, float] = {}
    hidden: dict[str, float] = {}
    latency: float = 0.0
    bubble: float = 0.0
    ready: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """How long it takes: kernels, waiting and bubble."""
        waiting = sum(self.exposed.values()) if self.exposed else 0.0
        return self.compute + waiting + self.bubble


class Stretch:
    """What a segment is made of: kernels, and collectives before, after or under them."""

    def __init__(self):
        self.compute = self.latency = 0.0
        self.exposed, self.hidden = {}, {}

    def kernel(self, *seconds: float) -> "Stretch":
        """Kernels, one after another."""
        self.compute += sum(seconds)
        return self

    def blocking(self, moved: Transfer) -> "Stretch":
        """A collective that kernels wait for from its start."""
        return self._add(moved, moved.seconds)

    def covered(self, moved: Transfer, seconds: float) -> "Stretch":
        """A collective that starts with kernels of ``seconds`` and is waited for after them."""
        self.compute += seconds
        return self._add(moved, max(0.0, moved.seconds - seconds))

    def chunked(self, seconds: float, moved: Transfer, chunks: int) -> "Stretch":
        """``chunks`` times a kernel, then a collective that the next kernels need not wait for.

        Two stages of a pipeline with equal items: T(C) = max(C g + a, g + C a), g and a of one
        chunk (derived; references: ATP's chunk-based overlap).
        """
        self.compute += chunks * seconds
        whole = Transfer(moved.axis, chunks * moved.seconds, chunks * moved.latency)
        ends = max(chunks * seconds + moved.seconds, seconds + whole.seconds)
        return self._add(whole, ends - chunks * seconds)

    def lanes(self) -> "Lanes":
        """For what the rules above do not say: kernels and collectives in their order, `Lanes`."""
        return Lanes(self)

    def _add(self, moved, exposed):
        axis, seconds, latency = moved
        if seconds:
            self.exposed[axis] = self.exposed.get(axis, 0.0) + exposed
            self.hidden[axis] = self.hidden.get(axis, 0.0) + seconds - exposed
            self.latency += latency * exposed / seconds
        return self

    def segment(self, phase: str, layer: str = "", ready: tuple[str, ...] = ()) -> Segment:
        """These parts as a `Segment`."""
        return Segment(
            phase, layer, self.compute, self.exposed, self.hidden, self.latency, 0.0, ready
        )


class Lanes:
    """A stretch's kernels and collectives in the order of the program, the axes one queue each.

    What is issued is waited for before `done`.
    """

    def __init__(self, stretch: Stretch):
        self.stretch, self.now = stretch, 0.0
        self.free, self.moved, self.waited = {}, {}, {}

    def kernel(self, seconds: float) -> None:
        """A kernel, after what was waited for."""
        self.stretch.compute += seconds
        self.now += seconds

    def issue(self, moved: Transfer | None) -> tuple[str, float] | None:
        """Queue a collective (None: nothing); what to give to `wait`."""
        if moved is None:
            return None
        axis, seconds, latency = moved
        self.free[axis] = max(self.now, self.free.get(axis, 0.0)) + seconds
        total = self.moved.get(axis, (0.0, 0.0))
        self.moved[axis] = total[0] + seconds, total[1] + latency
        return axis, self.free[axis]

    def wait(self, issued: tuple[str, float] | None) -> None:
        """Kernels wait for a collective."""
        if issued and issued[1] > self.now:
            self.waited[issued[0]] = self.waited.get(issued[0], 0.0) + issued[1] - self.now
            self.now = issued[1]

    def done(self) -> None:
        """Add to the stretch how much of each axis was waited for."""
        for axis, (seconds, latency) in self.moved.items():
            self.stretch._add(Transfer(axis, seconds, latency), self.waited.get(axis, 0.0))


class Beside:
    """An inner step's segments with collectives of one more axis beside them (derived).

    The axis's group has one queue: collective k ends at end_k = max(issued_k, end_{k-1}) + t_k.
    """

    def __init__(self, axis: str):
        self.axis, self.now, self.free = axis, 0.0, 0.0
        self.segments, self.ends, self.queue = [], [], []

    def run(self, segment: Segment) -> None:
        """Let the rank do a segment of the inner strategy."""
        self._append(segment, self.now + segment.seconds)

    def _append(self, segment, end):
        self.segments.append(segment)
        self.ends.append(end)
        self.now = end

    def issue(self, moved: Transfer) -> float:
        """Queue a collective now; what to give to `wait`."""
        start = self.now if self.now > self.free else self.free
        self.free = start + moved.seconds
        self.queue.append((start, self.free, moved.latency))
        return self.free

    def wait(self, end: float, phase: str, layer: str = "") -> None:
        """Kernels wait until ``end``: a segment of its own, if it is later than now."""
        if end > self.now:
            exposed, latency = {self.axis: end - self.now}, self._latency(end)
            self._append(Segment(phase, layer, 0.0, exposed, {}, latency), end)

    def _latency(self, end):
        """Of the time from now to ``end``, what the collectives under way spend on hops."""
        found = 0.0
        for start, stop, latency in reversed(self.queue):
            if stop <= self.now:
                break
            part = min(stop, end) - max(start, self.now)
            if part > 0:
                found += latency * part / (stop - start)
        return found

    def finish(self) -> list[Segment]:
        """All segments, each told how much of the queue it hides."""
        found, start, queue, at, count = [], 0.0, self.queue, 0, len(self.queue)
        for segment, end in zip(self.segments, self.ends):
            hidden = 0.0
            while at < count and queue[at][0] < end:
                begun, done, _ = queue[at]
                shared = (done if done < end else end) - (begun if begun > start else start)
                if shared > 0:
                    hidden += shared
                if done > end:
                    break
                at += 1
            if hidden and self.axis not in segment.exposed:  # its own waiting hides nothing
                segment = segment._replace(hidden={**segment.hidden, self.axis: hidden})
            found.append(segment)
            start = end
        return found


def parts(segments: Sequence[Segment]) -> dict[str, float]:
    """{part: seconds} of `PARTS`, in that order; exposed communication without its latency."""
    exposed = sum(sum(s.exposed.values()) for s in segments)
    latency = sum(s.latency for s in segments)
    values = sum(s.compute for s in segments), exposed - latency, latency
    return dict(zip(PARTS, (*values, sum(s.bubble for s in segments))))


def by_axis(segments: Iterable[Segment], which: str) -> dict[str, float]:
    """{axis: seconds} of "exposed" or "hidden", summed over the segments."""
    found = Counter()
    for segment in segments:
        found.update(getattr(segment, which))
    return dict(found)


class Memory(dict):
    """Bytes of one rank by kind: parameters, gradients, optimizer, activations.

    Each is its own peak within a step. ``total``, their sum, is what a device must have at most:
    the peaks need not meet (activations are highest where the first gradients arrive).
    """

    @property
    def total(self) -> float:
        """Sum of the kinds, bytes."""
        return sum(self.values())


def show_seconds(value: float) -> str:
    """12.3 ms, 450 us, 1.2 s."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= scale * 0.9995:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns" if value else "0 s"


def show_bytes(value: float) -> str:
    """1.5 kB, 2 MB: decimal."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= scale * 0.9995:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.4g} B"
