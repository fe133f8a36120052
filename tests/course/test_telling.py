"""Wrong answers fail on every seed, not on most: the cases that tell are always posed; and what is
told is the mistake that was made. `bench/sweep_answers.py` does the same on forty seeds, with the
exercises on ranks."""

import batches
import misconceptions
import misconceptions_schemes as schemes
import numpy as np
import otherwise
import pytest
import solutions_layouts
import solutions_memory
import solutions_zero
import torch
import torch.distributed as dist
from test_misconceptions import RUNS

from tpviz.course import check, exercise, exercises
from tpviz.course.causes import Cause, Given, likeliest
from tpviz.course.formula import Formula

FORMULAS = [t for t in exercises() if isinstance(t, Formula) and t.name not in RUNS]
SLOW = {"merak_schedule", "pipe_1f1b", "merak_cuts", "merak_bubble", "axonn_grid_for"}
SLOW |= {"t3_tracker", "t3_tile", "t3_policy", "t3_ring_maps", "t3_other_maps"}
"""They run, trace or simulate for a while."""
SEEDS = range(100, 102)
LISTED = [t for t in FORMULAS if t.mistakes is not Formula.__dataclass_fields__["mistakes"].default]


@pytest.mark.parametrize("task", LISTED, ids=lambda task: task.name)
def test_each_listed_mistake_shows_in_every_draw(task):
    for seed in range(100, 101 if task.name in SLOW else 110):
        assert task.hidden(batches.questions_of(task.name, seed)) == set(), seed


@pytest.mark.parametrize("task", [t for t in FORMULAS if t.name not in SLOW], ids=lambda t: t.name)
def test_verdicts_are_the_same_on_other_seeds(task):
    right, wrong = batches.answers(task.name)
    for seed in SEEDS:
        assert [fn for fn in right if batches.asked_here(task, fn, seed)] == []
        assert [fn for fn in wrong if not batches.asked_here(task, fn, seed)] == []


# -- what passed before --
def states_without_masters_of_sgd(parameters, recipe, optimizer):
    weights, gradients, master, moments = solutions_memory.states(parameters, recipe, optimizer)
    return weights, gradients, master * (optimizer != "sgd"), moments


def fits_less_than_nothing(parameters, tp, pp, dp, zero, sequence, memory):
    states = parameters / tp / pp * (6 + 12 / (dp if zero else 1))
    return states, (memory - states) // (pp * sequence)


def between_with_half_of_dp(layers, hidden, tokens, microbatches, inside, between):
    activations = 2 * tokens * hidden * microbatches
    sends = {"tp": 1e30, "pp": activations, "dp": 4 * 12 * hidden**2 * layers / 8}
    return min(sends, key=sends.get)


def between_with_twice_pp(layers, hidden, tokens, microbatches, inside, between):
    activations = 2 * tokens * hidden * microbatches
    sends = {"tp": 1e30, "pp": 2 * activations, "dp": 4 * 12 * hidden**2 * layers / 4}
    return min(sends, key=sends.get)


@pytest.mark.parametrize(
    ("name", "fn", "words"),
    [
        ("mem_states", states_without_masters_of_sgd, "the master weight has 0, and should have 4"),
        ("beat_fits", fits_less_than_nothing, "so the micro batch is 0, not negative"),
        ("beat_between", between_with_half_of_dp, "half of the bytes over dp"),
        ("beat_between", between_with_twice_pp, "or twice those over pp"),
        ("merak_keep", schemes.keep_above_all, "k above 1 means all layers"),
        ("axonn_coords", schemes.coords_run_past_z, "the quotient modulo the size of z"),
        ("axonn_coords", schemes.coords_turned, "x and y are exchanged"),
        ("axonn_piece", schemes.piece_runs_past_z, "the quotient modulo the size of z"),
    ],
)
def test_these_passed_on_some_seeds(name, fn, words):
    for seed in range(40):
        message = batches.asked_here(exercise(name), fn, seed)
        assert message and words in message, seed


def test_no_near_tie_of_chunks_is_asked():
    """Two numbers of chunks that differ by a hundredth of a ppm are both right: seed 13 asked."""
    task = exercise("best_chunks")
    for seed in range(40):
        assert batches.asked_here(task, otherwise.chunks_rounded, seed) is None, seed


def test_what_is_remembered_of_collectives_in_flight_is_told_on_every_seed():
    """Answers of -1 are alike: which programs they are given to tells the memories apart."""
    for fn, words in misconceptions.WRONG["overlap_used_early"]:
        for seed in range(40):
            message = batches.asked_here(exercise("overlap_used_early"), fn, seed)
            assert message and words in message, (fn.__name__, seed)


