"""The exercises of notebook 12 on orders: your own schedule, which is run, and the choice of early
recomputation. Times are simulated, with f = r = 1 and b = 2."""

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from tpviz.core.schedules import Schedule, ScheduleTimes, schedule, schedule_errors, timeline
from tpviz.core.workload import GPT
from tpviz.schemes.merak.strategy import Merak

from .formula import Asked, Formula, Question, listed
from .told import told

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tpviz.verbs.verify import Verification

# --- merak_schedule ---
RANKS, MICROBATCHES = 3, 4


@lru_cache(maxsize=32)
def run_of(lines: tuple[str, ...], microbatches: int = MICROBATCHES) -> "Verification":
    """The `tv.verify` of a GPT whose real ranks follow these lines."""
    from tpviz.verbs.verify import verify

    p = len(lines)
    w = GPT(layers=p, hidden=8, heads=2, seq=4, batch=microbatches, vocab=16, dtype="float64")
    return verify(
        Merak(pp=p, microbatches=microbatches, recompute="none", schedule=lines),
        w,
        steps=1,
        progress=False,
    )


def order_errors(got: Any, ranks: int = RANKS, microbatches: int = MICROBATCHES) -> str | None:
    """What is wrong with a learner's lines, or None if they are as good as 1F1B's on the clock."""
    got = as_lines(got)
    if not listed(got, str):
        return SCHEDULE.say("your function returned not a list", got=got, ranks=ranks)
    if len(got) != ranks:
        return SCHEDULE.say("you wrote lines for ranks", count=len(got), ranks=ranks)
    try:
        mine = read(got, microbatches)
    except ValueError as error:
        return str(error)
    wrong = schedule_errors(mine)
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        return f"it cannot run: {'; '.join(wrong[:3])}{more}.{_mirrored(got)}"
    best = timeline(schedule("1f1b", ranks, microbatches, recompute=False))
    return (wrong := _too_much(timeline(mine), best)) and wrong + _alike(got)


def _mirrored(lines):
    """A remark where the last rank runs more forwards before its first backward than the first."""
    first, last = (line[: line.find("B")].count("F") for line in (lines[0], lines[-1]))
    if first >= last:
        return ""
    return " " + SCHEDULE.say(
        "before its first backward rank 0", first=first, rank=len(lines) - 1, last=last
    )


def _alike(lines):
    """A remark where all ranks run as many forwards before their first backward."""
    first, *more = {line[: line.find("B")].count("F") for line in lines}
    if more:
        return ""
    return " " + SCHEDULE.say("every rank wherever it is runs", first=first)


def _schedule_verdict(question, got):
    return order_errors(got) or differs(run_of(as_lines(got)))


def _schedule_measured(answers):
    """The measurements of the learner's schedule."""
    lines = as_lines(answers[0])
    line, run = timeline(read(lines)), run_of(lines)
    return SCHEDULE.say(
        "simulated and microbatches in flight", line=line, peaks=peaks(line), RANKS=RANKS, run=run
    )


def as_lines(got: Any) -> Any:
    """Lines of one text as a tuple of them; anything else unchanged."""
    return tuple(filter(str.strip, got.splitlines())) if isinstance(got, str) else got


def read(lines: Sequence[str], microbatches: int = MICROBATCHES) -> Schedule:
    """The `Schedule`; raises ``ValueError`` with the word that cannot be read."""
    return Schedule.parse(
        "\n".join(lines),
        rank_of=range(len(lines)),
        recomputes=(False,) * len(lines),
        microbatches=microbatches,
    )


def peaks(line: ScheduleTimes) -> str:
    """Peak microbatches of each rank, in words."""
    return ", ".join(map(str, line.peak_in_flight))


def _too_much(mine, best):
    """Why 1F1B, ``best``, is better, or None."""
    if mine.makespan > best.makespan:
        rank, gap, word, at = longest_gap(mine)
        return SCHEDULE.say(
            "it can run and takes", mine=mine, best=best, rank=rank, gap=gap, word=word, at=at
        )
    for rank, (got, most) in enumerate(zip(mine.peak_in_flight, best.peak_in_flight)):
        if got > most:
            return SCHEDULE.say(
                "it takes like 1f1b but rank", mine=mine, rank=rank, got=got, most=most
            )
    return None


def longest_gap(line: ScheduleTimes) -> tuple[int, float, str, float]:
    """(rank, idle time, word of the action after it, when) within a rank's own time."""
    gaps = []
    for rank in range(line.schedule.ranks):
        starts, ends = line.start[rank], line.end[rank]
        gaps += [
            (start - end, -rank, k + 1) for k, (start, end) in enumerate(zip(starts[1:], ends))
        ]
    gap, rank, place = max(gaps)
    return (
        -rank,
        gap,
        line.schedule.word(line.schedule.of(-rank)[place]),
        line.start[-rank][place],
    )


