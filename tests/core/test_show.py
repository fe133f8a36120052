"""How a result is shown, whatever it is: of rows and words a text and HTML."""

import pytest

from tpviz.core.show import Tabular, figure_of


class Sends(Tabular):
    """Two axes, the second with a name that HTML must escape."""

    _look, _right = "mine", (1,)

    def to_table(self):
        return [["axis", "bytes"], ["tp", "8"], ["<dp>", "16"]]


class Told(Sends):
    """The same with sentences, printed without its last row."""

    def _printed(self):
        return self.to_table()[:2]

    def _above(self):
        return "Sent & received."

    def _below(self):
        return "One row < two."


ROWS = "<tr><th>axis</th><th>bytes</th></tr><tr><td>tp</td><td>8</td></tr>"


def test_a_table_is_text_and_html():
    assert repr(Sends()) == "axis  bytes\ntp        8\n<dp>     16"
    html = Sends()._repr_html_()
    assert html == f"<table class='mine'>{ROWS}<tr><td>&lt;dp&gt;</td><td>16</td></tr></table>"


def test_sentences_stand_around_what_is_printed_of_it():
    assert repr(Told()) == "Sent & received.\naxis  bytes\ntp        8\nOne row < two."
    around = "<p>Sent &amp; received.</p>", "<p>One row &lt; two.</p>"
    assert Told()._repr_html_() == f"<table class='mine'>{ROWS}</table>".join(around)


def test_what_no_figure_draws_is_refused_by_its_name():
    with pytest.raises(TypeError, match="no figure draws a Sends"):
        figure_of(Sends())
