"""``verify``: is a split model the same model? Everything compared with one process, in float64.

tv.verify(tv.Megatron(tp=4), tv.GPT())        # a table; .ok, .max_error, .worst
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tpviz.checks import whole_number
from tpviz.runtime.launch import launch
from tpviz.runtime.launch import progress as report
from tpviz.runtime.recorder import record
from tpviz.schemes.gpt.program import batch_of, reference_program

from .checks import check_fit
from .equality import (
    Verdict,
    error,
    errors,
    largest,
    ledger_diff,
    ledger_lines,
    nudge,
    unwaited,
    unwaited_lines,
)
from .ranks import mean_losses, number_of, program_here

if TYPE_CHECKING:
    from tpviz.strategy import Strategy
    from tpviz.workload import GPT


@dataclass(frozen=True, repr=False)
class Verification(Verdict):
    """What `verify` found; truth is ``ok``.

    errors : {what: error} for "outputs", "input gradient", "losses", and "gradient <name>" and
    "parameter <name>" of every parameter. An error is the largest over the ranks of
    max |a - b| / max |b|, b being the reference's; where rounding alone may change b by more than
    1e-10 of that, the scale is what makes 64 times rounding's effect 1e-10, and `equality.error`
    says how that is measured.
    ledger_diff : one line for each difference of a rank's measured ledger from the formula.
    unwaited : one line for each rank that used the result of a collective without waiting for it:
    its numbers may be right by luck.
    """

    strategy: "Strategy"
    workload: "GPT"
    steps: int
    errors: dict[str, float]
    ledger_diff: tuple[str, ...] = ()
    unwaited: tuple[str, ...] = ()

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
    compared, losses, ledgers, waits = zip(*ranks)
    found = largest(compared)
    expected, nudged = losses[0][1:]
    measured = mean_losses([of_rank for of_rank, *_ in losses])
    found["losses"] = max(map(error, measured, expected, nudged))
    differences = ledger_diff(
        ledger_lines(of_rank, [strategy.ledger_of(workload, rank)] * steps)
        for rank, of_rank in enumerate(ledgers)
    )
    return Verification(strategy, workload, steps, found, differences, unwaited_lines(waits))


def _compare(strategy, workload, steps):
    """One rank: (errors, losses of all three programs, ledger of each step, `unwaited`)."""
    program, device = program_here(strategy, workload)
    reference, nudged = (
        reference_program(workload, device=device, clip=strategy.clip) for _ in range(2)
    )
    nudge(nudged.module.parameters())
    all_three = program, reference, nudged
    found, losses = {}, ([], [], [])
    for each in all_three:
        each.watch()
    with record() as recorder:
        for step in range(steps):
            batch = batch_of(workload, step, device)
            with recorder.step():
                losses[0].append(number_of(program.step(batch)))
                program.optimizer_step()
            for one, its in zip(all_three[1:], losses[1:]):
                its.append(float(one.step(batch)))
                one.optimizer_step()
            if step == 0:
                found |= _first_step_errors(*all_three)
            report(step + 1, steps, "verifying")
    found |= errors("parameter", *(each.parameters() for each in all_three))
    ledgers = [recorder.trace.ledger(step=step) for step in range(steps)]
    return found, losses, ledgers, unwaited(recorder.trace)


def _first_step_errors(*programs):
    return {
        "outputs": error(*(each.outputs() for each in programs)),
        "input gradient": error(*(each.input_gradient() for each in programs)),
        **errors("gradient", *(each.gradients() for each in programs)),
    }
