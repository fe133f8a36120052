"""What is wrong with address maps, in words: for people who write their own.

Nothing is timed: what arrives where follows from the maps alone, whatever comes first.

>>> from .maps import maps
>>> mine = maps("ring_rs", 4)
>>> mine[0][1] = 2, Dma(3, "update", 1)
>>> print(*check(mine), sep="\\n")
rank 0 sends chunk 2 after 1 update of each element, but 2 come: too early, 1 would be left behind
"""

from collections import Counter, defaultdict

from tpviz.checks import one_of

from .maps import COLLECTIVES, OPS, Dma, Local, Remote


def check(maps, collective="ring_rs"):
    """What keeps ``maps`` from being the collective, as a list of sentences; empty if nothing does.

    maps : per rank a list of (chunk, rule). collective : of `COLLECTIVES`, for what is computed and
    where it is to end; its own maps are one way among others. Wrong are chunks that never complete
    or are triggered too early, ranks that wait for each other, parts that are missing or are
    overwritten, and chunks that end at a rank that is not their owner.
    """
    goal = COLLECTIVES[one_of("collective", collective, tuple(COLLECTIVES))]
    wrong = [line for rank, row in enumerate(maps) for line in _strangers(rank, row, len(maps))]
    if wrong:
        return wrong
    flow = _Flow([dict(row) for row in maps], goal)
    lines = [*_counts(flow), *_overwritten(flow), *_rings(flow)]
    return lines if flow.rings else lines + list(_ends(flow))


class _Flow:
    """What comes to each (rank, chunk) and what is there when it is complete."""

    def __init__(self, rules, goal):
        self.rules, self.goal, self.ranks = rules, goal, len(rules)
        self.coming = defaultdict(list)
        for rank, row in enumerate(rules):
            for chunk, rule in row.items():
                idle = isinstance(rule, Remote) and not self.computes(rank, chunk)
                if not isinstance(rule, Local) and not idle:
                    self.coming[rule.to, chunk].append(rank)
        self.rings, self.held = [], {}
        for rank in range(self.ranks):
            for chunk in range(self.ranks):
                self._hold(rank, chunk, [])

    def computes(self, rank, chunk):
        """Whether a rank's GEMM makes a part of a chunk."""
        return self.goal.computes == "all" or rank == chunk

    def stays(self, rank, chunk):
        """Whether what it makes is stored in its own memory."""
        return self.computes(rank, chunk) and not isinstance(self.rules[rank][chunk], Remote)

    def _hold(self, rank, chunk, path):
        if rank in path:
            ring = path[path.index(rank):]
            if (chunk, set(ring)) not in [(c, set(r)) for c, r in self.rings]:
                self.rings.append((chunk, ring))
            return Counter()
        if (rank, chunk) not in self.held:
            found = Counter({rank: 1} if self.stays(rank, chunk) else {})
            for source in self.coming[rank, chunk]:
                remote = isinstance(self.rules[source][chunk], Remote)
                found += Counter([source]) if remote else self._hold(source, chunk, [*path, rank])
            self.held[rank, chunk] = found
        return self.held[rank, chunk]


def _strangers(rank, row, ranks):
    """Entries that are of no map of so many ranks."""
    seen = Counter(chunk for chunk, _ in row)
    for chunk in sorted(set(range(ranks)) - set(seen)):
        yield f"rank {rank} has no rule for chunk {chunk}"
    for chunk, times in seen.items():
        if chunk not in range(ranks):
            yield f"rank {rank}: there is no chunk {chunk}, they are 0 to {ranks - 1}"
        elif times > 1:
            yield f"rank {rank} has {times} rules for chunk {chunk}: give one"
    for chunk, rule in row:
        where = f"rank {rank}, chunk {chunk}"
        if not isinstance(rule, (Remote, Dma, Local)):
            yield f"{where}: {rule!r} is no rule: use Remote, Dma or Local"
            continue
        if not isinstance(rule, Local):
            if rule.to not in range(ranks):
                yield f"{where}: there is no rank {rule.to}, they are 0 to {ranks - 1}"
            elif rule.to == rank:
                yield f"{where}: it is sent to rank {rank} itself"
            if rule.op not in OPS:
                yield f"{where}: op={rule.op!r} is neither 'update' nor 'store'"
        if not isinstance(rule, Remote) and (type(rule.updates) is not int or rule.updates < 1):
            yield f"{where}: updates={rule.updates!r} must be a whole number from 1"


def _counts(flow):
    """Too many or too few updates for what a rule waits for."""
    for rank, row in enumerate(flow.rules):
        for chunk, rule in row.items():
            coming = flow.coming[rank, chunk]
            if isinstance(rule, Remote):
                if coming:
                    yield (f"rank {rank} keeps nothing of chunk {chunk}, its stores go to rank "
                           f"{rule.to}: what {_ranks(coming)} sends it would stay there")
                elif not flow.computes(rank, chunk):
                    yield f"rank {rank} does not compute chunk {chunk}: Remote sends nothing"
                continue
            total = flow.stays(rank, chunk) + len(coming)
            if flow.goal.many:  # a buffer for each source, each written once
                total = min(total, 1)
            if rule.updates > total:
                yield (f"rank {rank} waits for {_updates(rule.updates)} of each element of chunk "
                       f"{chunk}, but {total} {'comes' if total == 1 else 'come'}: it never "
                       "completes")
            elif rule.updates < total:
                does = "sends" if isinstance(rule, Dma) else "calls complete"
                yield (f"rank {rank} {does} chunk {chunk} after {_updates(rule.updates)} of each "
                       f"element, but {total} come: too early, {total - rule.updates} would be "
                       "left behind")


def _overwritten(flow):
    """Stores where sums are meant, and the reverse."""
    for rank, row in enumerate(flow.rules):
        for chunk, rule in row.items():
            if isinstance(rule, Local) or rank not in flow.coming[rule.to, chunk]:
                continue
            there = len(flow.coming[rule.to, chunk]) + flow.stays(rule.to, chunk)
            if flow.goal.sums and rule.op == "store" and there > 1:
                yield (f"rank {rank} stores chunk {chunk} at rank {rule.to}, over what else comes "
                       "there: use op='update'")
            elif not flow.goal.sums and rule.op == "update":
                yield (f"rank {rank} adds chunk {chunk} to what is at rank {rule.to}: nothing is "
                       "summed here, use op='store'")


def _rings(flow):
    for chunk, ring in flow.rings:
        yield (f"chunk {chunk}: {_ranks(ring)} wait for each other's updates in a ring: deadlock")


def _ends(flow):
    """What is where in the end, against what should be."""
    for chunk in range(flow.ranks):
        for rank in range(flow.ranks):
            held, rule = flow.held[rank, chunk], flow.rules[rank][chunk]
            if flow.goal.ends == "all":
                yield from _missing(held, [chunk], rank, chunk)
            elif rank == chunk:
                if not isinstance(rule, Local):
                    yield f"rank {rank} sends chunk {chunk} away, which is its own: use Local"
                else:
                    yield from _missing(held, range(flow.ranks), rank, chunk)
            elif isinstance(rule, Local) and held:
                yield f"chunk {chunk} ends at rank {rank}: its owner is rank {chunk}"


def _missing(held, wanted, rank, chunk):
    """Nothing else can be wrong: a part has one rule on each rank, so one way, and ends once."""
    missing = [r for r in wanted if r not in held]
    if missing:
        yield f"rank {rank}, chunk {chunk}: the part of {_ranks(missing)} never gets there"


def _updates(number):
    return "1 update" if number == 1 else f"{number} updates"


def _ranks(ranks):
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
