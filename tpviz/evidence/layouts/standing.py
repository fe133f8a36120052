"""``standing``: how well predictions rank all groups of layouts of a source, beside baselines."""

from dataclasses import dataclass
from statistics import median
from typing import Any

from tpviz.core.charts import axis, panel, points
from tpviz.core.tables import text_table
from tpviz.evidence.published import scoreboard as score
from tpviz.evidence.published.rows import published
from tpviz.evidence.published.scoreboard import ScorePoint
from tpviz.evidence.published.validate import validate
from tpviz.evidence.report import Report

from .group import MOST, RANDOM, SEARCH, STYLES, most_parallel, regret, rows_of, times_fastest

PREDICTED = "fastest predicted"
LOOKS = {PREDICTED: STYLES[SEARCH], MOST: STYLES[MOST], RANDOM: STYLES[RANDOM]}


@dataclass(frozen=True, eq=False, repr=False)
class Standing(Report):
    """The groups of a source that nothing was fitted on: {(source, model, GPUs, ...): points}."""

    groups: dict[tuple[Any, ...], list[ScorePoint]]
    badges = ("predicted", "measured by others")

    @property
    def points(self) -> list[ScorePoint]:
        """Of all groups."""
        return [point for own in self.groups.values() for point in own]

    def rankings(self) -> list[score.Ranking]:
        """Rank correlation and regret of each group."""
        return score.rankings(self.points)

    def regrets(self) -> dict[str, list[float]]:
        """{who picks: its regret in each group}, in the order of ``groups``."""
        every = self.groups.values()
        return {
            PREDICTED: [ranked.regret for ranked in self.rankings()],
            MOST: [regret(most_parallel(own), own) for own in every],
            RANDOM: [regret(own, own) for own in every],
        }

    @property
    def names(self) -> list[str]:
        """The groups in short."""
        return [
            f"{model}, {gpus} {gpu.partition('-')[0]}" for _, model, gpus, gpu, *_ in self.groups
        ]

    def drawing(self) -> dict[str, Any]:
        """Each group's picks, and its rank correlation."""
        names, rows = self.names, rows_of(self.names)
        slower = {who: [1 + r for r in found] for who, found in self.regrets().items()}
        worst = max(max(found) for found in slower.values())
        picks = [points(who, found, names, *LOOKS[who]) for who, found in slower.items()]
        ranks = [ranked.correlation for ranked in self.rankings()]
        order = [points("rank correlation", ranks, names, "backward", "square", 11)]
        source = next(iter(self.groups))[0]
        return {
            "title": f"Groups of layouts of {source}: nothing was fitted on them",
            "panels": [
                panel("measured / fastest", picks, times_fastest("", worst), rows),
                panel("rank correlation", order, axis(range=[-1, 1]), rows),
            ],
            "shared_y": True,
        }

    def words(self) -> list[str]:
        """Errors of these rows, and the medians of the groups."""
        e, ranked = score.errors(self.points), self.rankings()
        middle = median(r.correlation for r in ranked)
        each = (f"{who} {100 * median(r):.1f} %" for who, r in self.regrets().items())
        facts = {"groups": len(ranked), "correlation": middle, "regrets": ", ".join(each)}
        return self.say("standing", e=e, **facts).split("\n\n")

    def notes(self) -> list[str]:
        """What the baselines are."""
        return [self.say("baselines", most=MOST, random=RANDOM)]

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: each group."""
        regrets = self.regrets()
        head = ["group", "layouts", "rank correlation", *(f"regret, {who}" for who in regrets)]
        told = zip(self.names, self.rankings(), *regrets.values())
        return [head] + [
            [name, f"{r.rows}", f"{r.correlation:.2f}", *(f"{100 * x:.1f} %" for x in each)]
            for name, r, *each in told
        ]

    def __repr__(self):
        return "\n".join([*text_table(self.to_table(), right=(1, 2, 3, 4, 5)), *self.words()])


def standing(source: str = "ultrascale_playbook_h100") -> Standing:
    """The `Standing` of the groups of a source to test on: those of five layouts or more.

    source : part of the name of sources, as `tpviz.published` takes it. Raises ``ValueError`` where
    they have no such group.
    """
    rows = [row for row in published(source=source) if row.part == "test"]
    groups = score.groups(score.points(validate(rows).rows)) if rows else {}
    if not groups:
        raise ValueError(
            f"source={source!r} has no group of {score.LEAST} layouts to test on: try "
            "'ultrascale_playbook_h100' or 'bigscience_a100_384'"
        )
    return Standing(groups)
