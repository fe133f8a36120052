"""AxoNN's bug zoo: each fault trains, and `verify` flags it wherever it is seeded; what moves other
bytes is in the ledger too, and the evidence leads back to the place."""

from dataclasses import replace

import pytest
from together import together, verifications
from wrongs import wrong

import tpviz as tv
from tpviz.course import axonn_zoo as zoo
from tpviz.course.zoo import examine

CAUSES = zoo.BrokenAxoNN.faults

SEEDED = {"layer", "block", "grid"}
"""Options that are no knobs."""
OTHER_BYTES = {
    "statistics of own features",
    "axes not exchanged",
    "bias not summed over z",
    "bias summed over z twice",
    "prefetched in the order of modules",
}
FORWARD_IS_WRONG = {
    "statistics of own features",
    "axes not exchanged",
    "block of another layer",
    "same rows along z",
    "other rows along x",
}
UNWAITED = {"scatter not waited for", "prefetched in the order of modules"}
ONE_GRADIENT = {
    "bias not summed over z",
    "bias summed over z twice",
    "gradient divided by z",
    "scatter not waited for",
    "microbatch overwritten",
}


def seeded(cause, number=0):
    """The fault in a layer, block and grid that change from one to the next."""
    return zoo.variant(cause, number)


EQUAL = {
    knobs: tv.AxoNN(x=1, y=2, z=2, **dict(knobs))
    for knobs in ((), (("accumulation", 2),), (("clip", 0.05),), (("keep", False),))
}
VERIFIED = tuple((s, zoo.WORKLOAD) for s in (*map(seeded, CAUSES), *EQUAL.values()))


def verified(strategy):
    return verifications(VERIFIED, steps=1)[strategy, zoo.WORKLOAD]


class Right(zoo.BrokenAxoNN):
    """Nothing is seeded."""

    def build(self, *args, **options):
        return tv.AxoNN.build(self, *args, **options)


@pytest.fixture(scope="module")
def evidence():
    """{strategy: what `examine` gives} of all that these tests look at."""
    looked_at = [
        *(seeded(cause, number=1) for cause in CAUSES),
        zoo.seed("same rows along z", grid=(2, 1, 2)),
        zoo.seed("other rows along x"),
        zoo.seed("gradient divided by z", grid=(1, 1, 4)),
        zoo.seed("scatter not waited for", grid=(1, 1, 4)),
        zoo.seed("copies counted in the norm"),
        Right(x=1, y=2, z=2),
    ]
    return together(examine, looked_at)


@pytest.mark.parametrize("cause", CAUSES)
def test_verify_flags_every_fault(cause):
    found = verified(seeded(cause))
    assert not found.ok and "NOT EQUAL" in repr(found)
    assert (found.errors["outputs"] > 1e-10) == (cause in FORWARD_IS_WRONG)
    assert found.ledger_ok == (cause not in OTHER_BYTES), found
    assert bool(found.unwaited) == (cause in UNWAITED), found
    gradients = [name for name in wrong(found.errors) if name.startswith("gradient ")]
    least = 1 if cause in ONE_GRADIENT else 0 if cause.startswith("prefetched") else 28
    assert len(gradients) == least


@pytest.mark.parametrize("cause", CAUSES)
def test_evidence_begins_in_the_seeded_place(cause, evidence):
    broken = seeded(cause, number=1)
    evidence = evidence[broken]
    forward, gradients = wrong(evidence.forward), wrong(evidence.gradients)
    if cause in ONE_GRADIENT:
        kind = "bias" if cause.startswith("bias") else "weight"
        assert gradients == [f"{broken.place}.{kind}"]
        assert not forward and not wrong(evidence.backward)
        assert evidence.want.shape == zoo.WORKLOAD.parameter_shapes()[gradients[0]]
    else:
        place = {"rows": "embed", "clip": None, "order": None}.get(broken.place, broken.place)
        assert next(iter(forward), None) == place
    assert (evidence.misses > 0) == (cause == "prefetched in the order of modules")
    assert bool(evidence.unwaited) == (cause in UNWAITED)


def test_where_the_ranks_tell(evidence):
    """Those of z = 0 have the right rows by luck."""
    along_z = evidence[zoo.seed("same rows along z", grid=(2, 1, 2))]
    assert [at["z"] for at in along_z.ranks.values()] == [1, 1]
    assert list(evidence[zoo.seed("other rows along x")].ranks) == [0, 1, 2, 3]


def test_what_each_gradient_is(evidence):
    """Divided by z, or what was in the buffer before."""
    divided, stale = (
        evidence[zoo.seed(cause, grid=(1, 1, 4))]
        for cause in ("gradient divided by z", "scatter not waited for")
    )
    assert abs(4 * divided.got - divided.want).max() < 1e-15
    assert stale.got.any() == 0 != abs(stale.want).max()


def test_a_norm_too_large_shrinks_every_gradient_alike(evidence):
    evidence = evidence[zoo.seed("copies counted in the norm")]
    factor = abs(evidence.got).max() / abs(evidence.want).max()
    assert 0.3 < factor < 0.99
    assert abs(evidence.got - factor * evidence.want).max() < 1e-12


@pytest.mark.parametrize("knobs", EQUAL, ids=str)
def test_without_the_fault_it_is_equal(knobs):
    """With the knobs that some faults need, and all their healthy strategies are these."""
    assert verified(EQUAL[knobs]).ok
    knobs = dict(knobs)
    faults = [
        cause
        for cause, fault in CAUSES.items()
        if {name: few[0] for name, few in fault.options.items() if name not in SEEDED} == knobs
    ]
    assert (
        [zoo.seed(cause).healthy for cause in faults]
        == [
            replace(tv.AxoNN(**knobs), **dict(zip("xyz", CAUSES[cause].options["grid"][0])))
            for cause in faults
        ]
        != []
    )


def test_evidence_of_a_right_program_is_all_right(evidence):
    evidence = evidence[Right(x=1, y=2, z=2)]
    assert "forward: 0 of 15 wrong\nbackward: 0 of 14 wrong\ngradients: 0 of 28" in repr(evidence)
    assert repr(evidence).endswith(
        "as the formula\nfirst error on ranks none; never waited "
        "for: nothing; 0 gathers not prefetched"
    )
    assert evidence.got is evidence.want is None


@pytest.mark.parametrize(
    "cause, layer, words",
    [("gremlins", None, "gremlins"), ("axes not exchanged", "mlp.up", "mlp.up")],
)
def test_unknown_faults_and_places_are_refused(cause, layer, words):
    with pytest.raises(ValueError, match=words):
        zoo.seed(cause, layer)
