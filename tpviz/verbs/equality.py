"""What `verify` and `verify_parallel` share: how much numbers may differ, and the verdict in words.

Rounding decides how far two correct programs can be apart. A computed result is the exact result
of slightly changed data (backward error analysis: Higham 2002, "Accuracy and Stability of Numerical
Algorithms", 1.5): the error of a sum of n terms t is about eps * sqrt(n) * max |t|, at most
eps * n * max |t|, whatever is left of the terms after they cancel. The terms cannot be read off the
result, so what eps does to each result is measured: the reference runs once more with every
parameter changed by one unit of rounding, p (1 +- eps). That sees terms that cancel (the gradient
of an attention's key bias is 0 but for rounding) and what AdamW makes of tiny gradients, whose
rounding m/(sqrt(v) + 1e-8) magnifies.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from tpviz.core.tables import html_table, listed, text_table

if TYPE_CHECKING:
    from tpviz.core.trace.ledger import Ledger
    from tpviz.core.trace.table import Trace

TOLERANCE = 1e-10
"""The largest `error` that passes: far above rounding in float64, far below any term left out."""

HEADROOM = 64
"""How many times the measured effect of rounding is allowed; correct programs were seen to differ
by up to 5 times it, in sums of another order."""


@torch.no_grad()
def nudge(parameters: Iterable[torch.Tensor], dtype: torch.dtype = torch.float64) -> None:
    """Change every parameter, in place, by one unit of the dtype's rounding, up or down."""
    eps = torch.finfo(dtype).eps
    generator = torch.Generator().manual_seed(0)
    for p in parameters:
        up = torch.randint(0, 2, p.shape, generator=generator).to(p.device)
        p.mul_(1 + eps * (2 * up.to(p.dtype) - 1))


def error(
    found: torch.Tensor | float,
    expected: torch.Tensor | float,
    nudged: torch.Tensor | float,
    dtype: torch.dtype = torch.float64,
) -> float:
    """max |found - expected| / max(max |expected|, HEADROOM rounding / TOLERANCE).

    That is relative to the tensor's own size, unless rounding alone may move it by more than
    TOLERANCE of that: then HEADROOM times rounding's effect counts as TOLERANCE. That effect is
    max |nudged - expected|, ``nudged`` being what the reference with `nudge`d parameters has, and
    at least one unit of the coarsest ``dtype`` that it was computed in: of a single number of few
    digits the nudged one may be the same. Infinite for another shape or where a value is not a
    number.
    """
    found, expected, nudged = (
        torch.as_tensor(t, dtype=torch.float64).detach().cpu() for t in (found, expected, nudged)
    )
    if found.shape != expected.shape:
        return float("inf")
    if not found.numel() or torch.equal(found, expected):
        return 0.0
    size = float(expected.abs().max())
    rounding = max(float((nudged - expected).abs().max()), torch.finfo(dtype).eps * size)
    scale = max(size, HEADROOM * rounding / TOLERANCE)
    ratio = float((found - expected).abs().max()) / scale if scale else float("inf")
    return ratio if ratio == ratio else float("inf")


def errors(
    kind: str,
    found: Mapping[str, torch.Tensor],
    expected: Mapping[str, torch.Tensor],
    nudged: Mapping[str, torch.Tensor],
    dtype: torch.dtype = torch.float64,
) -> dict[str, float]:
    """{"<kind> <name>": `error`} of {name: tensor}; infinite where one is missing."""
    return {
        f"{kind} {name}": (
            error(found[name], value, nudged[name], dtype) if name in found else float("inf")
        )
        for name, value in expected.items()
    }