def differs(run: "Verification") -> str | None:
    """The error of a run that is not the step of one process, or None."""
    return None if run else f"on real ranks it is not one process's step:\n{run!r}"


SCHEDULE = Formula(
    **told("merak_schedule", RANKS=RANKS, MICROBATCHES=MICROBATCHES),
    draw=lambda rng: [Asked((), f"{RANKS} ranks and {MICROBATCHES} microbatches")],
    verdict=_schedule_verdict,
    measured=_schedule_measured,
)


# --- merak_early ---
SIZES = ((4, 6), (3, 5), (2, 4))
"""(ranks, microbatches). Here exactly one choice is fast without needless early recomputation."""


def with_early(plain: Schedule, early: Sequence[Collection[int]]) -> Schedule:
    """The plain schedule where all ranks but the last recompute; ``early`` [rank]: early."""
    text = []
    for rank in range(plain.ranks):
        words = []
        for action in plain.of(rank):
            kinds = [action.kind]
            if action.kind == "B" and rank < plain.ranks - 1:
                kinds = ["R", "B"] if action.microbatch in early[rank] else ["RB"]
            words += [f"{kind}{action.microbatch}" for kind in kinds]
        text.append(" ".join(words))
    does = (True,) * (plain.ranks - 1) + (False,)
    return Schedule.parse("\n".join(text), recomputes=does, microbatches=plain.microbatches)


@lru_cache(maxsize=16)
def plain_order(ranks: int, microbatches: int) -> Schedule:
    """Merak's shifted critical path without its recomputation."""
    return schedule("shifted_critical_path", ranks, microbatches, recompute=False)


@lru_cache(maxsize=1024)
def clock(ranks: int, microbatches: int, early: tuple[tuple[int, ...], ...]) -> ScheduleTimes:
    """The `ScheduleTimes` of that choice."""
    return timeline(with_early(plain_order(ranks, microbatches), early))


def _draw_early(rng):
    for p, m in SIZES:
        lines = tuple(str(plain_order(p, m)).splitlines())
        limit = timeline(schedule("shifted_critical_path", p, m)).makespan
        yield Asked((lines, m), f"{p} ranks and {m} microbatches", {"limit": limit, "ranks": p})


def _early_verdict(question, got):
    """The error of a choice, or None if it is fast, without unneeded early recomputation."""
    p, m = question.known["ranks"], question.arguments["microbatches"]
    say = partial(EARLY.say, question=question)
    if not (listed(got) and len(got) == p and all(map(listed, got))):
        return say("your function returned not a list", got=got, p=p)
    strange = [i for part in got for i in part if i not in range(m)]
    if strange:
        return say("there is no microbatch only 0", strange=strange, last=m - 1)
    if got[-1]:
        return say("last rank runs backward right")
    early = tuple(tuple(sorted(set(part))) for part in got)
    return _slow(question, early) or _spare(question, early)


def _slow(question, early):
    """Where a rank idles and could have recomputed, if the choice is slow."""
    p, m = question.known["ranks"], question.arguments["microbatches"]
    line, limit = clock(p, m, early), question.known["limit"]
    if line.makespan <= limit:
        return None
    words = EARLY.say("it takes and is possible", question=question, line=line, limit=limit)
    for rank, index in line.critical_path():
        action = line.schedule.of(rank)[index]
        idle = line.start[rank][index] - (line.end[rank][index - 1] if index else 0.0)
        if action.kind == "RB" and idle > 0:
            facts = {"rank": rank, "idle": idle, "action": action}
            return EARLY.say("on the critical path rank", words=words, **facts)
    return EARLY.say("find a recomputation that could run", words=words)


def _spare(question, early):
    """One recomputation that is early without a gain, if any."""
    p, m = question.known["ranks"], question.arguments["microbatches"]
    for rank, part in enumerate(early):
        for i in part:
            less = tuple(
                tuple(j for j in own if (r, j) != (rank, i)) for r, own in enumerate(early)
            )
            if clock(p, m, less).makespan <= question.known["limit"]:
                return EARLY.say("it is optimal but r", question=question, i=i, rank=rank)
    return None


EARLY = Formula(**told("merak_early"), draw=_draw_early, verdict=_early_verdict)


