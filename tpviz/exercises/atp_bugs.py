"""The last exercise of notebook 03: from the evidence to the layer and the cause, in a bug zoo.

`examine` lays one step of a broken program beside that of the same program without the fault, layer
by layer, on the same ranks. (A one-process model would do as well, cut as the ranks hold it.)
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .atp import NOTEBOOK
from .formula import Formula, NoAnswer
from .seeded import CASES, programs

if TYPE_CHECKING:
    from .atp_zoo import Broken
    from .formula import Question

WRONG = 1e-10
"""An error above this is no rounding: the programs compute in float64."""


@dataclass(frozen=True)
class Evidence:
    """One step of a broken program beside the right one; errors are the largest over the ranks.

    axes : of the mesh. forward : {layer: error of its output}, in the order of forward. backward :
    {layer: error of the gradient of its input}, in the order of backward. gradients : {parameter:
    error of its gradient}. ledger : a line for each difference from the formula. got, want : of
    rank 0, where the first error is: a layer's output, or the gradient of its input; arrays with
    the features last, None where no layer is wrong.
    """

    axes: dict[str, int]
    forward: dict[str, float]
    backward: dict[str, float]
    gradients: dict[str, float]
    ledger: tuple[str, ...]
    got: np.ndarray | None = field(default=None, repr=False)
    want: np.ndarray | None = field(default=None, repr=False)

    def __repr__(self):
        lines = [f"one step on the mesh {self.axes} beside the right one"]
        for name in ("forward", "backward", "gradients"):
            errors = getattr(self, name)
            wrong = [f"{what} {error:.1e}" for what, error in errors.items() if error > WRONG]
            lines.append(
                f"{name}: {len(wrong)} of {len(errors)} wrong"
                + (": " if wrong else "")
                + ", ".join(wrong[:3])
                + (", ..." if len(wrong) > 3 else "")
            )
        lines.append("ledger: " + ("\n  ".join(self.ledger) or "as the formula says"))
        return "\n".join(lines)


@lru_cache(maxsize=64)
def examine(broken: "Broken", timeout: float = 60) -> Evidence:
    """The `Evidence` on an `atp_zoo.Broken`, from real ranks; known after the first time."""
    from ..runtime.launch import launch

    ranks = launch(_look, broken, world_size=broken.world_size, timeout=timeout, progress=False)
    errors = [
        {name: max(found[kind][name] for found, *_ in ranks) for name in ranks[0][0][kind]}
        for kind in ("forward", "backward", "gradients")
    ]
    _, arrays, lines = ranks[0]
    key = next(
        (
            (kind, name)
            for kind, found in zip(("forward", "backward"), errors)
            for name, error in found.items()
            if error > WRONG
        ),
        None,
    )
    return Evidence(broken.axes, *errors, lines, *(arrays[key] if key else (None, None)))  # pyright: ignore[reportCallIssue]


def _look(broken):
    """On a rank: (errors by kind, arrays by (kind, layer), differences of the ledger)."""
    from ..runtime.recorder import record
    from ..schemes.gpt.program import batch_of
    from ..verbs.ranks import program_here
    from .atp_zoo import WORKLOAD

    programs = [program_here(strategy, WORKLOAD)[0] for strategy in (broken, broken.healthy)]
    seen, gradients, batch = [], [], batch_of(WORKLOAD, 0)
    for program in programs:
        found = _watch(program)
        with record() as recorder, recorder.step():
            program.step(batch)
        if not gradients:
            ledger = recorder.trace.ledger()
        gradients.append(program.gradients())
        seen.append(
            {("forward", name): out for name, (_, out) in found.items()}
            | {
                ("backward", name): x.grad
                for name, (x, _) in reversed(found.items())
                if x.grad is not None
            }
        )
    arrays = {key: tuple(part[key].detach().numpy() for part in seen) for key in seen[0]}
    errors = {
        kind: {name: _error(*pair) for (of, name), pair in arrays.items() if of == kind}
        for kind in ("forward", "backward")
    }
    errors["gradients"] = {
        name: _error(part.numpy(), gradients[1][name].numpy())
        for name, part in gradients[0].items()
    }
    lines = ledger.diff(broken.healthy.ledger(WORKLOAD), ("run", "formula"))
    return errors, arrays, tuple(lines)


def _watch(program):
    """{layer: (input, output)} in the order of forward, filled by the next step."""
    found = {}

    def keep(name):
        def hook(module, args, out):
            if args[0].requires_grad:
                args[0].retain_grad()
            found[name] = args[0], out

        return hook

    for name, module in program.module.named_modules():
        if name == "embed" or name.endswith(("qkv", "out", "up", "down", "head")) or "norm" in name:
            module.register_forward_hook(keep(name))
    return found


def _error(got, want):
    """As in `verify`: the largest difference, by max(1, largest number)."""
    error = float(abs(got - want).max()) / max(1.0, float(abs(want).max()))
    return error if error == error else float("inf")


# --- atp_bugs ---


def _make_bugs(rng):
    from . import atp_zoo as zoo

    def variant(cause):
        layers = zoo.CAUSES[cause].layers
        return zoo.seed(
            cause,
            layers[int(rng.integers(len(layers)))],
            int(rng.integers(2)),
            order=("column", "row")[int(rng.integers(2))],
        )

    return programs(rng, zoo.CAUSES, variant, examine)


SHOWS = {
    "bias before the sum": "got - want is the same for all tokens, and the ledger is exact",
    "q, k, v as blocks": "got has the numbers of want in another order of the features",
    "output not summed": "the ledger misses a sum in forward, of a whole activation",
    "gradient summed over the wrong axis": "the ledger has too much on one axis in backward, and "
    "too little on the other",
    "gradient not summed": "the ledger misses a sum in backward, and nothing else",
    "statistics of own features": "the ledger misses sums of two numbers a token, both ways",
    "chunks in the wrong order": "the sequences of got are those of want, in another order",
    "copies not summed": "no layer is wrong in either direction, and the ledger has no sum in sync",
    "loss scaled twice": "forward and the ledger are right, and every gradient is a multiple of "
    "what it should be",
}


@dataclass(frozen=True, repr=False)
class Diagnosis(Formula):
    """An exercise whose answers are (layer, cause).

    shows : {cause: what it leaves in the evidence}. astray : called with (question, layer), says
    why the fault is not in that layer.
    """

    shows: dict[str, str] = field(default_factory=dict, repr=False)
    astray: "Callable[[Question, str], str]" = field(  # pyright: ignore[reportAssignmentType]
        default=None, repr=False
    )

    def judge(self, question: "Question", got: Any) -> str | None:
        """What is wrong with a diagnosis, or None where it is right."""
        causes = question.known["causes"]
        if not (
            isinstance(got, tuple)
            and not isinstance(got, NoAnswer)
            and len(got) == 2
            and all(isinstance(part, str) for part in got)
        ):
            got = f"a {got.type}" if isinstance(got, NoAnswer) else repr(got)
            return f"for {question} you returned {got}, not (layer, cause), two strings."
        layer, cause = got
        if layer != question.answer[0]:
            return f"for {question}: {self.astray(question, layer)}"
        if cause not in causes:
            return f"for {question}: {cause!r} is none of the causes: {'; '.join(causes)}."
        if cause != question.answer[1]:
            return (
                f"for {question}: the layer is right, but it is not {cause!r}: "
                f"{self.shows[question.answer[1]]}."
            )
        return None


def _not_there(question, layer):
    """Why the fault is not in ``layer``."""
    evidence, place = question.known["evidence"], question.answer[0]
    if layer not in evidence.forward and layer not in ("sync", "loss"):
        return (
            f'there is no layer {layer!r}: use a name of evidence.forward, or "sync" or '
            '"loss" where no layer is at fault.'
        )
    if place in ("sync", "loss"):
        return f"{layer} is not at fault: " + (
            "nothing is wrong in any layer, forward or backward. What comes after backward?"
            if place == "sync"
            else "forward is right, and in backward even the first layer "
            "already gets a wrong gradient. What comes before it?"
        )
    return not_first(evidence, layer, place)


def not_first(evidence: Evidence, layer: str, place: str) -> str:
    """Why the first error is not in ``layer`` but in ``place``, both layers."""
    forward = _first(evidence.forward) is not None
    order = list(evidence.forward if forward else evidence.backward)
    way, what = ("forward", "output") if forward else ("backward", "gradient of the input")
    if layer not in order or place not in order:
        return f"it is not {layer}. Some layer is wrong in {way}: which one is the first?"
    if order.index(layer) < order.index(place):
        return f"the {what} of {layer} is right in {way}: the fault comes later."
    return f"in {way}, numbers are wrong before they get to {layer}: the fault comes earlier."


def _first(errors):
    return next((name for name, error in errors.items() if error > WRONG), None)


BUGS = Diagnosis(
    name="atp_bugs",
    title="The bug zoo: where, and why?",
    notebook=NOTEBOOK,
    prompt=f"{CASES} programs train with ATP, and each has one fault. The `evidence` lays a step "
    "beside the right one: `evidence.forward`, `.backward`, `.gradients` are {name: error} "
    f"in the order of the step (an error above {WRONG} is no rounding), `.ledger` the lines "
    'in which the ledger differs from the formula (each ends in what "run has" and '
    '"formula has"), `.got` and `.want` rank 0\'s numbers where the first error is, with '
    "the sequences (or tokens) first and the features last. Return (layer, cause): the name "
    'of the layer, "sync" or "loss", and one of: ' + "; ".join(SHOWS) + ".",
    starter='''def atp_bugs(evidence):
    layer = max(evidence.forward, key=evidence.forward.get)  # the largest error?
    return layer, "bias before the sum"''',
    hints=(
        "An error spreads to all that comes after it: its size says nothing, its first place "
        "everything. Is forward right? Then go through backward, then through what follows it.",
        "If a layer's output is wrong first, it is that layer; else the first wrong gradient of an "
        "input. Then the ledger: a missing sum, one on another axis, or none of this; and where it "
        "is exact, compare got with want: shifted, permuted, or multiplied?",
        "Forward wrong: ledger differs > statistics (norms) or output not summed; else all of `got "
        "- want` the same over the tokens > bias; `np.sort` of both along the features equal > q, "
        "k, v as blocks; else chunks. Backward wrong: ledger with two or more lines on two axes > "
        'wrong axis; one line > not summed; none > loss scaled twice, at "loss". Else copies not '
        'summed, at "sync".',
    ),
    success="`tv.verify` and its ledger flag every one of them; the first wrong place "
    "does the rest.",
    make=_make_bugs,
    needs=None,
    checks=(),
    shows=SHOWS,
    astray=_not_there,
)
