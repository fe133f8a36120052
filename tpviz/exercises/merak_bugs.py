"""The last exercise of notebook 05: from the evidence to the place and the cause, in Merak's zoo.

As `axonn_bugs`, with what only a pipeline has: microbatches, each with an error of its own, and
activations that are computed twice.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from .atp_bugs import WRONG, Diagnosis, Evidence, _error, not_first
from .merak import NOTEBOOK
from .seeded import CASES, programs

if TYPE_CHECKING:
    from .merak_zoo import Broken

LAYERS = (
    "embed",
    "norm1",
    "attention.qkv",
    "attention.out",
    "norm2",
    "mlp.up",
    "mlp.down",
    "norm",
    "head",
)
"""What is looked at, by the end of its name."""


@dataclass(frozen=True)
class PipelineEvidence(Evidence):
    """An `atp_bugs.Evidence` of a pipeline; errors are the largest over microbatches, too.

    recomputed : {layer: error of its output when it was recomputed}, of layers that are.
    microbatches : those in which the first error is; none of a gradient of a parameter, which is of
    all. ``got`` and ``want`` are of the first of them, on the first rank that is wrong. gradients
    has the last stage's copy of the shared weight by its own name. unwaited : whether a collective
    was never waited for.
    """

    recomputed: dict[str, float] = None  # pyright: ignore[reportAssignmentType]
    microbatches: tuple[int, ...] = ()
    unwaited: bool = False

    def __repr__(self):
        wrong = [name for name, error in self.recomputed.items() if error > WRONG]
        return (
            f"{super().__repr__()}\nrecomputed: {len(wrong)} of {len(self.recomputed)} wrong"
            + (": " if wrong else "")
            + ", ".join(wrong[:3])
            + f"\nfirst error in microbatches {', '.join(map(str, self.microbatches)) or '-'}; "
            f"all waited for: {'no' if self.unwaited else 'yes'}"
        )


@lru_cache(maxsize=64)
def examine(broken: "Broken", timeout: float = 60) -> PipelineEvidence:
    """The `PipelineEvidence` on a `merak_zoo.Broken`, from real ranks; kept once known."""
    from ..runtime.launch import launch

    ranks = launch(_look, broken, world_size=broken.world_size, timeout=timeout, progress=False)
    errors = {}
    for rank in ranks:
        for key, error in rank.errors.items():
            errors[key] = max(error, errors.get(key, 0.0))

    def of(kind, turn=1):
        found = {}
        for (what, name, _), error in list(errors.items())[::turn]:
            if what == kind:
                found[name] = max(error, found.get(name, 0.0))
        return found

    every = {
        "forward": of("forward"),
        "recomputed": of("recompute"),
        "backward": of("backward", -1),
        "gradients": of("gradients"),
    }
    kinds = {"recomputed": "recompute"}
    first = next(
        (
            (kinds.get(kind, kind), name)
            for kind, found in every.items()
            for name, error in found.items()
            if error > WRONG
        ),
        None,
    )
    wrong = sorted(key for key, error in errors.items() if key[:2] == first and error > WRONG)
    got, want = next(
        (rank.arrays[wrong[0]] for rank in ranks if wrong and wrong[0] in rank.arrays), (None, None)
    )
    lines = [line for rank in ranks for line in rank.ledger]
    return PipelineEvidence(
        broken.axes,
        **every,
        ledger=tuple(lines),
        got=got,
        want=want,
        microbatches=tuple(key[2] for key in wrong if key[2] >= 0),
        unwaited=any(rank.unwaited for rank in ranks),
    )


@dataclass(frozen=True)
class _Rank:
    """What a rank saw: {(kind, name, microbatch): error}, {the same: (got, want)} of what is wrong,
    and the rest of it."""

    errors: dict
    arrays: dict
    ledger: tuple
    unwaited: bool


def _look(broken):
    """On a rank: a step of the broken program and one of the right one."""
    import torch.distributed as dist

    from ..runtime.recorder import record
    from ..schemes.gpt.program import batch_of
    from ..verbs.ranks import program_here
    from .merak_zoo import WORKLOAD

    programs = [program_here(strategy, WORKLOAD)[0] for strategy in (broken, broken.healthy)]
    seen, traces = [], []
    for program in programs:
        outputs, inputs = _watch(program)
        with record() as recorder, recorder.step():
            program.step(batch_of(WORKLOAD, 0))
        traces.append(recorder.trace)
        found = {key: np.concatenate(parts) for key, parts in outputs.items()}
        found |= {
            key: np.concatenate([x.grad.numpy() for x in parts]) for key, parts in inputs.items()
        }
        seen.append(
            found | {("gradients", name, -1): p.grad.numpy() for name, p in program.named.items()}  # pyright: ignore[reportOptionalMemberAccess]
        )
    got, want = seen
    errors = {key: _error(got[key], want[key]) for key in want}
    arrays = {key: (got[key], want[key]) for key, error in errors.items() if error > WRONG}
    rank, comm = dist.get_rank(), traces[0].select(kind="comm")
    formula = broken.healthy.ledger_of(WORKLOAD, rank)
    lines = traces[0].ledger().diff(formula, ("run", "formula"))
    late = ~np.isin(comm["id"], traces[0]["waits_for"])
    return _Rank(errors, arrays, tuple(f"rank {rank}: {line}" for line in lines), bool(late.any()))


def _watch(program):
    """({(phase, layer, microbatch): outputs}, {("backward", layer, microbatch): inputs}), filled by
    the next step; lists, for halves of a microbatch come one by one."""
    import torch

    from ..labels import current

    outputs, inputs = {}, {}

    def keep(name):
        def hook(module, args, out):
            label, (x, *_) = current(), args
            key = label.phase, name, label.microbatch
            outputs.setdefault(key, []).append(out.detach().numpy().copy())
            if x.requires_grad and torch.is_grad_enabled():
                x.retain_grad()
                inputs.setdefault(("backward", *key[1:]), []).append(x)

        return hook

    for stage in program.pipeline.stages.values():
        for name, module in stage.named_modules():
            if name.endswith(LAYERS):
                module.register_forward_hook(keep(name))
    return outputs, inputs


# --- merak_bugs ---


def _make_bugs(rng):
    from . import merak_zoo as zoo

    return programs(
        rng, zoo.CAUSES, lambda cause: zoo.variant(cause, int(rng.integers(2))), examine
    )


SHOWS = {
    "residual of the other half": "norm1 is wrong in forward though the block before it is right, "
    "and in the second half of the rows only",
    "bias on every rank": "a layer with a sum is wrong in forward, yet the ledger is exact",
    "sum left out of forward": "a layer with a sum is wrong, and the ledger misses it in forward",
    "copies that start apart": "of all layers only head is wrong in forward",
    "another microbatch recomputed": "forward is right, and what is recomputed is not; not in the "
    "last microbatch",
    "one buffer for all microbatches": "the first layer of a stage gives a wrong gradient for what "
    "it received; forward is right, and nothing is recomputed",
    "gradient not summed": "the gradient of a layer's input is wrong, and the ledger misses a sum",
    "sum not waited for": "the gradient of a layer's input is wrong; the ledger has its sum, which "
    "nobody waited for",
    "microbatch overwritten": "one weight's gradient is wrong",
    "weights of a microbatch left out": "the gradients of all linear layers of a block are wrong, "
    "those of its norms are right",
    "same rows for all replicas": "what comes out of embed is wrong already",
    "share of a microbatch left out": "backward is wrong from head on: got is a multiple of want",
    "targets of another microbatch": "backward is wrong from head on; got is no multiple of want",
    "copies not summed": "only the shared weight's gradients are wrong, and the ledger misses the "
    "sum over the ends",
    "copies averaged": "only the shared weight's gradients are wrong: half of what they should be",
    "replicas not summed": "backward is right, every gradient is wrong, and the ledger misses the "
    "sum over dp",
}
OUTSIDE = {
    "rows": "what comes out of embed is wrong already, and no fault is in embed: what goes in?",
    "loss": "forward is right to the end, and backward is wrong from its beginning. What is "
    "between them?",
    "ends": "forward and backward are right in all layers. The gradients of two parameters are "
    "wrong, which are one weight, on two stages.",
    "replicas": "forward and backward are right in all layers, and yet every gradient is wrong. "
    "What comes after backward?",
}


def _astray(question, place):
    """Why the fault is not in ``place``."""
    evidence, right = question.known["evidence"], question.answer[0]
    blocks = {".".join(name.split(".")[:2]) for name in evidence.forward if "blocks" in name}
    if place not in evidence.forward and place not in OUTSIDE and place not in blocks:
        return (
            f"there is no {place!r}: use a name of evidence.forward, a block ('blocks.0') "
            f"where all of it is at fault, or {', '.join(map(repr, OUTSIDE))} where no layer "
            "is."
        )
    if right in OUTSIDE:
        return f"{place} is not at fault: {OUTSIDE[right]}"
    if _wrong(evidence.recomputed) and not _wrong(evidence.forward):
        return (
            f"{place} is not at fault: forward is right. Look at evidence.recomputed: which "
            "layer is the first that is wrong there?"
        )
    if _wrong(evidence.forward) or _wrong(evidence.backward):
        return not_first(evidence, place, right)
    return (
        f"{place} is not at fault: forward and backward are right in all layers. Whose "
        "parameters have a wrong gradient?"
    )


def _wrong(errors):
    return any(error > WRONG for error in errors.values())


BUGS = Diagnosis(
    name="merak_bugs",
    title="The bug zoo of the pipeline: where, and why?",
    notebook=NOTEBOOK,
    prompt=f"{CASES} programs train with Merak on 4 ranks, a step in 4 microbatches, and each has "
    "one fault. The `evidence` is as in `atp_bugs`: `.forward`, `.backward`, `.gradients` "
    f"are {{name: error}} in the order of the step (an error above {WRONG} is no rounding), "
    "`.ledger` the lines that differ from the formula. `.recomputed` is forward done again, "
    "where it is; `.microbatches` are those in which the first error is, `.got` and `.want` "
    "the numbers there (rows first), and `.unwaited` says whether a collective was never "
    'waited for. Return (place, cause): the name of a layer, of a block ("blocks.0") '
    'where all its weights are at fault, or "rows" (of a replica), "loss", "ends" '
    '(sums of the shared weight) or "replicas" (sums over dp); and one of: '
    + "; ".join(SHOWS)
    + ".",
    starter='''def merak_bugs(evidence):
    layer = max(evidence.forward, key=evidence.forward.get)  # the largest error?
    return layer, "bias on every rank"''',
    hints=(
        "Go through the step in its order: forward, recomputation, backward, gradients. The first "
        "place that is wrong is the one; what comes after it is wrong because of it.",
        "Forward wrong: the layer says which cause, and for mlp.down the ledger. Recomputation "
        "wrong: the first layer. Backward wrong: head means the loss, norm1 the buffer, another "
        "layer its sum. Only gradients: which parameters, and what does the ledger miss?",
        "embed > same rows; norm1 > residual; head > start apart; out or down: ledger > left out, "
        "else bias. Backward at head: `np.allclose(got, 4 * want)` > share, else targets; at qkv "
        "or up: unwaited > not waited for, else not summed. Gradients: `embed.token.weight` and "
        "`head.weight`: ledger > not summed, else averaged; one weight > overwritten; all of the "
        "linear layers of one block > left out; everything > replicas.",
    ),
    success="Not one of them keeps the loss from going down. A test that compares a step with one "
    "process, layer by layer and microbatch by microbatch, sees them all.",
    make=_make_bugs,
    needs=None,
    checks=(),
    shows=SHOWS,
    astray=_astray,
)
