"""Tables as HTML."""

from tpviz.core.tables import html_table

ROWS = [["what", "bytes"], ["a < b", "8"], ["'c' & d", "16"]]


def test_the_header_first_and_every_cell_escaped():
    assert html_table(ROWS, "class='x'") == (
        "<table class='x'><tr><th>what</th><th>bytes</th></tr>"
        "<tr><td>a &lt; b</td><td>8</td></tr><tr><td>&#x27;c&#x27; &amp; d</td><td>16</td></tr>"
        "</table>"
    )


def test_every_cell_has_its_columns_style():
    html = html_table(ROWS, "", (f"width:{n}px" for n in (1, 2)))
    assert html.count(" style='width:1px'") == html.count(" style='width:2px'") == len(ROWS)
    assert "<th style='width:1px'>what</th><th style='width:2px'>bytes</th>" in html


def test_a_header_alone():
    html = html_table(ROWS[:1], "class='x'")
    assert html == "<table class='x'><tr><th>what</th><th>bytes</th></tr></table>"
