"""ATP's bug zoo: each fault trains, and `verify` flags it wherever it is seeded; what moves other
bytes is in the ledger too, and the evidence leads back to the layer and the cause."""

import sys
from dataclasses import replace

import cloudpickle
import pytest
from together import together, verifications

import tpviz as tv
from tpviz.course import atp_zoo as zoo
from tpviz.course.zoo import examine
from tpviz.schemes.grid.operators import Linear

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the ranks cannot import this file

CAUSES = zoo.BrokenATP.faults
SEEDED = [(cause, layer) for cause, fault in CAUSES.items() for layer in fault.options["layer"]]
OTHER_BYTES = {
    "output not summed",
    "gradient summed over the wrong axis",
    "gradient not summed",
    "statistics of own features",
    "copies not summed",
}
FORWARD_IS_RIGHT = {
    "gradient summed over the wrong axis",
    "gradient not summed",
    "copies not summed",
    "loss scaled twice",
}


def seeded(name, number=0):
    """The fault in a block, and on a mesh and order, that change from one to the next."""
    cause, layer = name
    number = SEEDED.index(name) + number
    return zoo.seed(cause, layer, number % 2, order=("column", "row")[number // 2 % 2])


class Right(zoo.BrokenATP):
    """Nothing is seeded."""

    def build(self, *args, **options):
        return tv.ATP.build(self, *args, **options)


UNEQUAL = [replace(seeded(name), mesh=mesh) for mesh in ((4, 2), (2, 4)) for name in SEEDED[::3]]
VERIFIED = (
    *map(seeded, SEEDED),
    *UNEQUAL,
    *(zoo.seed(cause).healthy for cause in CAUSES),
)


def verified(strategy):
    cases = tuple((s, zoo.WORKLOAD) for s in VERIFIED)
    return verifications(cases, steps=1)[strategy, zoo.WORKLOAD]


@pytest.fixture(scope="module")
def evidence():
    """{strategy: what `examine` gives} of all that these tests look at."""
    looked_at = [
        *(zoo.seed(cause) for cause in OTHER_BYTES),
        *(seeded(name, number=1) for name in SEEDED[1::2]),
        Right(mesh=(2, 2)),
    ]
    return together(examine, looked_at)


@pytest.mark.parametrize("name", SEEDED, ids="-".join)
def test_verify_flags_every_fault(name):
    broken = seeded(name)
    found = verified(broken)
    gradients = [error for what, error in found.errors.items() if what.startswith("gradient ")]
    assert not found.ok and "NOT EQUAL" in repr(found)
    assert max(gradients) > 1e-8, found
    assert (found.errors["outputs"] < 1e-10) == (broken.cause in FORWARD_IS_RIGHT)
    assert found.ledger_ok == (broken.cause not in OTHER_BYTES), found


@pytest.mark.parametrize("broken", UNEQUAL, ids=lambda s: f"{s.cause}-{s.layer}-{s.mesh}")
def test_flagged_where_the_axes_are_unequal(broken):
    """Eight heads on eight ranks: one head a rank is [q | k | v] in both readings."""
    assert verified(broken).ok == (broken.cause == "q, k, v as blocks")


@pytest.mark.parametrize("cause", CAUSES)
def test_without_the_fault_it_is_equal(cause):
    assert verified(zoo.seed(cause).healthy).ok


@pytest.mark.parametrize("cause", sorted(OTHER_BYTES))
def test_the_ledger_says_in_which_direction_bytes_are_missing(cause, evidence):
    lines = " ".join(evidence[zoo.seed(cause)].ledger)
    where = {
        "output not summed": {"forward"},
        "copies not summed": {"sync"},
        "statistics of own features": {"forward", "backward"},
    }.get(cause, {"backward"})
    assert {phase for phase in ("forward", "backward", "sync") if f"/{phase}:" in lines} == where


@pytest.mark.parametrize("name", SEEDED[1::2], ids="-".join)
def test_evidence_begins_in_the_seeded_layer(name, evidence):
    broken = seeded(name, number=1)
    evidence = evidence[broken]
    errors = evidence.backward if broken.cause in FORWARD_IS_RIGHT else evidence.forward
    first = next((layer for layer, error in errors.items() if error > 1e-10), None)
    assert first == {"sync": None, "loss": "head"}.get(broken.place, broken.place)
    assert (evidence.got is None) == (broken.place == "sync")


def test_evidence_of_a_right_program_is_all_right(evidence):
    evidence = evidence[Right(mesh=(2, 2))]
    assert list(evidence.forward)[:3] == ["embed", "blocks.0.norm1", "blocks.0.attention.qkv"]
    assert list(evidence.backward)[:2] == ["head", "norm"]
    assert "forward: 0 of 15 wrong\nbackward: 0 of 14 wrong\ngradients: 0 of 28" in repr(evidence)
    assert repr(evidence).endswith("ledger: as the formula")


def test_a_doubled_gradient_hides_from_the_losses():
    """AdamW divides by the size of the gradient, so training looks the same: only the gradients
    themselves tell."""
    found = tv.verify(zoo.seed("loss scaled twice"), zoo.WORKLOAD, steps=3, progress=False)
    assert (
        found.errors["losses"]
        < 1e-6
        < max(error for what, error in found.errors.items() if what.startswith("gradient "))
    )


class NotOverlapped(tv.ATP):
    """Right numbers and bytes, but every sum is waited for at once."""

    def build(self, *args, **options):
        program = super().build(*args, **options)
        for layer in program.module.modules():
            if hasattr(layer, "way"):
                layer.forward = lambda x, layer=layer: (
                    Blocking.apply(x, layer.weight, None, layer.way)
                    + (0 if layer.bias is None else layer.bias)
                )
        return program


class Blocking(Linear):
    """The layer that computes the weight's gradient after the sum of the input's."""

    @staticmethod
    def backward(ctx, grad):
        from tpviz.schemes.grid import operators

        plain = operators.summing

        def at_once(*args):
            result = plain(*args)()
            return lambda: result

        operators.summing = at_once
        try:
            return Linear.backward(ctx, grad)
        finally:
            operators.summing = plain


def test_lost_overlap_is_no_fault_to_verify_but_the_simulation_shows_it():
    """What the equivalence check cannot see: time. Formula and simulation then disagree."""
    slow, right = NotOverlapped(mesh=(2, 2)), tv.ATP(mesh=(2, 2))
    assert tv.verify(slow, zoo.WORKLOAD, steps=1, progress=False).ok
    cluster = tv.clusters.nvlink_pairs(2)
    predicted = tv.predict(right, zoo.WORKLOAD, cluster).step_time
    assert tv.simulate(right, zoo.WORKLOAD, cluster).step_time == pytest.approx(predicted)
    assert tv.simulate(slow, zoo.WORKLOAD, cluster).step_time > predicted * (1 + 1e-5)


@pytest.mark.parametrize(
    "cause, layer, words",
    [("gremlins", None, "gremlins"), ("q, k, v as blocks", "mlp.up", "mlp.up")],
)
def test_unknown_faults_and_places_are_refused(cause, layer, words):
    with pytest.raises(ValueError, match=words):
        zoo.seed(cause, layer)
