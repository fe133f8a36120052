"""The scoreboard as a page in Markdown, docs/validation.md: written by ``make validate``.

All tables are of rows to test on, where they do not say otherwise: nothing was fitted on those.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import log
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

import numpy as np

from tpviz.core.tables import Columns, show_seconds, table
from tpviz.verbs.simulate import simulate

from . import bands
from . import scoreboard as score
from .adapter import has_experts, ideal
from .bands import profile_with
from .rows import FILES, PublishedRow, group_of, published
from .rows import table as shipped
from .split import digest, split
from .validate import Checked, Validation, checked_rows, validate

TEXT = Path(__file__).with_suffix(".md")
WORST, SIMULATED = 20, 8
_Row = TypeVar("_Row", Checked, score.ScorePoint)
ERRORS = ("median predicted / measured", "median error", "90th percentile")
RUN: Columns = (
    ("source", lambda p, *_: p.row.source),
    ("model", lambda p, *_: p.row.model),
    ("GPUs", lambda p, *_: str(p.row.n_gpus)),
    ("layout", lambda p, *_: p.row.layout),
    ("measured", lambda p, *_: show_seconds(p.measured)),
)
"""Columns of a table of points."""
BINS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1 << 20)
"""Degrees of an axis are counted together up to each of these."""
OUTSIDE = "all but the Ultra-Scale grid"


class ScorePage(NamedTuple):
    """Everything that the page shows: published steps, failures and memory peaks, predicted; steps
    on ideal devices; (step to test on, simulated seconds) of a sample."""

    steps: Validation
    failed: Validation
    memory: Validation
    ideal: Validation
    simulated: list[tuple[score.ScorePoint, float]]


def board() -> ScorePage:
    """All published rows, predicted now. The sample, simulated: of every source with such rows, the
    test step on at most `SIMULATED` GPUs that has the fewest layers and microbatches to replay."""
    steps, failed, memory = (validate(published(kind=kind)) for kind in FILES[:3])
    simulated = []
    small = (p for p in score.points(of_part(steps.rows, "test")) if p.row.n_gpus <= SIMULATED)
    for own in score.by(small, lambda p: p.row.source).values():
        point = min(own, key=lambda p: p.row.layers * p.row.microbatches)
        plan = point.plan
        trace = simulate(plan.strategy, plan.workload, plan.cluster)
        simulated.append((point, trace.step_time))
    return ScorePage(steps, failed, memory, checked_rows(published(), ideal), simulated)


def digests() -> str:
    """Hashes of the data, of the split and of all coefficients: what the page was made of."""
    groups = [group_of(row) for kind in FILES[:3] for row in shipped(kind)]
    found = {
        "data": score.data_digest(),
        "split": digest(split(groups)),
        "coefficients": score.coefficients_digest(),
    }
    return ", ".join(f"{name} `{value}`" for name, value in found.items())


def of_part(rows: Iterable[_Row], part: str) -> list[_Row]:
    """Those to "fit" on, or to "test" on."""
    return [row for row in rows if row.row.part == part]


def summary(rows: Iterable[Checked]) -> str:
    """The errors of the steps to test on, by framework, with the sources that its runs are of."""
    words = []
    tested = score.points(of_part(rows, "test"))
    for framework, own in score.by(tested, profile_with).items():
        e, counts = score.errors(own), Counter(p.row.source for p in own)
        runs = ", ".join(f"{n} of {source}" for source, n in counts.most_common())
        words.append(
            f"{framework} ({runs}): absolute error median {_percent(e.median)}, 90th percentile "
            f"{_percent(e.p90)}; predicted over measured median {e.ratio:.2f}"
        )
    return ". ".join(words) + "."


def sources_table(rows: Sequence[Checked]) -> list[list[str]]:
    """Errors of steps by source, header first; of sources with runs far below the usual rate also
    without those."""
    counts, points = Counter(r.source for r in rows), score.points(rows)
    usual = [p for p in points if score.mfu(p) >= score.DISTURBED]
    found = score.by_source(points)
    for source, e in score.by_source(usual).items():
        if e.rows < found[source].rows:
            name = f"{source}, MFU at least {100 * score.DISTURBED:g} %"
            counts[name], found[name] = e.rows, e
    head = ["source", "rows", "modelled", *ERRORS]
    lines = ([s, str(counts[s]), str(e.rows), *_told(e)] for s, e in sorted(found.items()))
    return [head, *lines]


def page(b: ScorePage) -> str:
    """The page's text: `TEXT` with its tables and figures."""
    test = of_part(b.steps.rows, "test")
    points = score.points(test)
    rankings, ranking = _ranking(points)
    baselines, shares = _baselines(b, points)
    parts = {
        "digests": digests(),
        "summary": summary(b.steps.rows),
        "sources_test": sources_table(test),
        "sources_fit": sources_table(of_part(b.steps.rows, "fit")),
        "degrees": _degrees(points),
        "least": score.LEAST,
        "rankings": rankings,
        "ranking": ranking,
        "baselines": baselines,
        "shares": shares,
        "context": _of_rows(b, lambda row: row.cp > 1),
        "experts": _of_rows(b, has_experts),
        "experts_why": _why(b),
        "coverage": _coverage(b),
        "simulated_gpus": SIMULATED,
        "simulated": _simulated(b),
        "memory": _memory(b),
        "ran": _ran(b),
        "fits": _fits(b),
        "most": WORST,
        "worst": _worst(points, WORST),
        "worst_each": _worst(points, 2, each=True),
        "reasons": _reasons([*b.steps.rows, *b.failed.rows, *b.memory.rows]),
    }
    told = {name: markdown(p) if isinstance(p, list) else p for name, p in parts.items()}
    return TEXT.read_text().format(**told)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Rows of strings, header first, as a table in Markdown."""
    head, *body = [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows
    ]
    return "\n".join([head, "|" + " --- |" * len(rows[0]), *body])


def _percent(share: float):
    return f"{100 * share:.1f} %"


def _told(e: score.Errors):
    """The cells of `ERRORS`."""
    return [f"{e.ratio:.2f}", _percent(e.median), _percent(e.p90)]


def _degrees(points: Sequence[score.ScorePoint]):
    """Errors by axis and degree."""
    out = [["axis", "degree", "runs", *ERRORS]]
    for axis in score.AXES:
        binned = score.by(
            points, lambda p, axis=axis: next(b for b in BINS if getattr(p.row, axis) <= b)
        )
        for own in binned.values():
            values = sorted({getattr(p.row, axis) for p in own})
            named = f"{values[0]}" if len(values) == 1 else f"{values[0]} to {values[-1]}"
            out.append([axis, named, str(len(own)), *_told(score.errors(own))])
    return out


def _ranking(points: Sequence[score.ScorePoint]):
    found = score.rankings(points)
    columns = (
        ("source", lambda r: r.source),
        ("model", lambda r: r.model),
        ("GPUs", lambda r: f"{r.n_gpus} {r.gpu}"),
        ("layouts", lambda r: str(r.rows)),
        ("rank correlation", lambda r: f"{r.correlation:.2f}"),
        ("within a micro batch", lambda r: "" if r.within is None else f"{r.within:.2f}"),
        ("regret", lambda r: _percent(r.regret)),
    )
    regrets = np.percentile([r.regret for r in found], [50, 90])
    ranks = np.percentile([r.correlation for r in found], [50, 10])
    within = np.percentile([r.within for r in found if r.within is not None], [50, 10])
    words = (
        f"Rank correlation: median {ranks[0]:.2f}, 10th percentile {ranks[1]:.2f}; within a micro "
        f"batch {within[0]:.2f} and {within[1]:.2f}. Regret: median {_percent(regrets[0])}, 90th "
        f"percentile {_percent(regrets[1])}."
    )
    return table(columns, ((r,) for r in found)), words


def _baselines(b: ScorePage, test: Sequence[score.ScorePoint]):
    shares = _dense_shares(b)
    words = ", ".join(f"{f} on {gpu} {_percent(x)}" for (f, gpu), x in shares.items())
    models = {
        "tpviz": test,
        "ideal devices": score.points(of_part(b.ideal.rows, "test")),
        "share of peak": score.at_share(test, shares),
        "the source's own": score.own_estimates(test),
    }
    errors = {name: score.by_source(points) for name, points in models.items()}
    rest = [p for p in test if p.row.framework != "nanotron"]
    for name, points in models.items():
        own = [p for p in points if p.row.framework != "nanotron"]
        if len(own) == len(rest):
            errors[name][OUTSIDE] = score.errors(own)
    out = [["median error, 90th percentile", *models]]
    for source in errors["tpviz"]:
        found = (own.get(source) for own in errors.values())
        cells = (f"{_percent(e.median)}, {_percent(e.p90)}" if e else "" for e in found)
        out.append([source, *cells])
    ranks = [score.rankings(points) for points in models.values()]
    for name, of in (("correlation", "rank correlation"), ("within", "within a micro batch")):
        out.append([f"median {of}", *(_middle(getattr(r, name) for r in rank) for rank in ranks)])
    return out, f"Shares of the peak: {words}."


def _dense_shares(b: ScorePage):
    """`score.shares_of_peak` of the runs to fit on, without those with experts."""
    points = score.points(of_part(b.steps.rows, "fit"))
    return score.shares_of_peak([p for p in points if not p.plan.workload.experts])


def _of_rows(b: ScorePage, chosen: Callable[[PublishedRow], bool]):
    """Errors of some runs, steps and peaks of memory, beside the baselines."""
    shares = _dense_shares(b)
    out = [["what", "part", "rows", "modelled", *ERRORS, "ideal devices", "share of peak"]]
    for what, rows, plain in (("steps", b.steps.rows, b.ideal.rows), ("memory", b.memory.rows, ())):
        for part in ("test", "fit"):
            some, same = ([r for r in of_part(v, part) if chosen(r.row)] for v in (rows, plain))
            own = score.points(some)
            bases = score.points(same), score.at_share(own, shares) if plain else []
            told = _told(score.errors(own)) if own else [""] * len(ERRORS)
            beside = (_percent(score.errors(base).median) if base else "" for base in bases)
            out.append([what, part, str(len(some)), str(len(own)), *told, *beside])
    return out


def _why(b: ScorePage):
    """Why runs with experts are not modelled, and how many."""
    rows = [r for r in (*b.steps.rows, *b.memory.rows) if has_experts(r.row) and r.reason]
    found = Counter(r.reason.partition(": use ")[0] for r in rows)
    return "; ".join(f"{n} {why}" for why, n in found.most_common()) + "."


def _middle(values: Iterable[float | None]):
    """The median of those that are known, as text."""
    known = [value for value in values if value is not None]
    return f"{median(known):.2f}" if known else ""


def _coverage(b: ScorePage):
    """How often the measured step lies in the band."""
    tests, fits = (score.points(of_part(b.steps.rows, part)) for part in ("test", "fit"))
    shown = lambda p: bands.band(profile_with(p), p.plan.cluster.device.name)
    out = [["framework", "GPU", "part", "runs", "within the inner band", "within the band"]]
    for part, points, around, fewest in (
        ("test", tests, bands.of_others(tests), bands.FEWEST),
        ("test, by other sources", tests, bands.of_others(tests, sources=True), 1),
        ("fit", fits, shown, bands.FEWEST),
    ):
        of = lambda p: (profile_with(p), p.plan.cluster.device.name)
        for (framework, gpu), own in score.by(points, of).items():
            count, *shares = bands.inside(own, around)
            if count >= fewest:
                out.append([framework, gpu, part, str(count), *map(_percent, shares)])
    return out


def _ran(b: ScorePage):
    """Of runs that ran how many are predicted to fit, by source."""
    out = [["source", "part", "ran", "predicted to fit", "share"]]
    known = [r for r in b.steps.rows if r.fits is not None and r.row.step]
    for (source, part), own in score.by(known, lambda r: (r.source, r.row.part)).items():
        fits = sum(bool(r.fits) for r in own)
        out.append([source, part, str(len(own)), str(fits), _percent(fits / len(own))])
    return out


def _memory(b: ScorePage):
    """Errors of memory by source, both parts, for no coefficient is fitted on them."""
    out = [["source", "part", "runs", *ERRORS]]
    for words, rows in (("", b.memory.rows), (" (notes of steps)", b.steps.rows)):
        points = score.by(score.peaks(rows), lambda p: (p.row.source, p.row.part))
        for (source, part), own in points.items():
            out.append([source + words, part, str(len(own)), *_told(score.errors(own))])
    return out


def _fits(b: ScorePage):
    """Failures and runs, told apart by predicted memory."""
    sources = {r.source for r in b.failed.rows}
    words = []
    for part in ("test", "fit"):
        failed = of_part(b.failed.rows, part)
        ran = [r for r in of_part(b.steps.rows, part) if r.source in sources]
        bad, good = score.needs(failed), score.needs(ran)
        refused = sum(n > 1 for n in bad) / len(bad), sum(n > 1 for n in good) / len(good)
        words.append(
            f"rows to {part} on: area under the ROC {score.area(bad, good):.2f} over {len(bad)} "
            f"failures and {len(good)} runs; at the device's memory {_percent(refused[0])} of the "
            f"failures and {_percent(refused[1])} of the runs do not fit; {len(failed) - len(bad)} "
            f"failures and {len(ran) - len(good)} runs are not predicted, most of them pipelines "
            "whose loss nanotron looks for on a stage that does not have it"
        )
    return (
        "Failures are those of the Ultra-Scale grid; its source does not tell out of memory from "
        "crashes. " + "; ".join(words) + "."
    )


def _worst(points: Sequence[score.ScorePoint], most: int, each: bool = False):
    """The ``most`` worst steps; ``each`` : of every source but that which has most of them."""
    ranked = sorted(points, key=lambda p: -abs(log(p.ratio)))
    found = ranked[:most]
    if each:
        (largest, _), *_ = Counter(p.row.source for p in ranked).most_common()
        groups = score.by(ranked, lambda p: p.row.source)
        found = [p for source, own in groups.items() if source != largest for p in own[:most]]
    columns = (
        *RUN,
        ("predicted", lambda p: show_seconds(p.predicted)),
        ("predicted / measured", lambda p: f"{p.ratio:.3g}"),
        ("what may be missing", score.guess),
    )
    return table(columns, ((p,) for p in found))


def _simulated(b: ScorePage):
    columns = (
        *RUN,
        ("predicted", lambda p, s: show_seconds(p.predicted)),
        ("simulated", lambda p, s: show_seconds(s)),
        ("simulated / measured", lambda p, s: f"{s / p.measured:.2f}"),
    )
    return table(columns, b.simulated)


def _reasons(rows: Iterable[Checked]):
    found = Counter((r.source, r.reason) for r in rows if r.reason)
    columns = (
        ("rows", lambda key, n: str(n)),
        ("source", lambda key, n: key[0]),
        ("why", lambda key, n: key[1]),
    )
    return table(columns, sorted(found.items(), key=lambda item: (-item[1], item[0])))
