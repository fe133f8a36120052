"""What Merak's exercises are graded by: closed forms, the clock, autograd, and by hand."""

from itertools import combinations

import numpy as np
import pytest
import solutions_merak

import tpviz as tv
from tpviz.core.schedules import formulas, schedule
from tpviz.course import merak, merak_orders, merak_ranks
from tpviz.course.formula import Question
from tpviz.verbs.verify import Verification


def answers(make, seeds=20):
    """Questions of several draws."""
    return [q for seed in range(seeds) for q in make(np.random.default_rng(seed))]


def test_makespans_and_microbatches_in_flight_are_the_closed_forms():
    for question in answers(merak.BUBBLE.make):
        p, m, f, r, b = question.arguments.values()
        assert question.answer == pytest.approx(
            tuple(formulas.makespan(name, p, m, f, b, r) for name in merak.THREE)
        )
    for question in answers(merak.IN_FLIGHT.make):
        name, p, m, s = question.arguments.values()
        assert question.answer == formulas.in_flight(name, p, m)[s]


def test_memory_is_the_formula():
    """M = A (1 + (n - 1) k) + C n (1 - k)."""
    for question in answers(merak.MEMORY.make):
        name, p, m, s, whole, inputs, keep = question.arguments.values()
        n = formulas.in_flight(name, p, m)[s]
        assert question.answer == pytest.approx(
            whole * (1 + (n - 1) * keep) + inputs * n * (1 - keep)
        )


def test_layers_that_are_recomputed_by_hand():
    """k is 0.15, 0.225, 0.45 under 1F1B; the third is that of the second under Merak's."""
    assert merak.dropped("1f1b", 4, 12, 0.15) == (10, 9, 6, 0)
    assert merak.dropped(merak.SCP, 4, 12, 0.15) == (10, 9, 9, 0)
    for question in answers(merak.KEEP.make, 40):
        name, p, layers, keep = question.arguments.values()
        assert question.answer == merak.by_rule(p, layers, keep, name == merak.SCP)


# -- orders ----------------------------------------------------------------------------------------
def test_the_choice_of_early_recomputations_is_the_only_one():
    """Fast, and none to spare. For the small sizes all choices are tried; for the large one each
    of Merak's has to be early even if all the others are."""
    for question in merak_orders.EARLY.make(None):
        p, m = question.known["ranks"], question.arguments["microbatches"]
        every = [(rank, i) for rank in range(p - 1) for i in range(m)]

        def chosen(early, p=p):
            return tuple(tuple(i for rank, i in early if rank == r) for r in range(p))

        known = {
            (action.stage, action.microbatch)
            for row in schedule(merak.SCP, p, m).actions
            for action in row
            if action.kind == "R"
        }
        limit = question.known["limit"]
        assert merak_orders.clock(p, m, chosen(sorted(known))).makespan == limit
        if p == 2:
            right = [
                set(early)
                for n in range(m + 1)
                for early in combinations(every, n)
                if merak_orders.EARLY.judge(question, chosen(early)) is None
            ]
            assert right == [known]
        needed = {
            one
            for one in every
            if merak_orders.clock(p, m, chosen([other for other in every if other != one])).makespan
            > limit
        }
        assert needed == known
    assert merak_orders.EARLY.make(None)[0].known["limit"] == 30


def test_early_recomputation_never_takes_longer():
    """So what is needed beside all others is needed in every choice."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        early = [set(np.flatnonzero(rng.integers(0, 2, 6)).tolist()) for _ in range(3)]
        more = [part | {int(rng.integers(6))} for part in early]
        times = [
            merak_orders.clock(4, 6, (*map(tuple, map(sorted, parts)), ())).makespan
            for parts in (early, more)
        ]
        assert times[1] <= times[0]


def test_written_lines_are_run_as_they_are():
    lines, workload = tuple(solutions_merak.ONE_F_ONE_B), tv.GPT(layers=3)
    own = tv.Merak(pp=3, microbatches=4, recompute="none", schedule=lines)
    assert str(own.schedule_of(workload)).splitlines() == list(lines)
    assert own.schedule_of(workload).actions == schedule("1f1b", 3, 4, recompute=False).actions


def test_who_writes_a_schedule_is_told_what_was_measured():
    said = tv.check("merak_schedule", solutions_merak.order).message
    assert said.startswith(
        "Simulated: 18, and 3, 2, 1 microbatches in flight. Run on 3 real ranks "
        "it differs from one process by at most "
    )
    assert merak_orders.run_of(tuple(solutions_merak.ONE_F_ONE_B)).ledger_ok


def test_lines_that_come_out_wrong_are_not_passed(monkeypatch):
    """What no schedule of ours does."""
    wrong = Verification(
        tv.Merak(pp=3),
        tv.GPT(),
        1,
        dict.fromkeys(("outputs", "input gradient", "losses", "gradient x", "parameter x"), 1.0),
    )
    monkeypatch.setattr(merak_orders, "run_of", lambda lines: wrong)
    question = Question({}, ())
    said = merak_orders.SCHEDULE.judge(question, tuple(solutions_merak.ONE_F_ONE_B))
    assert said.startswith("on real ranks it is not one process's step:\nNOT EQUAL")


def test_the_longest_gap_by_hand():
    """Rank 0 waits from 1 to 7: for two forwards, and three backwards take 6 in turn."""
    line = merak_orders.timeline(merak_orders.read(("F0 B0 F1 B1 F2 B2 F3 B3",) * 3))
    assert merak_orders.longest_gap(line)[:2] == (0, 6.0)
    assert line.makespan == 36


# -- graphs and ranks ------------------------------------------------------------------------------
def test_cuts_of_a_transformer_by_hand():
    operations, crosses, legal = merak_orders.graph_of(merak_orders.transformer)
    assert legal == {"embedding", "add", "add_1", "layer_norm_2"}
    assert set(crosses["gelu"]) == {"add", "gelu"}
    assert operations[0] == ("embedding", operations[0][1])
    assert operations[-1][0] == "linear_6"


def test_two_streams_are_cut_where_they_are_one():
    _, crosses, legal = merak_orders.graph_of(merak_orders.two_streams)
    assert legal == {"linear", "mul", "tanh"}
    assert set(crosses["add"]) == {"linear", "add"}


@pytest.mark.parametrize("seed", range(3))
def test_the_block_in_halves_is_autograds(seed):
    torch = pytest.importorskip("torch")
    axes = {"dp": 2, "tp": 2}
    case = merak_ranks._make_halves(np.random.default_rng(seed), axes)
    for rank in range(4):
        row = merak_ranks._row_of(case, axes, rank)
        x, grad = (torch.tensor(row[0][k]) for k in (0, 5))
        x.requires_grad_()
        y = x + sum((x @ torch.tensor(own[1]).T).relu() @ torch.tensor(own[2]).T for own in row)
        z = y + sum((y @ torch.tensor(own[3]).T).relu() @ torch.tensor(own[4]).T for own in row)
        z.backward(grad)
        want = torch.cat([z.detach(), x.grad]).numpy()
        assert np.array_equal(case.expected[rank], want)


def test_replicas_have_other_rows_and_the_same_weights():
    case = merak_ranks._make_halves(np.random.default_rng(0), {"dp": 2, "tp": 2})
    assert not np.array_equal(case.inputs[0][0], case.inputs[2][0])
    assert all(np.array_equal(case.inputs[0][k], case.inputs[2][k]) for k in range(1, 5))
    assert all(np.array_equal(case.inputs[0][k], case.inputs[1][k]) for k in (0, 5))