def test_plain_data_parallelism_is_no_step_of_zero():
    """It has no momentum of the other shards, and passed while there was none."""
    result = check("zero_step", solutions_zero.step_of_replicas_in_halves)
    assert not result and "momentum is left out" in result.message


def bucket_in_two_halves(*gradients):
    bucket, n = torch.cat([gradient.flatten() for gradient in gradients]), dist.get_world_size()
    padded = torch.cat([bucket, bucket.new_zeros(-len(bucket) % n)])
    shard, whole = torch.empty_like(padded.chunk(n)[0]), torch.empty_like(padded)
    dist.reduce_scatter_tensor(shard, padded)
    dist.all_gather_into_tensor(whole, shard / n)
    return whole[: len(bucket)]


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
def test_as_many_bytes_are_not_called_too_many():
    message = check("zero_bucket", bucket_in_two_halves).message
    assert "will do" not in message
    assert "2 collectives" in message or "bytes needed" in message  # with a padded bucket


# -- which cause is told --
def product(a, b, c):
    return a * b / c


def given(a, b, c, got, listed=None):
    return Given({"a": a, "b": b, "c": c}, product(a, b, c), got, listed or {})


def told(fn, *listed):
    """The words for this answer to three questions."""
    sizes = [(6, 35, 22), (10, 21, 13), (15, 26, 17)]
    draw = [
        given(
            *abc, fn(*abc), {k: Cause(w, f(*abc), general=False) for k, (w, f) in enumerate(listed)}
        )
        for abc in sizes
    ]
    seen = {name: [abc[k] for abc in sizes] for k, name in enumerate("abc")}
    cause = likeliest(draw[0], draw, product, seen)
    return cause and cause.words


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda a, b, c: 2 * a * b / c, "2 times the right answer"),
        (lambda a, b, c: a * b, "`c`"),
        (lambda a, b, c: a * c / b, "`b` and `c` are exchanged"),
        (lambda a, b, c: (a - 1) * b / c, "(`a` - 1) / `a` times"),
        (lambda a, b, c: -a * b / c, "the sign is wrong"),
        (lambda a, b, c: a * b // c, "you rounded"),
        (lambda a, b, c: c / (a * b), "that is the inverse"),
        (lambda a, b, c: a * b / c + a, "`a` is in your answer once too often"),
    ],
)
def test_causes_of_any_formula(fn, words):
    assert words in told(fn)


def test_what_fits_by_chance_is_not_told():
    """Twice the right answer to the first question, and something else to the others."""
    assert told(lambda a, b, c: 2 * 6 * 35 / 22) is None


def test_of_two_mistakes_the_one_that_fits_all_answers_is_told():
    once = ("once", lambda a, b, c: 2 * a * b / c if a == 6 else None)
    always = ("always", lambda a, b, c: 2 * a * b / c)
    assert told(always[1], once, always) == "always"


def test_parts_are_told_apart():
    want, listed = (2.0, 3.0), {0: Cause("the second", (2.0, 9.0), general=False)}
    first = Given({"a": 5}, want, (2.0, 9.0), listed)
    assert likeliest(first, [first]).words == "the second"
    other = Given({"a": 5}, want, (4.0, 9.0), listed)
    assert "2 times" in likeliest(other, [other], lambda a: want, {"a": [5]}).words


# -- right results in the wrong place --
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda terms: [terms[0]] * 4, "every rank has the term of rank 0 alone"),
        (lambda terms: [sum(terms) - one for one in terms], "own term is missing"),
        (lambda terms: list(np.cumsum(terms, axis=0)), "the ranks up to itself alone"),
        (lambda terms: [sum(terms).T] * 4, "the result is transposed"),
        (lambda terms: [np.roll(sum(terms), 1, 0)] * 4, "dim 0 of the result is shifted by 1"),
        (lambda terms: [0 * one for one in terms], "every number is zero"),
    ],
)
def test_results_of_ranks_are_known_by_their_numbers(wrong, words):
    from tpviz.course.checks import Attempt, right_numbers, whole_numbers
    from tpviz.course.grade import cases_of

    task, rng = exercise("mean_over_ranks"), np.random.default_rng(0)
    case = cases_of(task, 0, 0)[0]
    terms = [whole_numbers(rng, 3, 3) for _ in range(4)]
    case = case._replace(
        inputs=[(one,) for one in terms],
        expected=[sum(terms)] * 4,
        terms=case.terms.__class__(terms),
    )
    needed = task.needed({"world": 4}, case)
    attempt = Attempt({"world": 4}, case, wrong(terms), needed, needed, 0)
    assert words in right_numbers(attempt)


def test_layouts_answers_are_those_of_the_task():
    """Where the states alone do not fit, the largest micro batch is 0."""
    states, most = solutions_layouts.beat_fits(10**9, 1, 2, 1, 0, 10**8, 10**9)
    assert states > 10**9 and most == 0
