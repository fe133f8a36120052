"""The scoreboard as a page in Markdown, docs/validation.md: written by ``make validate``.

All tables are of rows to test on, where they do not say otherwise: nothing was fitted on those.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import log
from statistics import median
from typing import NamedTuple

from tpviz.labs.report import table

from . import scoreboard as score
from .rows import FILES, group_of
from .rows import table as shipped
from .split import digest, split
from .validate import COLUMNS, Checked, Validation, checked_rows, published, validate

WORST = 20
BINS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1 << 20)
"""Degrees of an axis are counted together up to each of these."""


class Board(NamedTuple):
    """Everything that the page shows: published steps, failures and memory peaks, predicted; steps
    on ideal devices."""

    steps: Validation
    failed: Validation
    memory: Validation
    ideal: Validation


def board() -> Board:
    """All published rows, predicted now."""
    kinds = [validate(published(kind=kind)) for kind in FILES[:3]]
    return Board(*kinds, checked_rows(published(), score.ideal))


def digests() -> str:
    """Hashes of the data, of the split and of all coefficients: what the page was made of."""
    groups = [group_of(row) for kind in FILES[:3] for row in shipped(kind)]
    found = {
        "data": score.data_digest(),
        "split": digest(split(groups)),
        "coefficients": score.coefficients_digest(),
    }
    return ", ".join(f"{name} `{value}`" for name, value in found.items())


def of_part(rows: Iterable[Checked], part: str) -> list[Checked]:
    """Those to "fit" on, or to "test" on."""
    return [row for row in rows if row.row.part == part]


def summary(steps: Iterable[Checked]) -> str:
    """The errors of the rows to test on in one sentence for each framework."""
    words = []
    for framework, own in score.by(of_part(steps, "test"), lambda r: r.row.framework).items():
        e = score.errors(r.ratio for r in own)
        words.append(
            f"{framework} ({e.rows} runs): median absolute error {_percent(e.median)}, median of "
            f"predicted over measured {e.ratio:.2f}"
        )
    return "; ".join(words) + "."


def sources_table(rows: Sequence[Checked]) -> list[list[str]]:
    """Errors by source, header first; of sources with runs far below the usual rate also without
    those."""
    counts = Counter(r.source for r in rows)
    slow = {r.source for r in rows if r.ratio and score.mfu(r) < score.DISTURBED}
    usual = (r for r in rows if r.ratio and score.mfu(r) >= score.DISTURBED)
    found = score.by_source(rows)
    for source, e in score.by_source(r for r in usual if r.source in slow).items():
        name = f"{source}, MFU at least {100 * score.DISTURBED:g} %"
        counts[name], found[name] = e.rows, e
    return table(
        (
            ("source", lambda s, e: s),
            ("rows", lambda s, e: str(counts[s])),
            ("modelled", lambda s, e: str(e.rows)),
            ("median predicted / measured", lambda s, e: f"{e.ratio:.2f}"),
            ("median error", lambda s, e: _percent(e.median)),
            ("90th percentile", lambda s, e: _percent(e.p90)),
        ),
        sorted(found.items()),
    )


def page(b: Board) -> str:
    """The page's text."""
    test = of_part(b.steps.rows, "test")
    parts = [
        "# Validation: predictions and published runs",
        "Runs that other people made and published, and what `tv.predict` says of each. The rows "
        "ship with the package (`tv.published()`); `tv.validate()` makes the comparison, for your "
        "own rows too; `make validate` writes this page. "
        "[ADR 0020](adr/0020-published-runs.md) says how rows were split into those that "
        "coefficients may be fitted on and those that only test them, and how a row becomes a "
        "strategy, a workload and a cluster.",
        f"Made of: {digests()}.",
        f"**Rows to test on.** {summary(b.steps.rows)}",
        "![Predicted over measured step of every test row, and the share of rows up to an error]"
        "(img/validation.svg)",
        "Error: |predicted / measured - 1|.",
        "## Steps by source",
        "Rows to test on:",
        sources_table(test),
        "Rows to fit on:",
        sources_table(of_part(b.steps.rows, "fit")),
        "## Steps by degree of each axis",
        "Rows to test on; the Ultra-Scale grid is most of them. A row with several axes counts in "
        "each.",
        _degrees(test),
        "## Ranking layouts",
        f"Groups of {score.LEAST} or more layouts of one model on as many GPUs. Rank correlation: "
        "Spearman's, of predicted and measured steps. Regret: how much slower than the fastest "
        "measured layout the fastest predicted one is.",
        *_ranking(test),
        "## Baselines",
        "On the same test rows: every kernel and link at its nominal rate; model FLOPs at a "
        "constant share of the peak, one for each framework, fitted on the rows to fit on; and the "
        "errors that a source states of its own prediction.",
        *_baselines(b, test),
        "## Memory",
        "Peaks of a rank: exact bytes of Megatron-LM's CI, SimuMax's on B200; and what the notes "
        "of measured steps say (Ultra-Scale: of the process; BigScience: of the fullest node).",
        _memory(b),
        _fits(b),
        f"## The worst {WORST}",
        "Test rows with the largest ratio, either way. The last column is the first of a few rules "
        "(`tpviz.validation.scoreboard.guess`) that applies: a guess, not a finding.",
        _worst(test, WORST),
        "And of each other source the worst two:",
        _worst(test, 2, each=True),
        "## Not modelled",
        _reasons([*b.steps.rows, *b.failed.rows, *b.memory.rows]),
    ]
    return "\n\n".join(p if isinstance(p, str) else markdown(p) for p in parts) + "\n"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Rows of strings, header first, as a table in Markdown."""
    head, *body = [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows
    ]
    return "\n".join([head, "|" + " --- |" * len(rows[0]), *body])


def _percent(share: float):
    return f"{100 * share:.1f} %"


def _degrees(rows: Sequence[Checked]):
    """Errors by axis and degree."""
    out = [["axis", "degree", "rows", "median predicted / measured", "median error", "90th"]]
    for axis in score.AXES:
        binned = score.by(
            rows, lambda r, axis=axis: next(b for b in BINS if getattr(r.row, axis) <= b)
        )
        for own in binned.values():
            e = score.errors(r.ratio for r in own)
            values = sorted({getattr(r.row, axis) for r in own})
            named = f"{values[0]}" if len(values) == 1 else f"{values[0]} to {values[-1]}"
            told = [str(e.rows), f"{e.ratio:.2f}", _percent(e.median), _percent(e.p90)]
            out.append([axis, named, *told])
    return out


def _ranking(rows: Sequence[Checked]):
    found = score.rankings(rows)
    columns = (
        ("source", lambda r: r.source),
        ("model", lambda r: r.model),
        ("GPUs", lambda r: f"{r.n_gpus} {r.gpu}"),
        ("layouts", lambda r: str(r.rows)),
        ("rank correlation", lambda r: f"{r.correlation:.2f}"),
        ("regret", lambda r: _percent(r.regret)),
    )
    middle = median(r.correlation for r in found), median(r.regret for r in found)
    words = f"Medians: rank correlation {middle[0]:.2f}, regret {_percent(middle[1])}."
    return table(columns, ((r,) for r in found)), words


def _baselines(b: Board, test: Sequence[Checked]):
    shares = score.shares_of_peak(of_part(b.steps.rows, "fit"))
    words = ", ".join(f"{name} {_percent(share)}" for name, share in shares.items())
    models = {
        "tpviz": test,
        "ideal devices": of_part(b.ideal.rows, "test"),
        "share of peak": score.at_share(test, shares),
    }
    errors = {name: score.by_source(rows) for name, rows in models.items()}
    out = [["median error", *models, "the source's own"]]
    for source in errors["tpviz"]:
        own = [r for r in test if r.source == source and r.ratio]
        stated = score.errors(x for r in own if (x := score.own_estimate(r)))
        told = [_percent(errors[name][source].median) for name in models]
        out.append([source, *told, _percent(stated.median) if stated else ""])
    ranks = [_correlation(rows) for rows in models.values()]
    out.append(["median rank correlation", *(f"{rank:.2f}" for rank in ranks), ""])
    return out, f"Shares of the peak: {words}."


def _correlation(rows):
    return median(r.correlation for r in score.rankings(rows))


def _memory(b: Board):
    """Errors of memory by source, both parts, for no coefficient is fitted on them."""
    out = [["source", "part", "rows", "median predicted / measured", "median error", "90th"]]
    peaks = [
        Checked(r.row, memory=r.memory, plan=r.plan, reason=r.reason, peak=True)
        for r in b.steps.rows
        if r.row.peak and r.memory
    ]
    rows = [*b.memory.rows, *peaks]
    for (source, kind, part), own in score.by(
        rows, lambda r: (r.source, r.row.kind == "memory", r.row.part)
    ).items():
        e = score.errors(r.ratio for r in own)
        name = source if kind else f"{source} (notes of steps)"
        out.append([name, part, str(e.rows), f"{e.ratio:.2f}", _percent(e.median), _percent(e.p90)])
    return out


def _fits(b: Board):
    """Failures and runs, told apart by predicted memory."""
    sources = {r.source for r in b.failed.rows}
    words = []
    for part in ("test", "fit"):
        bad = score.needs(of_part(b.failed.rows, part))
        good = score.needs(r for r in of_part(b.steps.rows, part) if r.source in sources)
        refused = sum(n > 1 for n in bad) / len(bad), sum(n > 1 for n in good) / len(good)
        words.append(
            f"rows to {part} on: area under the ROC {score.area(bad, good):.2f} over {len(bad)} "
            f"failures and {len(good)} runs; at the device's memory {_percent(refused[0])} of the "
            f"failures and {_percent(refused[1])} of the runs do not fit"
        )
    return (
        "Does it fit? Failures are those of the Ultra-Scale grid; its source does not tell "
        "out of memory from crashes. " + "; ".join(words) + "."
    )


def _worst(rows: Sequence[Checked], most: int, each: bool = False):
    """The ``most`` worst rows; ``each`` : of every source but that which has most of the rows."""
    ranked = sorted((r for r in rows if r.ratio), key=lambda r: -abs(log(r.ratio)))
    found = ranked[:most]
    if each:
        (largest, _), *_ = Counter(r.source for r in ranked).most_common()
        groups = score.by(ranked, lambda r: r.source)
        found = [r for source, own in groups.items() if source != largest for r in own[:most]]
    columns = (*COLUMNS[:-1], ("what may be missing", score.guess))
    return table(columns, ((r,) for r in found))


def _reasons(rows: Sequence[Checked]):
    found = Counter((r.source, r.reason) for r in rows if r.reason)
    columns = (
        ("rows", lambda key, n: str(n)),
        ("source", lambda key, n: key[0]),
        ("why", lambda key, n: key[1]),
    )
    return table(columns, sorted(found.items(), key=lambda item: (-item[1], item[0])))
