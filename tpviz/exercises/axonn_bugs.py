"""The last exercise of notebook 04: from the evidence to the place and the cause, in AxoNN's zoo.

As `atp_bugs`, with what only a grid has: weights in pieces, rows over z, clipping, and gathers that
are sent for ahead. `examine` lays a step of a broken program beside the right one, rank by rank.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ..mesh import Mesh
from .atp_bugs import WRONG, Diagnosis, Evidence, not_first
from .seeded import CASES, programs

if TYPE_CHECKING:
    from .axonn_zoo import Broken

NOTEBOOK = "04_axonn"


@dataclass(frozen=True)
class GridEvidence(Evidence):
    """An `atp_bugs.Evidence` of a grid; ``got`` and ``want`` are of the first rank in ``ranks``,
    and where no layer is wrong but gradients are, the first wrong gradient, whole.

    ranks : {rank: its coordinates} of those where the first error is. unwaited : collectives of
    rank 0 that were never waited for. misses : its gathers that were not sent for in time.
    """

    ranks: dict[int, dict[str, int]] = field(default_factory=dict)
    unwaited: tuple[str, ...] = ()
    misses: int = 0

    def __repr__(self):
        where = f"first error on ranks {', '.join(map(str, self.ranks)) or 'none'}"
        late = ", ".join(f"{n} x {name}" for name, n in Counter(self.unwaited).items())
        return (
            f"{super().__repr__()}\n{where}; never waited for: {late or 'nothing'}; "
            f"{self.misses} gathers not foreseen"
        )


@lru_cache(maxsize=64)
def examine(broken: "Broken", timeout: float = 60) -> GridEvidence:
    """The `GridEvidence` on an `axonn_zoo.Broken`, from real ranks; known after the first time."""
    from ..runtime.launch import launch

    ranks = launch(_look, broken, world_size=broken.world_size, timeout=timeout, progress=False)
    errors = {
        kind: {
            name: max(rank.errors[kind, name] for rank in ranks)
            for of, name in ranks[0].errors
            if of == kind
        }
        for kind in ("forward", "backward", "gradients")
    }
    first = next(
        (
            (kind, name)
            for kind, found in errors.items()
            for name, error in found.items()
            if error > WRONG
        ),
        None,
    )
    at = [number for number, rank in enumerate(ranks) if rank.errors.get(first, 0) > WRONG]
    got, want = ranks[at[0]].arrays[first] if at else (None, None)
    mesh = Mesh(broken.axes)
    return GridEvidence(
        broken.axes,
        **errors,
        ledger=ranks[0].ledger,
        got=got,
        want=want,
        ranks={rank: mesh.coords(rank) for rank in at},
        unwaited=ranks[0].unwaited,
        misses=ranks[0].misses,
    )


@dataclass(frozen=True)
class _Rank:
    """What a rank saw: {(kind, name): error}, {(kind, name): (got, want)}, and the rest of it."""

    errors: dict
    arrays: dict
    ledger: tuple
    unwaited: tuple
    misses: int


def _look(broken):
    """On a rank: a step of the broken program and one of the right one."""
    from ..runtime.recorder import record
    from ..schemes.gpt.program import batch_of
    from ..verbs.ranks import program_here
    from .atp_bugs import _error, _watch
    from .axonn_zoo import WORKLOAD

    programs = [program_here(strategy, WORKLOAD)[0] for strategy in (broken, broken.healthy)]
    seen, traces = [], []
    for program in programs:
        found = _watch(program)
        with record() as recorder, recorder.step():
            program.step(batch_of(WORKLOAD, 0))
        traces.append(recorder.trace)
        seen.append(
            {("forward", name): out for name, (_, out) in found.items()}
            | {
                ("backward", name): x.grad
                for name, (x, _) in reversed(found.items())
                if x.grad is not None
            }
            | {("gradients", name): g for name, g in program.gradients().items()}
        )
    arrays = {key: tuple(part[key].detach().numpy() for part in seen) for key in seen[0]}
    lines = traces[0].ledger().diff(broken.healthy.ledger(WORKLOAD), ("run", "formula"))
    comm = traces[0].select(kind="comm")
    late = comm["name"][~np.isin(comm["id"], traces[0]["waits_for"])]
    return _Rank(
        {key: _error(*pair) for key, pair in arrays.items()},
        arrays,
        tuple(lines),
        tuple(late.tolist()),
        programs[0].depth.misses,  # pyright: ignore[reportAttributeAccessIssue]
    )


# --- axonn_bugs ---


def _make_bugs(rng):
    from . import axonn_zoo as zoo

    def one_of(choices):
        return choices[int(rng.integers(len(choices)))]

    def variant(cause):
        fault = zoo.CAUSES[cause]
        return zoo.seed(cause, one_of(fault.layers), one_of((0, 1)), one_of(fault.grids))

    return programs(rng, zoo.CAUSES, variant, examine)


SHOWS = {
    "statistics of own features": "the ledger misses sums of two numbers a token over y, both ways",
    "axes not exchanged": "the ledger has a sum over y where the formula has it over x, in forward",
    "block of another layer": "a layer is wrong in forward, yet the ledger is exact",
    "bias not summed over z": "one bias is wrong, and what z sums in sync is smaller",
    "bias summed over z twice": "one bias is wrong, and z sums once more in sync",
    "gradient divided by z": "one weight is wrong, and its gradient is 1/z of the right one",
    "scatter not waited for": "one weight is wrong, and there is a scatter nobody waited for",
    "microbatch overwritten": "one weight is wrong; its gradient is no multiple of the right one, "
    "and all was waited for",
    "same rows along z": "what comes out of embed is wrong, but not on the ranks of z = 0",
    "other rows along x": "what comes out of embed is wrong on all ranks",
    "copies counted in the norm": "all gradients are wrong by one factor, after a right backward",
    "sent for in the order of modules": "no number is wrong, and gathers were not foreseen",
}
OUTSIDE = {
    "rows": "what comes out of embed is wrong already, and no fault is in embed: what goes in?",
    "clip": "forward and backward are right in all layers, and yet every gradient is wrong. What "
    "touches all of them?",
    "order": "no number is wrong, in any layer. Look at misses and at the ledger.",
}


def _astray(question, layer):
    """Why the fault is not in ``layer``."""
    evidence, place = question.known["evidence"], question.answer[0]
    if layer not in evidence.forward and layer not in OUTSIDE:
        return (
            f"there is no layer {layer!r}: use a name of evidence.forward, or "
            f"{', '.join(map(repr, OUTSIDE))} where no layer is at fault."
        )
    if place in OUTSIDE:
        return f"{layer} is not at fault: {OUTSIDE[place]}"
    if max((evidence.forward | evidence.backward).values()) > WRONG:
        return not_first(evidence, layer, place)
    return (
        f"{layer} is not at fault: forward and backward are right in all layers. Whose "
        "parameter has a wrong gradient?"
    )


BUGS = Diagnosis(
    name="axonn_bugs",
    title="The bug zoo of the grid: where, and why?",
    notebook=NOTEBOOK,
    prompt=f"{CASES} programs train with AxoNN on 4 ranks, and each has one fault. The `evidence` "
    "is as in `atp_bugs`: `.forward`, `.backward`, `.gradients` are {name: error} in the "
    f"order of the step (an error above {WRONG} is no rounding), `.ledger` the lines that "
    "differ from the formula. `.ranks` has the coordinates of the ranks where the first "
    "error is, `.got` and `.want` the numbers there (of a gradient: the whole one), "
    "`.unwaited` what was never waited for, `.misses` the gathers not sent for in time. "
    'Return (place, cause): the name of a layer, or "rows" (which rows a rank takes), '
    '"clip" or "order" (of gathers); and one of: ' + "; ".join(SHOWS) + ".",
    starter='''def axonn_bugs(evidence):
    layer = max(evidence.forward, key=evidence.forward.get)  # the largest error?
    return layer, "axes not exchanged"''',
    hints=(
        "Go through the step in its order: rows, layers forward, layers backward, gradients. The "
        "first place that is wrong is the one; no place wrong is an answer too.",
        "Forward wrong: embed means rows, else it is that layer, and the ledger says which cause. "
        "Only gradients wrong: all of them means clipping; else the parameter's name has the layer "
        "(a bias or a weight), and the ledger, `.unwaited` and got / want tell how.",
        "embed: `len(evidence.ranks) < 4` > same rows, else other rows. A norm > statistics; "
        'another layer: a ledger that differs > axes, exact > block. One bias: "run has 2 x" in '
        "the ledger > twice, else > not summed. One weight: unwaited > not waited for; "
        '`np.allclose(got * evidence.axes["z"], want)` > divided; else overwritten. All > clip; '
        "none > order.",
    ),
    success="What you did is what a test of a parallel program must do: numbers by layer and by "
    "rank, the ledger, what was waited for, and what was asked for in vain.",
    make=_make_bugs,
    needs=None,
    checks=(),
    shows=SHOWS,
    astray=_astray,
)
