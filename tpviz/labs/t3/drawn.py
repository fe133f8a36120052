"""Pictures of the sublayers, and of the paper's numbers beside ours."""

from typing import TYPE_CHECKING, Any

from tpviz.figures.charts_t3 import CONFIGS, paper_figure, sublayers_figure

from .paper import LITTLE, NEAR, AgainstPaper
from .sublayers import FITTED_TO, Sublayers

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def drawn(study: Sublayers | AgainstPaper, theme: str = "light") -> "Figure":
    """A plotly ``Figure`` of `Sublayers`: speedups; or of `AgainstPaper`: the paper's and ours.

    Raises ``ValueError`` on something else.
    """
    if isinstance(study, Sublayers):
        return sublayers_figure(sublayers_scene(study), theme)
    if isinstance(study, AgainstPaper):
        return paper_figure(paper_scene(study), theme)
    raise ValueError(f"drawn takes what t3.sublayers() or t3.against_paper() gives, not {study!r}")


def sublayers_scene(found: Sublayers) -> dict[str, Any]:
    """What `charts_t3.sublayers_figure` draws."""
    return {
        "title": "T3's sublayers: forward OP and FC-2, backward FC-1 and IP",
        "badges": ["simulated"],
        "places": [[f"{r.model.name}<br>TP {r.tp}", r.name] for r in found.rows],
        "speedups": {c: [r.speedup(c) for r in found.rows] for c in CONFIGS},
        "notes": [
            "The paper's bars are not at hand, only means and maxima of them. "
            + FITTED_TO[0].upper()
            + FITTED_TO[1:]
        ],
        "alt": found.describe(),
    }


def paper_scene(against: AgainstPaper) -> dict[str, Any]:
    """What `charts_t3.paper_figure` draws: all but the ratios that are identities."""
    rows = [
        {
            "name": r.anchor.name,
            "paper": r.anchor.paper,
            "ours": r.ours,
            "kind": r.anchor.kind,
            "source": r.anchor.source,
            "matched": r.matched,
        }
        for r in against.rows
        if r.anchor.kind != "identity"
    ]
    same = [
        f"{r.anchor.name} {r.ours:.0f} % (paper {r.anchor.paper:g} %)"
        for r in against.rows
        if r.anchor.kind == "identity"
    ]
    wrong = [f"{r.anchor.name} {r.difference:+.1f} points" for r in against.unmatched]
    return {
        "title": "The paper's numbers, and ours",
        "badges": ["simulated", "the paper's"],
        "rows": rows,
        "alt": against.describe(),
        "notes": [
            f"Identities, not drawn: {'; '.join(same)}.",
            f"Within {NEAR:g} points: {against.score}. Not: {'; '.join(wrong) or 'none'}. {LITTLE}",
        ],
    }
