"""``against_paper``: the paper's numbers compared with ours, and explanations of differences.

We used the paper's abstract ("abstract") and reading notes ("note"), not the full text. Its numbers
and ours are all simulated.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tpviz.core.charts import panel, points
from tpviz.evidence.facts import facts, records
from tpviz.evidence.report import Report

from .end_to_end import measured
from .sublayers import FITTED, MODELS, Sublayers, sublayers

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from tpviz.evidence.t3_hardware import Machine

NEAR = 20.0
"""Percent of the paper's number within which ours counts as matched."""
KINDS = {
    "predicted": "no knob was set to it",
    "fitted": "a knob was set with this number in view",
    "identity": "follows from the counts, for all knobs",
}


class Anchor(NamedTuple):
    """A number of the paper, in percent. small : of the two small models, or of the three large.
    ours : of `Sublayers` and knobs of `end_to_end`, percent too. varied : keys of `VARIED` that
    are tried where it is not matched."""

    name: str
    paper: float
    source: str
    kind: str
    small: bool
    ours: Callable[[Sublayers, dict[str, Any]], float]
    varied: tuple[str, ...] = ()


PAPER = facts(__file__, "paper")
VARIED: dict[str, dict[str, Any]] = {
    what: {knob: tuple(v) if isinstance(v, list) else v for knob, v in knobs.items()}
    for what, knobs in PAPER.varied.items()
}
"""{what is changed: the knobs}."""


def _anchor(ours, varied, **row):
    return Anchor(ours=measured(ours), varied=tuple(PAPER.varied_of[varied]), **row)


ANCHORS = tuple(_anchor(**row) for row in records(PAPER.numbers))
NAMES = {"ideal": "ideal overlap", "t3": "T3", "t3_mca": "T3-MCA"}
"""{configuration: its name in the table}."""


def null_model(found: Sublayers) -> Sublayers:
    """``found`` with every sublayer set to the paper's means of the fitted `ANCHORS`: what a number
    is worth that a simulation matches. The ratios that are identities have no such model."""
    paper = {anchor.name: 1 + anchor.paper / 100 for anchor in ANCHORS}
    near, reads = "near-memory reduction, reduce-scatter alone, TP ", "GEMM reads: how much more"
    means = {c: paper[f"{name}, mean"] for c, name in NAMES.items()}
    near = [value for name, value in paper.items() if name.startswith(near)]
    [reads] = [value for name, value in paper.items() if name.startswith(reads)]
    kept = 2 - paper["memory traffic saved, mean"]

    def null(row):
        seconds = {c: row.seconds["sequential"] / mean for c, mean in means.items()}
        before = row.dram["sequential"]
        read = before["gemm_read"] / reads
        dram = {"gemm_read": read, "other": kept * sum(before.values()) - read}
        return row._replace(
            rs_nmc=row.rs * len(near) / sum(near),
            seconds=row.seconds | seconds | {"ideal_nmc": seconds["ideal"]},
            dram={"sequential": before, "t3_mca": dram},
        )

    return Sublayers(tuple(map(null, found.rows)), found.machine)


class Compared(NamedTuple):
    """An `Anchor` beside ``ours`` (percent, simulated) and ``null``, that of the `null_model`, None
    for identities. sensitivity : {what is changed: ours then}, of those not matched, where asked
    for; against ours with wavefronts=1, which is ``plain``."""

    anchor: Anchor
    ours: float
    sensitivity: dict[str, float]
    plain: float | None = None
    null: float | None = None

    @property
    def difference(self) -> float:
        """Points: ours less the paper's."""
        return self.ours - self.anchor.paper

    @property
    def matched(self) -> bool:
        """Whether within `NEAR` percent of the paper's."""
        return self._near(self.ours)

    @property
    def null_matched(self) -> bool:
        """Whether the `null_model`'s is."""
        return self.null is not None and self._near(self.null)

    def _near(self, number):
        return abs(number - self.anchor.paper) <= NEAR / 100 * self.anchor.paper


