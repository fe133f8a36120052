"""Write the scoreboard: ``make validate``. docs/validation.md, its chart, the README's figures, and
the bands of the planner.

On one core it takes two minutes, most of which are for simulations of four rows.
"""

import re
from dataclasses import replace
from pathlib import Path

import tpviz as tv
from tpviz.evidence.published import bands
from tpviz.evidence.published.page import board, digests, of_part, page, summary
from tpviz.evidence.published.scoreboard import points

HERE = Path(__file__).parent
MARKS = re.compile(r"(<!-- validation -->\n).*?(\n<!-- /validation -->)", re.S)


def main() -> None:
    """All published rows."""
    made = board()
    tv.shutdown()
    (HERE / "validation.md").write_text(page(made))
    real, ideal = (points(of_part(v.rows, "test")) for v in (made.steps, made.ideal))
    bands.write(real, ideal, digests())
    tested = replace(made.steps, rows=tuple(of_part(made.steps.rows, "test")))
    (HERE / "img" / "validation.svg").write_text(tested.to_svg("light"))
    words, readme = summary(made.steps.rows), HERE.parent / "README.md"
    readme.write_text(MARKS.sub(rf"\g<1>{words}\g<2>", readme.read_text()))
    print(words)


if __name__ == "__main__":
    main()
