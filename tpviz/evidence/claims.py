"""``claims``: the headlines of the four papers' abstracts beside what our experiments give.

The papers' figures and their sources are in `claims.json`, which nothing else reads; each row names
the function that computes ours (`tpviz.evidence.finding.Finding`), and knows no figure of a paper.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tpviz.core.charts import axis, panel, points
from tpviz.core.checks import one_of, some_of
from tpviz.core.here import has_torch
from tpviz.core.tables import html_table
from tpviz.ranks.bar import viewer
from tpviz.ranks.most import max_ranks

from .finding import Ends, Finding, told_to, vary
from .report import Report

FILE = Path(__file__).with_suffix(".json")
SYSTEMS = ("ATP", "AxoNN", "Merak", "T3")
MOST = 4
"""Processes that compute side by side, each with memory of its own."""
PART = 1 / 3
"""Of the paper's figure: how far ours may be from it."""
VERDICTS = {
    "reproduced": "our figure is within a third of the paper's",
    "fitted": "within a third, but one of our numbers was fitted to it, so it is no evidence",
    "in reach": "more than a third off, but not for every value that one unknown may have",
    "not reproduced": "more than a third off for every value of each unknown that we tried",
    "missed": "more than a third off, and the unknowns were not tried",
    "no experiment": "nothing here computes it",
}


class Claim(NamedTuple):
    """A headline in our words. setting : as far as it is known. figure : (least, most), the same
    where the paper has one. experiment : "module:function", called with ``given``; None: there is
    none. unknowns : as `vary` takes them."""

    key: str
    system: str
    claim: str
    setting: str
    figure: tuple[float, float]
    unit: str
    source: str
    experiment: str | None
    given: dict[str, Any]
    unknowns: Ends = {}

    @property
    def words(self) -> str:
        """The figure as printed: "37 to 64 %"."""
        low, high = self.figure
        return f"{low:g}{f' to {high:g}' * (low != high)} {self.unit}"

    def near(self, low: float, high: float) -> bool:
        """Whether a range has a value within `PART` of the paper's figure."""
        least, most = self.figure
        return high >= least - PART * least and low <= most + PART * most

    def ask(
        self,
        sensitivity: bool = True,
        find: "Callable[[Claim, dict[str, Any]], Finding] | None" = None,
        **more: Any,
    ) -> Finding:
        """Our `Finding`; its unknowns where ``sensitivity`` is asked for. more : arguments of the
        experiment. find : in place of `Claim.find`. Raises ``ValueError`` where there is no
        experiment."""
        ours = lambda **end: (find or Claim.find)(self, {**self.given, **more, **end})
        ends = self.unknowns if sensitivity else {}
        return ours()._replace(unknowns=vary(lambda **end: ours(**end).figure, ends))

    def find(self, given: Mapping[str, Any]) -> Finding:
        """What the experiment gives with these arguments."""
        module, name = self._experiment
        return getattr(module, name)(**given)

    @property
    def _experiment(self):
        if self.experiment is None:
            raise ValueError(f"claim {self.key!r} has no experiment yet")
        module, _, name = self.experiment.partition(":")
        return import_module(module), name

    def shares(self, given: Mapping[str, Any]) -> str:
        """The same for experiments that share most of their work with these arguments."""
        module, _ = self._experiment
        reads = getattr(module, "READS", ())
        return (
            f"{module.__name__} {[item for item in sorted(given.items()) if item[0] not in reads]}"
        )


