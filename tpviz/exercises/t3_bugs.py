"""The last exercise of notebook 06: from the evidence to the place and the cause, in T3's zoo.

As `atp_bugs`, with what only a fused sum has: each tile of a wrong sum is taken apart again, into
which rank's part of which chunk went into it, and how often.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from .atp_bugs import WRONG, Diagnosis, Evidence, _error, _watch, not_first
from .seeded import CASES, programs
from .t3 import NOTEBOOK

if TYPE_CHECKING:
    from ..schemes.t3.strategy import T3
    from .t3_zoo import Broken

SUMS = {"forward": ("out", "down"), "backward": ("qkv", "up", "head")}
"""Layers with a sum over the ranks, by the end of their names."""


@dataclass(frozen=True)
class SumEvidence(Evidence):
    """An `atp_bugs.Evidence`; ``got`` and ``want`` are of ``rank``, the first that is wrong there.

    sums : where the first error is in a sum: {(chunk, tile): {(rank, chunk): times}}, which rank's
    product of which chunk went into each tile of it, as the right program has these products; None
    where it is no sum of them. Of all chunks that the rank has. unwaited : whether a message was
    never waited for.
    """

    rank: int = 0
    sums: dict[tuple[int, int], dict[tuple[int, int], int] | None] = None  # pyright: ignore[reportAssignmentType]
    unwaited: bool = False

    def __repr__(self):
        lines = [super().__repr__(), f"all waited for: {'no' if self.unwaited else 'yes'}"]
        found = [
            (chunk, "no sum of the ranks' parts" if parts is None else in_words(parts))
            for (chunk, _), parts in self.sums.items()
        ]
        for (chunk, words), tiles in groupby(found):  # tiles of a chunk are mostly alike
            number = len(list(tiles))
            lines.append(
                f"rank {self.rank}, chunk {chunk}, {number} tile{'s' * (number > 1)}: {words}"
            )
        return "\n".join(lines)


def in_words(parts: Mapping[tuple[int, int], int]) -> str:
    """What a sum is made of: '2 x chunk 1 of rank 3 + chunk 1 of rank 1'."""
    return (
        " + ".join(
            f"{'' if times == 1 else f'{times} x '}chunk {chunk} of rank {rank}"
            for (rank, chunk), times in parts.items()
        )
        or "nothing"
    )


@lru_cache(maxsize=64)
def examine(broken: "Broken", timeout: float = 60) -> SumEvidence:
    """The `SumEvidence` on a `t3_zoo.Broken`, from real ranks; known after the first time."""
    from ..runtime.launch import launch

    ranks = launch(_look, broken, world_size=broken.world_size, timeout=timeout, progress=False)
    errors = {
        kind: {
            name: max(seen.errors[kind][name] for seen in ranks) for name in ranks[0].errors[kind]
        }
        for kind in ranks[0].errors
    }
    first = next(
        (
            (kind, name)
            for kind in ("forward", "backward")
            for name, error in errors[kind].items()
            if error > WRONG
        ),
        None,
    )
    rank = next((r for r, seen in enumerate(ranks) if first in seen.arrays), 0)
    got, want = ranks[rank].arrays.get(first, (None, None))
    sums = {}
    if first in ranks[0].parts:
        sums = taken_apart(broken, rank, got, want, [seen.parts[first] for seen in ranks])
    return SumEvidence(
        broken.axes,
        **errors,
        ledger=ranks[0].ledger,
        got=got,
        want=want,
        rank=rank,
        sums=sums,
        unwaited=any(seen.unwaited for seen in ranks),
    )


def taken_apart(
    strategy: "T3", rank: int, got: np.ndarray, want: np.ndarray, parts: Sequence[np.ndarray]
) -> dict[tuple[int, int], dict[tuple[int, int], int] | None]:
    """`SumEvidence.sums`; parts : per rank its product (tokens, features) of the right program."""
    size, tokens = len(parts), len(parts[0])
    rows, chunks = tokens // size, [rank] if strategy.split else range(size)
    per_chunk = [np.split(part, size) for part in parts]
    change = np.split((got - want).reshape(-1, got.shape[-1]), len(chunks))
    sums = {}
    for chunk, off in zip(chunks, change):
        total = off + sum(part[chunk] for part in per_chunk)
        for number, tile in enumerate(strategy.tiles(rows, total.shape[1])):
            found = {(r, c): per_chunk[r][c][tile] for r in range(size) for c in range(size)}
            sums[chunk, number] = _combined(total[tile], found)
    return sums


def _combined(total, parts):
    """{part: times} of a sum of whole multiples of ``parts``, None where it is none."""
    columns = np.stack([part.ravel() for part in parts.values()], 1)
    scale = abs(columns).max()
    times = np.linalg.lstsq(columns / scale, total.ravel() / scale, rcond=None)[0].round()
    if abs(columns @ times - total.ravel()).max() > 1e-6 * scale:
        return None
    return {key: int(n) for key, n in zip(parts, times) if n}


@dataclass(frozen=True)
class _Rank:
    """What a rank saw: {kind: {name: error}}, {(kind, name): (got, want)} of what is wrong,
    {(kind, name): its product} of sums, and the rest of it."""

    errors: dict
    arrays: dict
    parts: dict
    ledger: tuple
    unwaited: bool


def _look(broken):
    """On a rank: a step of the broken program and one of the right one."""
    from ..runtime.recorder import record
    from ..schemes.gpt.program import batch_of
    from ..verbs.ranks import program_here
    from .t3_zoo import WORKLOAD

    seen, gradients, traces = [], [], []
    for strategy in (broken, broken.healthy):
        program = program_here(strategy, WORKLOAD)[0]
        found = _watch(program)
        for module in program.module.modules():
            module.register_forward_hook(_keep_gradient)
        with record() as recorder, recorder.step():
            program.step(batch_of(WORKLOAD, 0))
        traces.append(recorder.trace)
        gradients.append({name: grad.numpy() for name, grad in program.gradients().items()})
        seen.append(
            {("forward", name): out for name, (_, out) in found.items()}
            | {
                ("backward", name): x.grad
                for name, (x, _) in reversed(found.items())
                if x.grad is not None
            }
        )
    pairs = {key: tuple(part[key].detach().numpy() for part in seen) for key in seen[0]}
    errors = {
        kind: {name: _error(*pair) for (of, name), pair in pairs.items() if of == kind}
        for kind in ("forward", "backward")
    }
    errors["gradients"] = {
        name: _error(grad, gradients[1][name]) for name, grad in gradients[0].items()
    }
    comm = traces[0].select(kind="comm")
    lines = traces[0].ledger().diff(broken.healthy.ledger(WORKLOAD), ("run", "formula"))
    late = ~np.isin(comm["id"], traces[0]["waits_for"])
    arrays = {key: pair for key, pair in pairs.items() if _error(*pair) > WRONG}
    return _Rank(errors, arrays, _products(program, found), tuple(lines), bool(late.any()))


def _keep_gradient(module, args, out):
    if getattr(out, "requires_grad", False):
        out.retain_grad()


def _products(program, found):
    """{(kind, layer): (tokens, features)}: what this rank adds to each sum."""
    layers, products = dict(program.module.named_modules()), {}
    for name, (x, out) in found.items():
        if name.endswith(SUMS["forward"]):
            products["forward", name] = x.flatten(0, -2) @ layers[name].weight.t()
        elif name.endswith(SUMS["backward"]):
            products["backward", name] = out.grad.flatten(0, -2) @ layers[name].weight
    return {key: product.detach().numpy() for key, product in products.items()}


# --- t3_bugs ---


def _make_bugs(rng):
    from . import t3_zoo as zoo

    return programs(
        rng, zoo.CAUSES, lambda cause: zoo.variant(cause, int(rng.integers(2))), examine
    )


SHOWS = {
    "all ranks begin with chunk 0": "tiles have parts of other chunks in them, even rank 0's own "
    "part of its chunk",
    "ring in the other direction": "tiles have parts of other chunks in them, but each owner's own "
    "part is right",
    "triggered after one update": "in each tile of chunk c are only the parts of rank c and of "
    "c + 1, the last that sent it on: it went before what came to it",
    "sent before added": "in each tile of chunk c are only the parts of rank c and of c - 1, where "
    "it set out: those between passed it on and did not add theirs",
    "memory not zeroed": "tiles are no sum of parts, and got - want changes from token to token: "
    "other numbers were there",
    "last tile left out": "the last tile of a chunk has nothing in it, and the ledger misses its "
    "messages",
    "message not waited for": "tiles have the owner's part alone, and a message was not waited for",
    "gathered before the last update": "the rank's own chunk is right, and of the others it has "
    "the owner's part alone; everything was waited for",
    "bias on every rank": "got - want is the same for all tokens: no part of a sum",
    "bias's gradient summed": "one bias's gradient is wrong, and the ledger has a sum too much",
    "pieces in the order they came": "a layer's output has the right rows in another order, and "
    "all before it is right",
    "weight's gradient of one chunk": "one weight's gradient is wrong, and the ledger is exact",
    "copies not summed": "all that is replicated has a wrong gradient, and the ledger misses its "
    "sum",
}


def _astray(question, place):
    """Why the fault is not in ``place``."""
    evidence, right = question.known["evidence"], question.answer[0]
    if place not in evidence.forward and place != "sync":
        return (
            f'there is no {place!r}: use a name of evidence.forward, or "sync" where no '
            "layer is at fault."
        )
    if any(e > WRONG for e in (*evidence.forward.values(), *evidence.backward.values())):
        return not_first(evidence, place, right)
    return (
        f"{place} is not at fault: forward and backward are right in all layers. Whose "
        "parameters have a wrong gradient, of one layer or of many?"
    )


BUGS = Diagnosis(
    name="t3_bugs",
    title="The bug zoo of fused sums: where, and why?",
    notebook=NOTEBOOK,
    prompt=f"{CASES} programs train with T3 on 4 ranks, and each has one fault. The `evidence` is "
    "as in `atp_bugs`: `.forward`, `.backward`, `.gradients` are {name: error} in the order "
    f"of the step (an error above {WRONG} is no rounding), `.ledger` the lines that differ "
    "from the formula, `.got` and `.want` the numbers where the first error is, on "
    "`.rank`. If that is in a sum over the ranks, `.sums` takes it apart: {(chunk, tile): "
    "{(rank, chunk): times}}, whose part of which chunk is in each tile; None where it is "
    "no sum of the ranks' parts. `.unwaited` says whether a message was never waited for. "
    'Return (place, cause): the name of a layer, or "sync"; and one of: ' + "; ".join(SHOWS) + ".",
    starter='''def t3_bugs(evidence):
    layer = max(evidence.forward, key=evidence.forward.get)  # the largest error?
    return layer, "sent before added"''',
    hints=(
        "A chunk sets out at rank c - 1 and goes down to rank c; each rank adds its part. Follow "
        "one wrong tile: whose part is in it, and whose is not?",
        "Forward or backward wrong: the first wrong layer. Then `.unwaited`, `.ledger`, and the "
        "parts of a wrong tile; where they are None, `got - want`. Only gradients wrong: look at "
        "the ledger, in backward and in sync.",
        "At out, down, qkv, up: unwaited > not waited for; ledger > last tile; None > bias if `got "
        "- want` is the same for all tokens, else not zeroed; for a wrong tile of chunk c, parts "
        "of other chunks > direction if (0, 0) is in chunk 0, else all begin with it; ranks c and "
        "c+1 > triggered; c and c-1 > before added; c > gathered. No `.sums` > pieces. Gradients: "
        'no ledger > one chunk; a bias alone > bias\'s gradient; else "sync".',
    ),
    success="The sum of a tile says by itself who is missing. T3's tracker counts updates so that "
    "nobody is; software that counts them can say so, too.",
    make=_make_bugs,
    needs=None,
    checks=(),
    shows=SHOWS,
    astray=_astray,
)
