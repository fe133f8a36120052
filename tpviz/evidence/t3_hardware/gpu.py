"""One GPU: workgroups on slots, their reads and stores, the tracker, the DMA engine, its links.

A workgroup reads its panels of A and B a slice at a time, computes one while it reads the next, and
stores its tile in parts. At an edge it reads and stores what there is, and computes a whole tile.
What a store does next is in the chunk's rule (`maps`).
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from math import nan
from random import Random
from typing import TYPE_CHECKING

from .dram import COMM, READ, STORE, Dram
from .llc import Cache
from .maps import Dma, Remote
from .tracker import Table

if TYPE_CHECKING:
    import numpy as np

    from .dram import EventClock
    from .machine import Machine
    from .maps import Goal, Rule
    from .payload import Payload
    from .tiling import Tiling


class Workgroup:
    """A tile in flight in a slot: slices read, panels missing, when its slot is free."""

    __slots__ = ("free", "missing", "slice", "tile")

    def __init__(self, tile: int, now: float):
        self.tile, self.free, self.slice, self.missing = tile, now, 0, 0


class Gpu:
    """rank : whose map ``rules`` ((chunk, rule), ...) is; None for a plain GEMM. peers(to) : the
    `Gpu` and {tile: tile there} that stand for rank ``to``. payload : `payload.Payload` or None.

    times : {what: per part (``start`` and ``computed``: per tile) seconds, nan where it never is}.
    """

    peers: "Callable[[int], tuple[Gpu, Sequence[int]]]"

    def __init__(
        self,
        clock: "EventClock",
        tiling: "Tiling",
        machine: "Machine",
        policy: str,
        rules: "Sequence[tuple[int, Rule | None]]",
        goal: "Goal | None" = None,
        rank: int = 0,
        bypass: bool = True,
        contention: bool = True,
        payload: "Payload | None" = None,
    ):
        self.clock, self.tiling, self.machine, self.rank = clock, tiling, machine, rank
        self.gemm, self.goal, self.payload = tiling.gemm, goal, payload
        self.waves = self.gemm.wavefronts
        self.rules = dict(rules)
        self.position = {chunk: j for j, (chunk, _) in enumerate(rules)}
        computed = [c for c, _ in rules if goal is None or goal.computes == "all" or c == rank]
        self.order = [t for c in computed for t in tiling.chunks[c]]
        self.cache = Cache(machine.llc, machine.replacement)
        self.bypass = bypass
        self.memory = Dram(clock, machine, policy if contention else "round_robin")
        # without contention each stream has a memory of its own, and an update costs as a write
        self.other = self.memory if contention else Dram(clock, machine, "fifo")
        self.update = machine.update if contention else 1.0
        sums = goal is not None and goal.sums
        self.local = ("update_local", self.update) if sums else ("gemm_write", 1.0)
        self.table = Table(machine.tracker_sets, machine.tracker_records)
        self.parked = defaultdict(dict)  # per set {part: [(since, update)]}
        self.stalled = 0.0
        self.triggered, self.reading = deque(), 0
        self.links, self.sent = {}, []
        self.random = Random(f"{machine.seed} {rank}")
        self.next = self.left = 0
        self.finished = self.complete = 0.0
        parts = tiling.total * self.waves
        self.times = {
            what: [nan] * parts for what in ("stored", "second", "triggered", "sent", "arrived")
        }
        self.times |= {what: [nan] * tiling.total for what in ("start", "computed")}
        tile_flops = 2 * self.gemm.tile[0] * self.gemm.tile[1] * self.gemm.k
        self.slice_seconds = tile_flops / machine.slices / (machine.rate / machine.slots)
        each = self.gemm.k * self.gemm.itemsize / machine.slices
        self.panels = tuple([extent * each for extent in side] for side in tiling.extents)

    def begin(self) -> None:
        """The first wave: a workgroup in every slot."""
        self._stage(0.0)

    # -- the GEMM

    def _stage(self, now):
        for _ in range(self.machine.slots):
            self._launch(now)

    def _launch(self, now):
        if self.next < len(self.order):
            group = Workgroup(self.order[self.next], now)
            self.next += 1
            self.times["start"][group.tile] = now
            self._fetch(now, group)

    def _fetch(self, now, group):
        tile, tiling, cache = group.tile, self.tiling, self.cache
        for side, index in ((0, tiling.rows[tile]), (1, tiling.columns[tile])):
            key = side, index, group.slice
            panel = cache.get(key)
            if panel is None:
                panel = cache.put(key, self.panels[side][index])
                group.missing += 1
                panel.waiting.append(group)  # pyright: ignore[reportOptionalMemberAccess]
                self.memory.ask(now, READ, "gemm_read", panel.bytes, 1.0, self._read, panel)
            elif panel.waiting is not None:
                group.missing += 1
                panel.waiting.append(group)
        if not group.missing:
            self._compute(now, group)

    def _read(self, now, panel):
        groups, panel.waiting = panel.waiting, None
        for group in groups:
            group.missing -= 1
            if not group.missing:
                self._compute(now, group)

    def _compute(self, now, group):
        begin = max(now, group.free)
        group.free = begin + self.slice_seconds
        group.slice += 1
        if group.slice == self.machine.slices:
            self.clock.at(group.free, self._computed, group.tile)
        elif begin > now:
            self.clock.at(begin, self._fetch, group)
        else:
            self._fetch(now, group)

    def _computed(self, now, tile):
        self.times["computed"][tile] = now
        self.left += 1
        if self.left == min(self.machine.slots, len(self.order)):  # the first wave is over
            self.memory.limit = self.machine.threshold(self.memory.busy / now)
        self.finished = max(self.finished, now)
        self._store(now, tile)
        if not self.machine.lockstep:
            self._launch(now)
        elif self.left == self.next:
            self._stage(now)

    def _store(self, now, tile):
        rule = self.rules[self.tiling.chunk_of[tile]]
        if not self.bypass:
            self.cache.put(("output", tile), sum(self.tiling.sizes[tile])).waiting = None
        for wave, bytes in enumerate(self.tiling.sizes[tile]):
            part = tile * self.waves + wave
            if isinstance(rule, Remote):
                value = self.payload and self.payload.part(self.rank, tile, wave)
                self._send(now, rule, part, bytes, value)
            elif rule is None:
                self.memory.ask(now, STORE, "gemm_write", bytes, 1.0, self._written, part)
            else:
                self._admit(now, (STORE, *self.local, part, None, None))

    def _written(self, now, part):
        self.times["stored"][part] = now
        self.finished = max(self.finished, now)

    # -- updates, from here and from others

    def _admit(self, now, update):
        """Enqueue an update if the tracker has a record for its part, park it if not."""
        part = update[3]
        if part in self.table.left:
            self._enqueue(now, update)
            return
        place = part // self.waves % self.table.sets
        self.parked[place].setdefault(part, []).append((now, update))
        self.table.stalls += not self._let_in(now, place, part)

    def _threshold(self, part):
        """The updates that a part waits for."""
        rule = self.rules[self.tiling.chunk_of[part // self.waves]]
        return rule.updates * (self.tiling.ranks if self.goal.many else 1)  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]

    def _let_in(self, now, place, part, spill=False):
        """Whether the tracker has a record for a parked part, whose updates then go to memory."""
        if not self.table.admit(part // self.waves, part, self._threshold(part), now, spill):
            return False
        for since, update in self.parked[place].pop(part):
            self.stalled += now - since
            self._enqueue(now, update)
        return True

    def spill(self, now: float) -> bool:
        """Whether a parked part has all its updates: then one goes past the full tracker."""
        for place, waiting in self.parked.items():
            for part, updates in waiting.items():
                if len(updates) == self._threshold(part):
                    return self._let_in(now, place, part, spill=True)
        return False

    def _enqueue(self, now, update):
        stream, kind, cost, part, op, value = update
        bytes = self.tiling.sizes[part // self.waves][part % self.waves]
        memory = self.other if stream == COMM else self.memory
        memory.ask(now, stream, kind, bytes, cost, self._updated, (part, op, value))

    def _updated(self, now, update):
        part, op, value = update
        tile = part // self.waves
        if op is None:
            self.times["stored"][part] = now
            self.finished = max(self.finished, now)
        if self.payload:
            self.payload.write(self.rank, tile, part % self.waves, op, value)
        if not self.table.count(tile, part, now):
            return
        self.times["second"][part] = self.complete = now
        rule = self.rules[self.tiling.chunk_of[tile]]
        if isinstance(rule, Dma):
            self.times["triggered"][part] = now
            self.triggered.append(part)
            self._pump(now)
        self._unpark(now, tile % self.table.sets)

    def _unpark(self, now, place):
        for part in list(self.parked[place]):  # the first that came first
            if self.table.full(place):
                return
            self._let_in(now, place, part)

    def arrive(self, now: float, message: "tuple[int, str, tuple[int, np.ndarray] | None]") -> None:
        """An update or store from a peer: (part, op, value)."""
        part, op, value = message
        self.times["arrived"][part] = now
        cost = self.update if op == "update" else 1.0
        self._admit(now, (COMM, "update_incoming", cost, part, op, value))

    # -- the DMA engine and the links

    def _pump(self, now):
        while self.triggered:
            part = self.triggered[0]
            bytes = self.tiling.sizes[part // self.waves][part % self.waves]
            if self.reading and self.reading + bytes > self.machine.dma_buffer:
                return
            self.triggered.popleft()
            self.reading += bytes
            self.other.ask(now, COMM, "dma_read", bytes, 1.0, self._read_out, part)

    def _read_out(self, now, part):
        tile, wave = divmod(part, self.waves)
        rule = self.rules[self.tiling.chunk_of[tile]]
        value = self.payload and self.payload.read(self.rank, tile, wave)
        self._send(now, rule, part, self.tiling.sizes[tile][wave], value)

    def _send(self, now, rule, part, bytes, value):
        start = max(now, self.links.get(rule.to, 0.0))
        end = self.links[rule.to] = start + bytes / self.machine.link
        self.sent.append((now, start, end, bytes, rule.to, part))
        self.times["sent"][part] = end
        late = self.machine.jitter * self.random.random() if self.machine.jitter else 0.0
        arrives = end + self.machine.latency + late
        self.clock.at(arrives, self._delivered, (rule, part, bytes, value))

    def _delivered(self, now, message):
        rule, part, bytes, value = message
        if isinstance(rule, Dma):
            self.reading -= bytes
            self._pump(now)
        peer, there = self.peers(rule.to)
        tile, wave = divmod(part, self.waves)
        peer.arrive(now, (there[tile] * self.waves + wave, rule.op, value))