def largest(errors_by_rank: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """{name: the largest error over all ranks}."""
    names = dict.fromkeys(name for errors in errors_by_rank for name in errors)
    return {name: max(errors.get(name, 0.0) for errors in errors_by_rank) for name in names}


def left_out(by_rank: Sequence[Iterable[str]], first: int = 0) -> tuple[str, ...]:
    """Names of all that the ranks did not compare; those of some ranks only are followed by these
    ranks, numbered from ``first``."""
    ranks: dict[str, list[str]] = {}
    for rank, names in enumerate(by_rank, first):
        for name in names:
            ranks.setdefault(name, []).append(str(rank))
    return tuple(
        name if len(of) == len(by_rank) else f"{name} (on ranks {listed(of)})"
        for name, of in ranks.items()
    )


def unwaited(trace: "Trace") -> str:
    """The collectives that no wait belongs to, in words; "" if there is none."""
    waited = set(trace["waits_for"].tolist())
    found = [
        event for number, event in enumerate(trace) if event.kind == "comm" and number not in waited
    ]
    return listed(
        [f"{e.name} over {e.axis} in {e.layer or e.phase or 'the step'}" for e in found], most=3
    )


def unwaited_lines(found_by_rank: Iterable[str], first: int = 0) -> tuple[str, ...]:
    """One line for each rank, numbered from ``first``, of which `unwaited` found something."""
    return tuple(
        f"rank {rank}: never waited for {found}"
        for rank, found in enumerate(found_by_rank, first)
        if found
    )


def ledger_lines(ledgers: "Iterable[Ledger]", formulas: "Iterable[Ledger]") -> list[str]:
    """Differences of a rank's ledger of each step from its formula, in words."""
    return [
        f"step {step}: {line}"
        for step, (measured, formula) in enumerate(zip(ledgers, formulas))
        for line in measured.diff(formula, ("run", "formula"))
    ]


def ledger_diff(
    lines_by_rank: Iterable[Iterable[str]], first: int = 0, most: int = 12
) -> tuple[str, ...]:
    """The `ledger_lines` of all ranks, numbered from ``first``; of many the first ones."""
    lines = [
        f"rank {rank}, {line}" for rank, found in enumerate(lines_by_rank, first) for line in found
    ]
    return (*lines[:most], *([f"and {len(lines) - most} more"] if len(lines) > most else []))


class Verdict:
    """What both verifications say, of ``errors``, ``ledger_diff``, ``unwaited`` and
    ``not_compared``."""

    errors: dict[str, float]
    ledger_diff: tuple[str, ...] | None
    unwaited: tuple[str, ...]
    not_compared: tuple[str, ...]

    @property
    def max_error(self) -> float:
        """The largest error; infinite where a value is not a number or a gradient is missing."""
        return max(self.errors.values())

    @property
    def worst(self) -> str:
        """The name of the parameter, or of the other quantity, that has the largest error."""
        name = max(self.errors, key=self.errors.__getitem__)
        return name.removeprefix("gradient ").removeprefix("parameter ")

    @property
    def wrong(self) -> list[str]:
        """The names in ``errors`` of all that differs, gradients in the order of the model."""
        return [name for name, error in self.errors.items() if not error <= TOLERANCE]

    @property
    def ledger_ok(self) -> bool | None:
        """Every rank's ledger of every step equals the formula, exactly; None: no formula."""
        return None if self.ledger_diff is None else not self.ledger_diff

    @property
    def ok(self) -> bool:
        """All errors at most 1e-10, the ledger that of the formula if there is one, and every
        collective waited for."""
        return not (self.wrong or self.ledger_diff or self.unwaited)

    def __bool__(self):
        return self.ok

    def to_table(self) -> list[list[str]]:
        """Rows of strings (what, largest error, where), header first."""
        rows = [["compared", "largest error", "where"]]
        rows += [
            [name, f"{self.errors[name]:.1e}", ""]
            for name in ("outputs", "input gradient", "losses")
            if name in self.errors
        ]
        for kind in ("gradient", "parameter"):
            of_kind = {k: e for k, e in self.errors.items() if k.startswith(kind + " ")}
            name = max(of_kind, key=of_kind.__getitem__, default="")
            largest = f"{of_kind[name]:.1e}" if name else "no rank keeps them"
            rows.append([f"{len(of_kind)} {kind}s", largest, name.removeprefix(kind + " ")])
        if self.not_compared:
            rows.append(["not compared", "", listed(self.not_compared, most=4)])
        return rows

    def _said(self, what, notes=()):
        """The verdict, the table, and what is said of the ledger."""
        lines = [f"{'equal' if self.ok else 'NOT EQUAL'} (tolerance {TOLERANCE}): {what}, float64"]
        lines += [
            *text_table(self.to_table()),
            *notes,
            {
                True: "ledger: equal to the formula on every rank",
                False: "ledger: differs from the formula",
                None: "ledger: no formula given",
            }[self.ledger_ok],
        ]
        if wrong := self.wrong:
            lines.insert(-1, f"differing: {listed(wrong, most=4)}")
        found = (*(self.ledger_diff or ()), *self.unwaited)
        return "\n".join(lines + [f"  {line}" for line in found])

    def _repr_html_(self):
        heading, *_ = (lines := repr(self).splitlines())
        notes = [[["notes"], *([line] for line in lines[1 + len(self.to_table()) :])]]
        look = "class='tpviz-verdict'"
        return "".join(html_table(rows, look) for rows in ([[heading]], self.to_table(), *notes))
