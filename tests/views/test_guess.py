"""The guess widget: commit once, then compare; works without a click."""

import pytest

from tpviz.views.widgets.guess import Guess


def test_guess_formula_and_measurement_stand_side_by_side():
    guess = Guess("How many bytes?", unit="bytes")
    guess.commit(1_000_000)
    reveal = guess.reveal(1_572_864, formula="2 (n-1)/n S", predicted=1_572_864)
    assert repr(reveal) == (
        "your guess 1,000,000 bytes | formula 2 (n-1)/n S = 1,572,864 bytes | "
        "measured 1,572,864 bytes\nYou guessed 0.64x the measured value."
    )
    assert reveal._repr_html_().count("<td>") == 3


def test_without_a_guess_the_reveal_still_works():
    reveal = Guess("How many?").reveal(4)
    assert repr(reveal).startswith("your guess no guess committed | measured 4\n")


def test_the_button_commits_what_the_field_says_and_then_it_stays():
    guess = Guess("How many?", unit="bytes")
    guess._field.value = "1.5e3"
    guess._button.click()
    assert guess.value == 1500
    assert guess._button.disabled
    assert repr(guess) == "<Guess 'How many?': guess 1,500 bytes>"
    with pytest.raises(ValueError, match="you have committed 1,500 bytes; it stays"):
        guess.commit(3)


def test_what_a_saved_notebook_keeps_of_it_is_the_guess(monkeypatch):
    shown = []
    show = lambda data, *more, transient=None, update=False: shown.append((data, transient, update))
    monkeypatch.setattr("IPython.display.publish_display_data", show)
    guess = Guess("How many <b>?", unit="bytes")
    guess._ipython_display_()
    guess.commit(5)
    (asked, place, first), _, (kept, same, again) = shown
    assert "How many &lt;b&gt;?</b> (no guess yet)" in asked["text/html"] and not first
    assert "(guess 5 bytes)" in kept["text/html"] and again and same == place


@pytest.mark.parametrize("text", ["many", "", "nan", "inf"])
def test_what_is_not_a_number_is_said_in_the_view(text):
    guess = Guess("How many <b>?")
    guess._field.value = text
    guess._button.click()
    assert guess.value is None
    assert "a guess is a number" in guess._note.value
    assert "<b>?" not in guess.children[0].value


@pytest.mark.parametrize(
    ("value", "measured", "words"),
    [(4, 4, "exactly right"), (8, 4, "2x the measured"), (3, 0, "it is none")],
)
def test_verdict(value, measured, words):
    guess = Guess("How many?")
    guess.commit(value)
    assert words in guess.reveal(measured).verdict


def test_unknown_keywords_are_refused():
    with pytest.raises(TypeError, match="units"):
        Guess("How many?", units="bytes")


def test_a_simulated_value_stands_between_formula_and_measurement():
    guess = Guess("How long?", unit="ms")
    guess.commit(30)
    reveal = guess.reveal(60, predicted=50, simulated=55)
    assert [head for head, _ in reveal.cells()] == [
        "your guess",
        "formula",
        "simulated",
        "measured",
    ]
    assert repr(reveal).endswith(
        "simulated 55 ms | measured 60 ms\nYou guessed 0.5x the measured value."
    )


def test_where_nothing_was_measured_the_guess_is_held_against_the_simulation():
    guess = Guess("How long?", unit="ms")
    guess.commit(110)
    reveal = guess.reveal(None, simulated=55)
    assert repr(reveal) == (
        "your guess 110 ms | simulated 55 ms\nYou guessed 2x the simulated value."
    )


def test_what_was_emulated_is_not_called_measured():
    guess = Guess("How long?", unit="ms")
    guess.commit(30)
    reveal = guess.reveal(60, predicted=50, badge="emulated")
    assert repr(reveal) == (
        "your guess 30 ms | formula 50 ms | emulated 60 ms\nYou guessed 0.5x the emulated value."
    )
    assert "measured" not in reveal._repr_html_()


def test_a_commit_is_told_once_and_a_refused_one_never():
    guess, heard = Guess("How many?"), []
    guess.on_commit(lambda: heard.append(guess.value))
    guess._field.value = "many"
    guess._button.click()
    assert heard == []
    guess.commit(3)
    with pytest.raises(ValueError, match="it stays"):
        guess.commit(4)
    assert heard == [3]