class ClaimRow(NamedTuple):
    """A `Claim` and our `Finding`, None where there is no experiment."""

    claim: Claim
    ours: Finding | None

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`, by that rule alone."""
        if self.ours is None:
            return "no experiment"
        if self.claim.near(self.ours.figure, self.ours.figure):
            return "fitted" if self.ours.fitted else "reproduced"
        if any(self.claim.near(*self.between(unknown)) for unknown in self.ours.unknowns):
            return "in reach"
        return "not reproduced" if self.ours.unknowns else "missed"

    def between(self, unknown: Any) -> tuple[float, float]:
        """(least, most) of our figure as one unknown varies."""
        assert self.ours is not None
        figures = [self.ours.figure, *(figure for _, figure in unknown.ends)]
        return min(figures), max(figures)

    @property
    def unknowns(self) -> list[Any]:
        """The unknowns of ours, what moves it most first."""
        found = self.ours.unknowns if self.ours else ()
        width = lambda u: self.between(u)[1] - self.between(u)[0]
        return sorted(found, key=width, reverse=True)

    @property
    def moves(self) -> str:
        """The unknown that moves our figure most, in words."""
        if not self.unknowns:
            return ""
        first = self.unknowns[0]
        low, high = self.between(first)
        return f"{first.name}: {low:.3g} to {high:.3g} {self.claim.unit}"

    @property
    def sensitivity(self) -> str:
        """Every unknown with our figure at its ends."""
        return "; ".join(
            f"{u.name}: {', '.join(f'{words} {figure:.3g}' for words, figure in u.ends)}"
            for u in self.unknowns
        )


@dataclass(frozen=True, eq=False, repr=False)
class Claims(Report):
    """``rows``, a `ClaimRow` for each headline."""

    rows: tuple[ClaimRow, ...]

    def at(self, key: str) -> ClaimRow:
        """The `ClaimRow` of a claim's key, as in `tpviz.evidence.claims.known`."""
        rows = {row.claim.key: row for row in self.rows}
        return rows[one_of("key", key, tuple(rows))]

    @property
    def badges(self) -> list[str]:
        """Sources of the numbers."""
        return [*dict.fromkeys(row.ours.badge for row in self.rows if row.ours), "the papers'"]

    @property
    def score(self) -> str:
        """How many rows have each verdict."""
        every = [row.verdict for row in self.rows]
        return ", ".join(f"{v} {every.count(v)}" for v in VERDICTS if v in every)

    def drawing(self) -> dict[str, Any]:
        """Ours over the paper's figure, with its range where the widest unknown varies; shaded is
        what counts as reproduced."""
        rows = [row for row in self.rows if row.ours is not None][::-1]
        names = [f"{row.claim.system}: {row.claim.key.partition('-')[2] or 'gain'}" for row in rows]
        ends, ours, inside = [], [], []
        for row in rows:
            scale = _scale(row)
            found = [row.between(u) for u in row.unknowns[:1]] or [(row.ours.figure,) * 2]  # pyright: ignore[reportOptionalMemberAccess]
            ends += [x * scale for x in found[0]] + [None]
            ours.append(row.ours.figure * scale)  # pyright: ignore[reportOptionalMemberAccess]
            inside.append("circle" if row.verdict in ("reproduced", "fitted") else "circle-open")
        ranges = {
            "type": "scatter",
            "name": "ours, as the unknown that matters most varies",
            "x": ends,
            "y": [name for name in names for _ in range(3)],
            "mode": "lines",
            "hoverinfo": "skip",
            "line": {"color": "ink:wait", "dash": "solid", "width": 3},
            "showlegend": any(row.unknowns for row in rows),
        }
        text = [f"{row.verdict}: {row.claim.claim}" for row in rows]
        mine = points(
            "ours (hollow: further than a third off)", ours, names, "backward", inside, 11
        )
        y = {"type": "category", "categoryarray": names}
        lines = {1 - PART: "dash", 1: "solid", 1 + PART: "dash"}
        marks = [{"x": x, "dash": dash, "text": ""} for x, dash in lines.items()]
        x = axis("our figure / the paper's; lines: equal, and a third off")
        return {
            "title": "Headline figures of the papers, and ours",
            "panels": [panel("", [ranges, {**mine, "text": text}], x, y, rules=marks)],
        }

    def _columns(self) -> list[tuple[str, Any]]:
        def figure(r: ClaimRow) -> str:
            return f"{r.ours.figure:.3g} {r.claim.unit}" if r.ours else ""

        return [
            ("system", lambda r: r.claim.system),
            ("claim", lambda r: r.claim.claim),
            ("its setting, as far as known", lambda r: r.claim.setting),
            ("paper", lambda r: f"{r.claim.words} ({r.claim.source})"),
            ("ours", figure),
            ("badge", lambda r: r.ours.badge if r.ours else ""),
            ("verdict", lambda r: r.verdict),
            ("what moves it most", lambda r: r.moves),
            ("sensitivity", lambda r: r.sensitivity),
            ("our experiment", lambda r: r.ours.setting if r.ours else ""),
        ]

    def summary(self) -> list[list[str]]:
        """The same without settings and sensitivity."""
        return [[row[n] for n in (0, 1, 3, 4, 5, 6, 7)] for row in self.to_table()]

    def _table(self):
        rows = self.summary()
        if not any(row[-1] for row in rows[1:]):
            rows = [row[:-1] for row in rows]
        left = ["text-align:left" + ";white-space:nowrap" * (head == "ours") for head in rows[0]]
        return html_table(rows, "class='tpviz-lab'", left) + super()._table()

    def words(self) -> list[str]:
        """Every row in a sentence, and the count of verdicts."""
        return [f"{self.score}."] + [
            f"{r.claim.system}, {r.claim.claim}: ours "
            + (f"{r.ours.figure:.3g} {r.claim.unit} ({r.ours.badge}), " if r.ours else "none, ")
            + f"{r.verdict}."
            for r in self.rows
        ]

    def notes(self) -> list[str]:
        """The rule of the verdicts, and where the figures come from."""
        found = {row.verdict for row in self.rows}
        rule = "; ".join(f"{name}: {words}" for name, words in VERDICTS.items() if name in found)
        return [
            f"{rule}. Where the paper gives a range, its nearer end counts.",
            "We used abstracts and public code, not full papers; the table names each source.",
        ]

    def __repr__(self):
        return f"<Claims: {len(self.rows)} headlines, {self.score}>"


@lru_cache(maxsize=1)
def known() -> tuple[Claim, ...]:
    """The claims of `claims.json`."""
    read = json.loads(FILE.read_text())

    def claim(figure: Sequence[float], without: Sequence[str] = (), **row: Any) -> Claim:
        ends = read["unknowns"][row["system"]]
        bearing = {name: its for name, its in ends.items() if name not in without}
        return Claim(figure=(figure[0], figure[1]), unknowns=bearing, **row)

    return tuple(claim(**row) for row in read["claims"])


def claims(
    systems: str | Iterable[str] = SYSTEMS,
    sensitivity: bool = True,
    progress: Callable[[int, int, str], object] | bool | None = None,
) -> Claims:
    """The `Claims` table: each headline of the papers' abstracts beside the figure of ours that one
    function call computes, with a verdict by one rule.

    Parameters
    ----------
    systems : of "ATP", "AxoNN", "Merak" and "T3", one or several; or keys of single claims, such as
        "merak-20B".
    sensitivity : also compute ours at the ends of the unknowns that matter most, a minute for all;
        without it, rows that miss cannot say whether an unknown explains that.
    progress : as `tpviz.launch` takes it.

    Several claims are computed side by side, in processes of `tpviz.launch`, where there are cores
    for it. Raises ``ValueError`` for another system.
    """
    keys = tuple(claim.key for claim in known())
    chosen = some_of("systems", systems, (*SYSTEMS, *keys))
    one_of("sensitivity", sensitivity, (True, False))
    wanted = [claim for claim in known() if {claim.system, claim.key} & {*chosen}]
    asked = _side_by_side(wanted, sensitivity, progress) if len(wanted) > 1 else {}
    find = lambda claim, given: asked.get(_job(claim, given)) or claim.find(given)
    rows = []
    with closing(viewer(progress if not asked else False)) as show:
        for number, claim in enumerate(wanted):
            said = f"{claim.system}: {claim.claim}"
            show(number, len(wanted), said)
            with told_to(lambda at, n=number, said=said: show(n, len(wanted), f"{said}; {at}")):
                ours = claim.ask(sensitivity, find) if claim.experiment else None
            rows.append(ClaimRow(claim, ours))
    return Claims(tuple(rows))


def _side_by_side(wanted: list[Claim], sensitivity: bool, progress: Any) -> dict[Any, Finding]:
    """{`_job`: its `Finding`} of all that these claims ask for; none on one core, in a rank and
    without torch."""
    if not has_torch():
        return {}
    from torch.distributed import is_initialized

    from tpviz.ranks.launch import in_torchrun, launch

    cores = min(MOST, max_ranks(), len(os.sched_getaffinity(0)))
    if cores < 2 or in_torchrun() or is_initialized():
        return {}
    jobs: dict[Any, tuple[Claim, dict[str, Any]]] = {}
    groups: dict[Any, list[tuple[Claim, dict[str, Any]]]] = {}
    hear = lambda *job: jobs.setdefault(_job(*job), job) and Finding(0.0, "", "")
    for claim in (claim for claim in wanted if claim.experiment):
        claim.ask(sensitivity, hear)
    for claim, given in jobs.values():
        groups.setdefault(claim.shares(given), []).append((claim, given))
    options: dict[str, Any] = {"timeout": None, "device": "cpu", "progress": progress}
    with TemporaryDirectory(prefix="claims-") as folder:
        every = launch(_worked, [*groups.values()], folder, world_size=cores, **options)
    return {job: ours for found in every for job, ours in found.items()}


def _worked(groups: list[list[tuple[Claim, dict[str, Any]]]], folder: str) -> dict[Any, Finding]:
    """What this rank has computed: group after group that no other has begun."""
    from tpviz.ranks.launch import progress

    found: dict[Any, Finding] = {}
    for number, group in enumerate(groups):
        try:
            Path(folder, str(number)).touch(exist_ok=False)
        except FileExistsError:
            continue
        progress(number, len(groups), f"{group[0][0].system}: {group[0][0].claim}")
        found |= {_job(claim, given): claim.find(given) for claim, given in group}
    return found


def _job(claim: Claim, given: Mapping[str, Any]):
    return claim.key, repr(sorted(given.items()))


def _scale(row: ClaimRow) -> float:
    """What makes the paper's figure 1: of a range its end nearer to ours."""
    assert row.ours is not None
    low, high = row.claim.figure
    return 1 / min(max(row.ours.figure, low), high)