@dataclass(frozen=True, eq=False, repr=False)
class AgainstPaper(Report):
    """``rows`` of `Compared`, in the order of `ANCHORS`; ``found``: the `Sublayers` behind them."""

    rows: tuple[Compared, ...]
    found: Sublayers
    badges = ("simulated", "the paper's")

    def at(self, name: str) -> Compared:
        """The `Compared` of an anchor's name."""
        return {row.anchor.name: row for row in self.rows}[name]

    @property
    def unmatched(self) -> tuple[Compared, ...]:
        """Those that are further off than `NEAR` percent."""
        return tuple(row for row in self.rows if not row.matched)

    @property
    def near(self) -> dict[str, tuple[int, int, int]]:
        """{kind of `KINDS`: (how many are within `NEAR` percent, of how many, and how many of the
        `null_model`'s)}."""
        kinds = {kind: [r for r in self.rows if r.anchor.kind == kind] for kind in KINDS}
        return {
            kind: (sum(r.matched for r in rows), len(rows), sum(r.null_matched for r in rows))
            for kind, rows in kinds.items()
        }

    @property
    def score(self) -> str:
        """`near` in words. Kinds are kept apart: only predictions are evidence."""
        return ", ".join(
            f"{kind} {part} of {whole}" + (kind != "identity") * f" (null model {null})"
            for kind, (part, whole, null) in self.near.items()
        )

    def drawing(self) -> dict[str, Any]:
        """The paper's numbers and ours, in percent: all but the ratios that are identities."""
        rows = [r for r in self.rows if r.anchor.kind != "identity"][::-1]
        names = [f"{r.anchor.name} ({r.anchor.kind}; {r.anchor.source})" for r in rows]
        ends = {
            "type": "scatter",
            "name": "difference",
            "x": [x for r in rows for x in (r.anchor.paper, r.ours, None)],
            "y": [name for name in names for _ in range(3)],
            "mode": "lines",
            "showlegend": False,
            "hoverinfo": "skip",
            "line": {"color": "ink:wait", "dash": "solid", "width": 2},
        }
        hollow = ["circle" if r.matched else "circle-open" for r in rows]
        theirs, ours = [r.anchor.paper for r in rows], [r.ours for r in rows]
        null = [r.null for r in rows]
        traces = [
            points(name, x, names, ink, marks, 11, text=[f"{value:.1f} %" for value in x])
            for name, x, ink, marks in (
                ("the paper's, by its abstract or reading notes", theirs, "axis4", "star"),
                ("null model: every sublayer is the paper's mean", null, "wait", "x"),
                (f"ours, simulated (hollow: more than {NEAR:g} % off)", ours, "backward", hollow),
            )
        ]
        y = {"type": "category", "categoryarray": names}
        return {
            "title": "The paper's numbers, and ours",
            "panels": [panel("percent", [ends, *traces], y=y)],
        }

    def _columns(self):
        def changed(r):
            return "; ".join(
                f"{what}: {value - r.plain:+.1f}"  # pyright: ignore[reportOperatorIssue]
                for what, value in r.sensitivity.items()
            )

        return [
            ("number", lambda r: r.anchor.name),
            ("paper", lambda r: f"{r.anchor.paper:g} %"),
            ("source", lambda r: r.anchor.source),
            ("null model", lambda r: "" if r.null is None else f"{r.null:.1f} %"),
            ("ours, simulated", lambda r: f"{r.ours:.1f} %"),
            ("difference", lambda r: f"{r.difference:+.1f}"),
            ("matched", lambda r: "yes" if r.matched else "no"),
            ("kind", lambda r: r.anchor.kind),
            ("ours if changed", changed),
        ]

    def notes(self) -> list[str]:
        """Numbers not drawn, and numbers that match."""
        same = [
            f"{r.anchor.name} {r.ours:.0f} % (paper {r.anchor.paper:g} %)"
            for r in self.rows
            if r.anchor.kind == "identity"
        ]
        wrong = [f"{r.anchor.name} {r.difference:+.1f} points" for r in self.unmatched]
        return [
            self.say("origin"),
            self.say("identities", same="; ".join(same)),
            f"Within {NEAR:g} %: {self.score}. Not: {'; '.join(wrong) or 'none'}.",
        ]

    def describe(self) -> str:
        """How many of each kind match and why, in words."""
        wrong = ", ".join(f"{r.anchor.name} ({r.difference:+.1f})" for r in self.unmatched)
        kinds = "; ".join(f"{kind}: {words}" for kind, words in KINDS.items())
        facts = {"near": NEAR, "wrong": wrong or "none", "kinds": kinds, "fitted": FITTED}
        return f"{self.say('compared', **facts)} {self.say('doubts')}"

    def __repr__(self):
        return f"<AgainstPaper: within {NEAR:g} % {self.score}, simulated>"


