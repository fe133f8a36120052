"""``verify``: is a split model the same model? Everything compared with one process, in float64.

    tv.verify(tv.Megatron(tp=4), tv.GPT())        # a table; .ok, .max_error, .worst
"""

from dataclasses import dataclass, replace

from tpviz.checks import whole_number
from tpviz.runtime.launch import launch
from tpviz.runtime.launch import progress as report
from tpviz.runtime.recorder import record
from tpviz.schemes.gpt.program import batch_of, reference_program

from .checks import check_fit
from .ranks import mean_losses, number_of, program_here

TOLERANCE = 1e-10  # far above the rounding of float64 sums, far below any term left out


@dataclass(frozen=True)
class Verification:
    """What `verify` found; truth is ``ok``.

    errors : {what: error} for "outputs", "input gradient", "losses", and "gradient <name>" and
    "parameter <name>" of every parameter. An error is the largest over the ranks of
    max |a - b| / max(1, max |b|), b being the reference's.
    ledger_diff : one line for each difference of a rank's measured ledger from the formula.
    unwaited : one line for each rank that used the result of a collective without waiting for it:
    its numbers may be right by luck.
    """

    strategy: object
    workload: object
    steps: int
    errors: dict
    ledger_diff: tuple = ()
    unwaited: tuple = ()

    @property
    def max_error(self):
        """The largest error; infinite where a value is not a number."""
        return max(self.errors.values())

    @property
    def worst(self):
        """The name of the parameter, or of the other quantity, that has the largest error."""
        name = max(self.errors, key=self.errors.get)
        return name.removeprefix("gradient ").removeprefix("parameter ")

    @property
    def ledger_ok(self):
        """Every rank's ledger of every step equals the formula, exactly."""
        return not self.ledger_diff

    @property
    def ok(self):
        """All errors at most 1e-10, the ledger exact, and every collective waited for."""
        return self.max_error <= TOLERANCE and self.ledger_ok and not self.unwaited

    def __bool__(self):
        return self.ok

    def to_table(self):
        """Rows of strings (what, largest error, where), header first."""
        rows = [[name, f"{self.errors[name]:.1e}", ""]
                for name in ("outputs", "input gradient", "losses")]
        for kind in ("gradient", "parameter"):
            of_kind = {k: e for k, e in self.errors.items() if k.startswith(kind + " ")}
            name = max(of_kind, key=of_kind.get)
            where = name.removeprefix(kind + " ")
            rows.append([f"{len(of_kind)} {kind}s", f"{of_kind[name]:.1e}", where])
        return [["compared", "largest error", "where"], *rows]

    def __repr__(self):
        table = self.to_table()
        widths = [max(len(row[i]) for row in table) for i in range(3)]
        verdict, ranks = "equal" if self.ok else "NOT EQUAL", self.strategy.world_size
        lines = [f"{verdict} (tolerance {TOLERANCE}): {self.strategy!r}, {ranks} ranks, "
                 f"{self.steps} steps, float64"]
        lines += ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
        lines.append("ledger: equal to the formula on every rank" if self.ledger_ok else
                     "ledger: differs from the formula")
        return "\n".join(lines + [f"  {line}" for line in (*self.ledger_diff, *self.unwaited)])


def verify(strategy, workload, steps=3, *, device=None, timeout=120, progress=None):
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
    ranks = launch(_compare, strategy, workload, steps, world_size=strategy.world_size,
                   timeout=timeout, device=device, progress=progress)
    errors = {name: max(found[name] for found, *_ in ranks) for name in ranks[0][0]}
    reference = ranks[0][2]
    errors["losses"] = max(_scaled(abs(a - b), abs(b)) for a, b in
                           zip(mean_losses([losses for _, losses, *_ in ranks]), reference))
    differences = _ledger_diff([found[3] for found in ranks],
                               [strategy.ledger_of(workload, rank) for rank in range(len(ranks))])
    unwaited = tuple(f"rank {rank}: never waited for {found[4]}"
                     for rank, found in enumerate(ranks) if found[4])
    return Verification(strategy, workload, steps, errors, tuple(differences), unwaited)


def _compare(strategy, workload, steps):
    """One rank: (errors, losses, the reference's losses, ledger of each step, `_unwaited`)."""
    program, device = program_here(strategy, workload)
    reference = reference_program(workload, device=device, clip=strategy.clip)
    program.watch()
    reference.watch()
    errors, losses, expected = {}, [], []
    with record() as recorder:
        for step in range(steps):
            batch = batch_of(workload, step, device)
            with recorder.step():
                losses.append(number_of(program.step(batch)))
                program.optimizer_step()
            expected.append(float(reference.step(batch)))
            reference.optimizer_step()
            if step == 0:
                errors |= _first_step_errors(program, reference)
            report(step + 1, steps, "verifying")
    errors |= _errors("parameter", program.parameters(), reference.parameters())
    ledgers = [recorder.trace.ledger(step=step) for step in range(steps)]
    return errors, losses, expected, ledgers, _unwaited(recorder.trace)


def _unwaited(trace, most=3):
    """The collectives that no wait belongs to, in words; "" if there is none."""
    waited = set(trace["waits_for"].tolist())
    found = [event for number, event in enumerate(trace)
             if event.kind == "comm" and number not in waited]
    words = [f"{e.name} over {e.axis} in {e.layer or e.phase or 'the step'}" for e in found]
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def _first_step_errors(program, reference):
    return {"outputs": _error(program.outputs(), reference.outputs()),
            "input gradient": _error(program.input_gradient(), reference.input_gradient()),
            **_errors("gradient", program.gradients(), reference.gradients())}


def _errors(kind, found, reference):
    return {f"{kind} {name}": _error(found[name], expected) for name, expected in reference.items()}


def _error(found, expected):
    if found.shape != expected.shape:
        return float("inf")
    return _scaled(float((found - expected).abs().max()), float(expected.abs().max()))


def _scaled(difference, size):
    error = difference / max(1.0, size)
    return error if error == error else float("inf")


def _ledger_diff(ledgers_by_rank, formulas, most=12):
    lines = [f"rank {rank}, step {step}: {line}"
             for rank, (ledgers, formula) in enumerate(zip(ledgers_by_rank, formulas))
             for step, measured in enumerate(ledgers)
             for line in measured.diff(formula, ("run", "formula"))]
    return lines[:most] + ([f"and {len(lines) - most} more"] if len(lines) > most else [])