# -- legal cuts of a graph -------------------------------------------------------------------------
# Graphs are traced from modules by `tpviz.modules.partition`, whose own legal cuts are the answer.
def transformer() -> "tuple[nn.Module, torch.Tensor]":
    """One pre-norm layer, between an embedding and a head."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
            self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x):
            n = self.norm1(x)
            x = x + self.out(F.scaled_dot_product_attention(self.q(n), self.k(n), self.v(n)))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    parts = nn.Embedding(16, 8), Layer(), nn.LayerNorm(8), nn.Linear(8, 16)
    return nn.Sequential(*parts), torch.zeros(2, 4, dtype=torch.long)


def with_skip(start: int, stop: int, length: int = 6) -> "tuple[nn.Module, torch.Tensor]":
    """Linear layers in a chain, with one connection from layer ``start``, or at -1 from the model's
    input, around all to ``stop``."""
    import torch
    from torch import nn

    class Skip(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(length))

        def forward(self, x):
            kept = x
            for number, layer in enumerate(self.layers):
                if number == start:
                    kept = x = layer(x).relu()
                else:
                    x = layer(x + kept if number == stop else x).tanh()
            return x

    return Skip(), torch.zeros(2, 4)


def two_streams() -> "tuple[nn.Module, torch.Tensor]":
    """Two residual streams that each take from the other, and become one at the end."""
    import torch
    from torch import nn

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.left, self.right, self.last = (nn.Linear(4, 4) for _ in range(4))

        def forward(self, x):
            a = b = self.first(x)
            a = a + self.left(b).relu()
            b = b + self.right(a).relu()
            return self.last((a * b).tanh())

    return Two(), torch.zeros(2, 4)


def with_late_input(place: int, length: int) -> "tuple[nn.Module, torch.Tensor]":
    """Linear layers in a chain; the model's input is added once more before layer ``place``."""
    return with_skip(-1, place, length)


def _graph(module, example):
    """(operations as (name, takes) up to the last with parameters, {name: the tensors that cross
    after it}, names after which a cut is legal)."""
    from tpviz.modules.partition import trace
    from tpviz.modules.partition.sharding import Crossing, legal_cuts

    graph = trace(module, example)
    names = [node.name for node in graph.body]
    stop = max(k for k, node in enumerate(graph.body) if node.parameters) + 1
    operations = tuple((node.name, tuple(node.takes)) for node in graph.body[:stop])
    crossing = Crossing(graph)
    assert not crossing.hot, CUTS.say("what may cross in any number")
    crosses = dict(zip(names, map(tuple, crossing.at(range(1, stop)))))
    return operations, crosses, frozenset(names[place - 1] for place in legal_cuts(graph))


@lru_cache(maxsize=16)
def graph_of(
    kind: "Callable[..., tuple[nn.Module, torch.Tensor]]", *sizes: int
) -> tuple[tuple[tuple[str, tuple[str, ...]], ...], dict[str, tuple[str, ...]], frozenset[str]]:
    """The `_graph` of a model above; cached."""
    return _graph(*kind(*sizes))


def _draw_cuts(rng):
    start, length = int(rng.integers(0, 3)), int(rng.integers(6, 9))
    stop = int(rng.integers(start + 2, length))
    # The first has gaps that one, two and more tensors cross.
    late = int(rng.integers(2, 5))
    asked = (
        (transformer,),
        (with_skip, start, stop, length),
        (two_streams,),
        (with_late_input, late, 5),
    )
    words = (
        "a transformer layer",
        CUTS.say("chain with a skip", start=start, stop=stop),
        "two streams",
        CUTS.say("chain that takes its input", late=late),
    )
    for what, called in zip(asked, words):
        operations, crosses, legal = graph_of(*what)
        known = {"crosses": crosses, "legal": legal}
        yield Question({"operations": operations}, tuple(sorted(legal)), called, known)


def _cuts_verdict(question, got):
    """The error of a list of cuts, or None."""
    crosses, legal = question.known["crosses"], question.known["legal"]
    say = partial(CUTS.say, question=question)
    if not listed(got, str):
        return say("your function returned not a list", got=got)
    last = question.arguments["operations"][-1][0]
    for name in got:
        if name == last:
            return say("after the last operation there", name=name)
        if name not in crosses:
            return say("no operation is called", name=name)
        if name not in legal:
            made = [f"{n}, used by {_user(question, n, name)}" for n in crosses[name]]
            every = "you cut at every gap, but " * (set(got) == set(crosses))
            facts = {"count": len(made), "names": "; ".join(made)}
            return say("after tensors cross", every=every, name=name, **facts)
    missing = [name for name in crosses if name in legal and name not in got]
    if missing:
        [crossing] = crosses[missing[0]]
        made = dict(question.arguments["operations"])
        given = sorted({name for takes in made.values() for name in takes} - {*made})
        late = [name for name in given if _uses_after(question, name, missing[0])]
        why = (" " + CUTS.say("is an input of the model", late=late)) if late else ""
        return say("cut after is missing", missing=missing, crossing=crossing, why=why)
    return None


def _user(question, name, cut):
    """The first operation after the cut that takes a tensor."""
    return _uses_after(question, name, cut)[0]


def _uses_after(question, name, cut):
    """The operations after the cut that take a tensor."""
    operations = question.arguments["operations"]
    behind = [op for op, _ in operations].index(cut) + 1
    return [op for op, takes in operations[behind:] if name in takes]


CUTS = Formula(**told("merak_cuts"), draw=_draw_cuts, verdict=_cuts_verdict)
