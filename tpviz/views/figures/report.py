"""What draws a result whose picture is a chart (`tpviz.core.charts`): of a lab, of a search."""

from .chart_svg import LEGIBLE, chart_svg
from .page import place, swept, write_view
from .plotly_chart import plotly_figure
from .svg import fitted, image

__all__ = [
    "LEGIBLE",
    "chart_svg",
    "fitted",
    "image",
    "place",
    "plotly_figure",
    "swept",
    "write_view",
]
