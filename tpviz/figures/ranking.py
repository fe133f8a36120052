"""What the chart of a `tpviz.search` is made of: a scene of `charts`, as SVG and as a page."""

from .chart_svg import LEGIBLE, chart_svg
from .charts import FROM_ZERO, LINES, panel, points, unit_of, words_of
from .page import place, write_view
from .svg import image

__all__ = [
    "FROM_ZERO",
    "LEGIBLE",
    "LINES",
    "chart_svg",
    "image",
    "panel",
    "place",
    "points",
    "unit_of",
    "words_of",
    "write_view",
]