def against_paper(
    machine: "Machine | None" = None,
    found: Sublayers | None = None,
    sensitivity: bool = False,
    progress: Callable[[int, int, str], object] | bool | None = None,
) -> AgainstPaper:
    """The `AgainstPaper` of a ``Machine``: some 15 s, and as much again with ``sensitivity``.

    found : `Sublayers` of all `MODELS`, if available; then ``machine`` is theirs. sensitivity : for
    numbers not matched, also simulate with some knobs changed. progress : see `sublayers`. Raises
    ``ValueError`` if models are missing, or found is of another machine.
    """
    if found is None:
        found = sublayers(machine, progress=progress)
    elif machine not in (None, found.machine):
        clash = "; ".join(
            f"{knob}={getattr(machine, knob)!r}, found was simulated with {value!r}"
            for knob, value in vars(found.machine).items()
            if getattr(machine, knob) != value
        )
        raise ValueError(f"{clash}: leave machine out, or found")
    if {row.model.name for row in found.rows} != set(MODELS):
        raise ValueError("against_paper needs the sublayers of all models: leave models as it is")
    halves, made = {small: found.of(small) for small in (True, False)}, {}
    nulls = {small: null_model(half) for small, half in halves.items()}
    rows = []
    for anchor in ANCHORS:
        row = Compared(anchor, anchor.ours(halves[anchor.small], {}), {})
        if anchor.kind != "identity":
            row = row._replace(null=anchor.ours(nulls[anchor.small], {}))
        if sensitivity and not row.matched and anchor.varied:
            row = row._replace(
                plain=_varied(anchor, found.machine, {}, made),
                sensitivity={
                    name: _varied(anchor, found.machine, VARIED[name], made)
                    for name in anchor.varied
                },
            )
        rows.append(row)
    return AgainstPaper(tuple(rows), found)


def _varied(anchor, machine, knobs, made):
    knobs = dict(knobs)
    whole = {name: knobs.pop(name) for name in ("other", "measured") if name in knobs}
    key = anchor.small, *knobs.items()
    if key not in made:
        tile = knobs.pop("tile", (128, 128))
        names = [m.name for m in MODELS.values() if m.small == anchor.small]
        made[key] = sublayers(replace(machine, **knobs), names, wavefronts=1, tile=tile)
    return anchor.ours(made[key], whole)


def drawn(study: Sublayers | AgainstPaper, theme: str = "light") -> "Figure":
    """A plotly ``Figure`` of `Sublayers`: speedups; or of `AgainstPaper`: the paper's and ours.

    Raises ``ValueError`` on something else.
    """
    if not isinstance(study, Sublayers | AgainstPaper):
        raise ValueError(
            f"drawn takes what t3.sublayers() or t3.against_paper() gives, not {study!r}"
        )
    return study.figure(theme)
