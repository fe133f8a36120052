"""How wide views are in a real JupyterLab: they fill their column, whatever Lab did meanwhile."""

import pytest
from lab_page import lab_page, written

pytestmark = pytest.mark.browser

SHOWN = (
    """import tpviz as tv
trace = tv.simulate(tv.Megatron(tp=2), tv.GPT(), tv.clusters.nvswitch(2))
tv.Timeline(trace)""",
    "tv.ScheduleView('1f1b', p=2, m=2)",
    "tv.MeshView(tv.Mesh({'tp': 2}))",
)
VIEWS = ".tpv-timeline", ".tpv-schedule", ".tpv-mesh"
WIDTHS = """selectors => selectors.map(s => {
    const svg = document.querySelector(`${s}[data-ready] svg:not(.tpv-icon)`);
    return svg ? Math.round(svg.getBoundingClientRect().width) : 0;
})"""
SETTLED = f"([selectors, widths]) => `${{({WIDTHS})(selectors)}}` === `${{widths}}`"


@pytest.mark.parametrize("lab", ["perCommTarget"], indirect=True)
def test_a_theme_switch_leaves_every_view_as_wide_as_it_was(chromium, lab):
    """Lab hides its panels meanwhile: what is drawn then is drawn again."""
    notebook = written(lab, "sizes.ipynb", *SHOWN)
    with lab_page(chromium, lab.url, notebook) as page:
        for selector in VIEWS:
            page.view(f"{selector}[data-ready]")
        widths = page.page.evaluate(WIDTHS, list(VIEWS))
        assert widths[0] > 800
        for theme in ("Dark", "Light"):
            page._theme(theme)
            page.page.wait_for_timeout(1000)
            page.screenshot(f"sizes-{theme.lower()}.png")
            assert page.page.evaluate(WIDTHS, list(VIEWS)) == widths
