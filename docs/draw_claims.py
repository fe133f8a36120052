"""Write docs/claims.md and its chart: ``make claims``. On one core it takes two minutes."""

from pathlib import Path

import tpviz as tv
from tpviz.evidence.claims import VERDICTS, Claims

HERE = Path(__file__).parent
HEAD = """# Claims: the papers' headlines and our figures

Every headline figure of the abstracts of ATP, AxoNN, Merak and T3, beside the figure that one
function call of ours computes: `tv.claims()` makes this table, `make claims` writes this page.
We used the abstracts and public code, not the full papers, so settings are incomplete; the
experiments say what they assume. The papers' figures are in one file, `tpviz/evidence/claims.json`,
which no experiment reads. [ADR 0030](adr/0030-claims.md) has the rule and the reasons.

"""


def page(made: Claims) -> str:
    """The page in Markdown."""
    rule = "".join(f"* **{name}**: {words}.\n" for name, words in VERDICTS.items())
    parts = [
        HEAD,
        f"**{made.score}.**\n\n![Our figures over the papers', by headline](img/claims.svg)\n\n",
        "## Verdicts\n\nOne rule; where the paper gives a range, its nearer end counts.\n\n"
        f"{rule}\n",
        f"## Table\n\n{markdown(made.summary())}\n",
        "## Settings and sensitivity\n",
    ]
    for row in made.rows:
        c = row.claim
        lines = [
            f"\n### {c.system}: {c.claim}\n\n",
            f"Paper: {c.words}, {c.source}; {c.setting}.\n",
        ]
        if row.ours is None:
            parts += [*lines, "\nOurs: no experiment yet.\n"]
            continue
        lines.append(
            f"\nOurs: {row.ours.figure:.3g} {c.unit}, {row.ours.badge}. {row.ours.setting}\n"
        )
        every = [[u.name, words, f"{x:.3g} {c.unit}"] for u in row.unknowns for words, x in u.ends]
        if every:
            lines.append(f"\n{markdown([['unknown', 'value', 'ours'], *every])}")
        parts += lines
    return "".join(parts)


def markdown(rows: list[list[str]]) -> str:
    """Rows of strings, header first, as a table."""
    head, *body = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    """All rows."""
    made = tv.claims()
    (HERE / "claims.md").write_text(page(made))
    (HERE / "img" / "claims.svg").write_text(made.to_svg("light"))
    print(made)


if __name__ == "__main__":
    main()
