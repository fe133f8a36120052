"""What no list has: the answers of the right formula with one thing changed in it."""

import batches
import pytest

from tpviz.course import exercise
from tpviz.course.changes import changed


def of_one_part(tokens, hidden, itemsize, tp):
    unit = tokens * hidden * itemsize
    return (4 + 12 / tp) * unit, 13 / tp * unit


def of_plus(size, dp, zero):
    return (3 if zero == 3 else 2) * (dp + 1) / dp * size


def of_the_micro_batch(batch, dp, pp, micro_batch):
    microbatches = batch / dp * micro_batch
    return microbatches, (pp - 1) / (microbatches + pp - 1)


def of_nothing_known(size, dp, zero):
    return 0.7391 * size + dp


@pytest.mark.parametrize(
    ("name", "fn", "words"),
    [
        ("tp_activations", of_one_part, None),
        ("zero_sent", of_plus, "it is right but for this: you add `1`, which is to be subtracted"),
        ("beat_bubble", of_the_micro_batch, "`micro_batch`"),
        ("zero_sent", of_nothing_known, None),
    ],
)
def test_one_change_is_told_where_all_answers_have_it(name, fn, words):
    for seed in range(5):
        message = batches.asked_here(exercise(name), fn, seed)
        assert message and (words in message if words else "right but for" not in message)


def test_code_that_may_not_end_is_left_alone():
    def rises(x):
        while x < 3:
            x += 1
        return x

    assert changed(rises) == ()
    assert changed(len) == ()
    assert changed(lambda x: x + 1) == ()
