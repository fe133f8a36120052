"""The product tuner: one result in every form, one decision a signature and for all ranks, and
nothing else of a step changes."""

from dataclasses import replace

import pytest
import torch
from test_axonn import axonn
from tiny import TINY, assert_equal, named

import tpviz as tv
from tpviz.schemes.axonn.tuner import FORMS, NATURAL, Signature, Tuner, product


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lies", ["NN", "NT", "TN", "TT"])
def test_every_form_is_the_same_product(form, lies):
    a, b, bias = (torch.randn(shape, dtype=torch.float64) for shape in ((6, 10), (10, 4), (4,)))
    given_a = a.t().contiguous().t() if lies[0] == "T" else a
    given_b = b.t().contiguous().t() if lies[1] == "T" else b
    torch.testing.assert_close(product(given_a, given_b, form), a @ b, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(
        product(given_a, given_b, form, bias), a @ b + bias, rtol=1e-14, atol=1e-14
    )


@pytest.mark.parametrize("form", FORMS)
def test_operands_lie_as_the_form_says(form, monkeypatch):
    """Row-major: N is contiguous as it is, T is the transpose of something contiguous."""
    seen = []
    multiply = torch.Tensor.__matmul__
    monkeypatch.setattr(
        torch.Tensor, "__matmul__", lambda a, b: seen.append((a, b)) or multiply(a, b)
    )
    product(torch.ones(6, 10), torch.ones(10, 4), form)
    ((a, b),) = seen
    assert [m.is_contiguous() for m in (a, b)] == [letter == "N" for letter in form]
    assert [m.t().is_contiguous() for m in (a, b)] == [letter == "T" for letter in form]


class Layer:
    """What the tuner asks of a linear layer."""

    def __init__(self, *shape):
        self.weight = torch.zeros(shape)
        self.pieces = self
        self.shape = shape


def clock_of(durations):
    """Seconds as if the timed runs took ``durations``, one after another."""
    times = iter(
        [t for k in range(len(durations)) for t in (sum(durations[:k]), sum(durations[: k + 1]))]
    )
    return lambda: next(times)


def test_the_fastest_median_is_chosen_once_a_signature():
    durations = [
        3,
        1,
        3,
        2,
        2,
        9,
        4,
        4,
        1,  # forward: medians NN 3, NT 2, TN 4
        1,
        1,
        1,
        2,
        2,
        2,
        3,
        3,
        3,  # input
        2,
        2,
        2,
        3,
        3,
        3,
        1,
        1,
        1,
    ]  # weight
    tuner = Tuner([], repeats=3, clock=clock_of(durations))
    tuner.prepare([Layer(4, 6), Layer(4, 6)], rows=8)  # the second has the first one's signatures
    assert tuner.chosen == {
        Signature(8, 4, 6, "forward"): "NT",
        Signature(8, 6, 4, "input"): "NN",
        Signature(4, 6, 8, "weight"): "TN",
    }
    assert tuner.seconds[8, 4, 6, "forward"] == {"NN": 3, "NT": 2, "TN": 4}


def test_the_slowest_rank_decides_for_all():
    """Rank 0 finds NN fastest, rank 1 NT by more: both take the form whose worst time is least."""
    found = tv.launch(_decide, world_size=2)
    assert found[0] == found[1] == {"NN": 9.0, "NT": 5.0, "TN": 8.0}


def _decide():
    import torch.distributed as dist

    mine = ([1] * 1 + [5] + [8], [9, 2, 7])[dist.get_rank()]
    tuner = Tuner([dist.group.WORLD], repeats=1, clock=clock_of(mine * 3))
    tuner.prepare([Layer(4, 6)], rows=8)
    assert set(tuner.chosen.values()) == {"NT"}
    return tuner.seconds[8, 4, 6, "forward"]


# -- in a model ------------------------------------------------------------------------------------
class Forced(tv.AxoNN):
    """Every product in one form, whatever was fastest: the depth's knob ``order`` says nothing."""

    form = "NN"

    def build(self, workload, mesh, dtype=None, device="cpu", **options):
        program = super().build(workload, mesh, dtype, device, **options)
        tuner = program.module.groups.tuner
        tuner.chosen = dict.fromkeys(tuner.chosen, self.form)
        return program


class ForcedNT(Forced):
    """As `Forced`."""

    form = "NT"


class ForcedTN(Forced):
    """As `Forced`."""

    form = "TN"


IN_FORM = [
    (cls(**dict(zip(("x", "y", "z", "data"), grid)), tune=True), TINY)
    for cls, grid in (
        (Forced, (1, 1, 1, 1)),
        (Forced, (2, 1, 2, 1)),
        (ForcedNT, (2, 1, 2, 1)),
        (ForcedTN, (1, 2, 1, 2)),
    )
]


@pytest.mark.parametrize("strategy, workload", IN_FORM, ids=named)
def test_a_model_in_any_form_equals_one_process(strategy, workload):
    assert_equal(strategy, workload, among=IN_FORM)


@pytest.mark.parametrize("knobs", [{"keep": False}, {"overlap": ()}, {"recompute": True}], ids=str)
def test_tuned_equals_one_process_and_sends_the_same(knobs):
    tuned = axonn((2, 1, 2, 1), tune=True, **knobs)
    assert_equal(tuned, replace(TINY, tied=False))
    assert tuned.ledger(TINY) == replace(tuned, tune=False).ledger(TINY)


def test_all_ranks_of_a_model_choose_alike():
    found = tv.launch(_chosen, axonn((2, 1, 2, 1), tune=True), TINY, world_size=4)
    assert found.count(found[0]) == 4
    # 4 layers of a block and the head, each with three products; sizes of the tiny one
    assert len(found[0]) == 15
    assert {key[3] for key in found[0]} == set(NATURAL)


def _chosen(strategy, workload):
    program = strategy.build(workload, tv.Mesh(strategy.axes).device_mesh(), torch.float32)
    return program.module.groups.tuner.chosen


@pytest.mark.parametrize("grid", [(1, 1, 1, 1), (2, 1, 2, 1), (1, 2, 1, 1)], ids=str)
def test_kernels_of_a_step_are_the_same(grid):
    """Tuned or not: the same kernels with the same sizes, collectives and waits in one order."""

    def events(tune):
        trace = tv.capture(axonn(grid, tune=tune), TINY).trace(0)
        names = ("kind", "name", "phase", "layer", "flops", "bytes", "axis")
        return list(zip(*(trace[name].tolist() for name in names)))

    assert events(True) == events(False)
