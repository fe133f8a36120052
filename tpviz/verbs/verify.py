"""``verify``: is a split model the same model? Everything compared with one process, in float64.

tv.verify(tv.Megatron(tp=4), tv.GPT())        # a table; .ok, .max_error, .worst
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from tpviz.core.checks import whole_number
from tpviz.ranks.launch import launch
from tpviz.ranks.launch import progress as report
from tpviz.ranks.recorder import record
from tpviz.schemes.experts.routed import ledger_given
from tpviz.schemes.gpt.experts import DenseExperts
from tpviz.schemes.gpt.program import batch_of, reference_program

from .checks import check_fit
from .equality import (
    Verdict,
    error,
    largest,
    ledger_diff,
    ledger_lines,
    left_out,
    nudge,
    unwaited,
    unwaited_lines,
)
from .run import mean_losses, number_of, program_here

if TYPE_CHECKING:
    from tpviz.core.trace.ledger import Ledger
    from tpviz.core.workload import GPT
    from tpviz.schemes.gpt.program import Program
    from tpviz.schemes.strategy import Strategy

_T = TypeVar("_T")


@dataclass(frozen=True, repr=False)
class Verification(Verdict):
    """What `verify` found; truth is ``ok``.

    errors : {what: error} for "outputs", "input gradient", "losses", and "gradient <name>" and
    "parameter <name>" of every parameter, less what is ``not_compared``. An error is the largest
    over the ranks of max |a - b| / max |b|, b being the reference's; where rounding alone may
    change b by more than 1e-10 of that, the scale is what makes 64 times rounding's effect 1e-10,
    and `equality.error` says how that is measured.
    ledger_diff : one line for each difference of a rank's measured ledger from the formula; None
    where the strategy has no formula.
    unwaited : one line for each rank that used the result of a collective without waiting for it:
    its numbers may be right by luck.
    not_compared : what the reference has nothing for (parameters and buffers that it lacks), or the
    ranks do not keep (the program's ``unkept``).
    """

    strategy: "Strategy"
    workload: "GPT"
    steps: int
    errors: dict[str, float]
    ledger_diff: tuple[str, ...] | None = ()
    unwaited: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()

    def __repr__(self):
        return self._said(
            f"{self.strategy!r}, {self.strategy.world_size} ranks, {self.steps} steps"
        )


def verify(
    strategy: "Strategy",
    workload: "GPT",
    steps: int = 3,
    *,
    device: str | None = None,
    timeout: float | None = 120,
    progress: Callable[[int, int, str], Any] | bool | None = None,
) -> Verification:
    """Run ``strategy`` on real ranks in float64; compare every number with one process.

    Compared on every rank: logits, input gradient and every parameter gradient of the first step,
    the losses of ``steps`` AdamW steps and all parameters after them; and each step's measured
    ledger with ``strategy.ledger``. Returns a `Verification`. device, timeout, progress: as
    `tpviz.launch` takes them. Raises ``ValueError`` for sizes that do not fit, before any rank
    starts.
    """
    steps = whole_number("steps", steps)
    check_fit(strategy, workload)
    workload = replace(workload, dtype="float64")
    formulas = _formulas(strategy, workload)
    ranks = launch(
        _compare,
        strategy,
        workload,
        steps,
        world_size=strategy.world_size,
        timeout=timeout,
        device=device,
        progress=progress,
    )
    compared, losses, ledgers, waits, others, chosen = zip(*ranks)
    found = largest(compared)
    expected, nudged = losses[0][1:]
    measured = mean_losses([of_rank for of_rank, *_ in losses])
    found["losses"] = max(map(error, measured, expected, nudged))
    differences = None
    if formulas is not None:
        expected = _given(strategy, workload, formulas, chosen[0], steps)
        differences = ledger_diff(map(ledger_lines, ledgers, expected))
    return Verification(
        strategy, workload, steps, found, differences, unwaited_lines(waits), left_out(others)
    )


def _formulas(strategy: "Strategy", workload: "GPT") -> "list[Ledger] | None":
    """Each rank's ledger by formula; None where there is no formula."""
    try:
        return [strategy.ledger_of(workload, rank) for rank in range(strategy.world_size)]
    except NotImplementedError:
        return None


def _given(
    strategy: "Strategy",
    workload: "GPT",
    formulas: "list[Ledger]",
    chosen: Any,
    steps: int,
) -> "list[list[Ledger]]":
    """Each rank's ledgers by formula, step by step, after the choices of one process's router."""
    if chosen is None:
        return [[formula] * steps for formula in formulas]
    return [
        [ledger_given(strategy, workload, rank, of_step, formula) for of_step in chosen]
        for rank, formula in enumerate(formulas)
    ]


def _compare(strategy: "Strategy", workload: "GPT", steps: int) -> tuple[Any, ...]:
    """One rank: (errors, losses of all three programs, ledger of each step, `unwaited`, what is not
    compared, the choices of one process's router by step where they count)."""
    report(0, steps, "verifying")
    program, device = program_here(strategy, workload)
    expected, nudged = _references(strategy, workload, steps, device)
    losses = [], expected.pop("losses").tolist(), nudged.pop("losses").tolist()
    chosen, _ = (values.pop("chosen", None) for values in (expected, nudged))
    found = dict.fromkeys(expected, float("inf"))  # what stays so is missing
    others = []

    def compare(values: Mapping[str, Any]):
        for what in values:
            if what in expected:
                found[what] = error(values[what], expected[what], nudged[what])
            else:
                others.append(what)

    program.watch()
    with record() as recorder:
        for step in range(steps):
            with recorder.step():
                losses[0].append(number_of(program.step(batch_of(workload, step, device))))
                program.optimizer_step()
            if step == 0:
                compare(_first_step(program))
                for what in program.unkept:  # the parameters, after the update, say as much
                    del found[what]
            report(step + 1, steps, "verifying")
    compare(_named("parameter", program.parameters()))
    ledgers = [recorder.trace.ledger(step=step) for step in range(steps)]
    others = [*program.extra, *others, *program.unkept]
    table = chosen.long().numpy() if chosen is not None and dist.get_rank() == 0 else None
    return found, losses, ledgers, unwaited(recorder.trace), others, table


def _named(kind: str, tensors: Mapping[str, _T]):
    return {f"{kind} {name}": tensor for name, tensor in tensors.items()}


def _first_step(program: "Program"):
    whole = "input gradient" not in program.unkept
    return {
        "outputs": program.outputs(),
        **({"input gradient": program.input_gradient()} if whole else {}),
        **_named("gradient", program.gradients()),
    }


def _references(
    strategy: "Strategy", workload: "GPT", steps: int, device: str
) -> list[dict[str, Any]]:
    """{what: value} of training in one process, and of the same with `nudge`d parameters.

    Two ranks compute one each and send it to the others: on each rank both would take longer than
    its own part of the split model, and as many times the memory.
    """
    shapes = workload.parameter_shapes()
    sizes = {
        "outputs": (workload.batch, workload.seq, workload.vocab),
        "input gradient": (workload.batch, workload.seq, workload.hidden),
        **_named("gradient", shapes),
        **_named("parameter", shapes),
        "losses": (steps,),
    }
    if workload.experts and not workload.routing:
        mixtures = sum(map(workload.has_experts, range(workload.layers)))
        sizes["chosen"] = steps, mixtures, workload.batch, workload.seq, workload.top_k
    numels = list(map(prod, sizes.values()))
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sent = []
    for source, nudged in ((0, False), (last, True)):
        flat = torch.empty(sum(numels), dtype=torch.float64, device=device)
        if rank == source:
            values = _trained(strategy, workload, steps, device, nudged)
            torch.cat([values[what].detach().reshape(-1) for what in sizes], out=flat)
        sent.append((flat, source))
    for flat, source in sent:  # after both are computed, so that they are at the same time
        dist.broadcast(flat, source)
    return [
        {what: part.view(size) for (what, size), part in zip(sizes.items(), flat.split(numels))}
        for flat, _ in sent
    ]


def _trained(strategy: "Strategy", workload: "GPT", steps: int, device: str, nudged: bool):
    """{what: value} of one process, as `_references` names them."""
    own = getattr(strategy, "reference", None)
    program = (
        own(workload, device)
        if own
        else reference_program(workload, device=device, clip=strategy.clip)
    )
    if nudged:
        nudge(program.module.parameters())
    program.watch()
    losses, values, chosen = [], {}, []
    mixtures = [m for m in program.module.modules() if isinstance(m, DenseExperts)]
    for step in range(steps):
        losses.append(program.step(batch_of(workload, step, device)))
        program.optimizer_step()
        chosen += [torch.stack([m.chosen for m in mixtures])] if mixtures else []
        if step == 0:
            values = _first_step(program)
    values |= {"chosen": torch.stack(chosen)} if chosen else {}
    return values | _named("parameter", program.parameters()) | {"losses": torch.stack(losses)}
