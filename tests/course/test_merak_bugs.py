"""Merak's bug zoo: each fault trains, and `verify` flags it; what moves other bytes is in the
ledger too, and the evidence leads back to the place and the cause."""

from dataclasses import fields

import numpy as np
import pytest
import solutions_merak_bugs
from wrongs import wrong

import tpviz as tv
from tpviz.course import merak_zoo as zoo
from tpviz.course.zoo import examine

CAUSES = zoo.BrokenMerak.faults

OTHER_BYTES = {
    "sum left out of forward",
    "gradient not summed",
    "copies not summed",
    "replicas not summed",
}
FORWARD_IS_WRONG = {
    "residual of the other half",
    "bias on every rank",
    "sum left out of forward",
    "copies that start apart",
    "same rows for all replicas",
}
SOME_GRADIENTS = {
    "microbatch overwritten": 1,
    "copies not summed": 1,
    "copies averaged": 1,
    "weights of a microbatch left out": 8,
}


@pytest.mark.parametrize("cause", CAUSES)
def test_verify_flags_every_fault(cause):
    found = tv.verify(zoo.variant(cause, 0), zoo.WORKLOAD, steps=1, progress=False)
    assert not found.ok and "NOT EQUAL" in repr(found)
    assert (found.errors["outputs"] > 1e-10) == (cause in FORWARD_IS_WRONG)
    assert found.ledger_ok == (cause not in OTHER_BYTES), found
    assert bool(found.unwaited) == (cause == "sum not waited for"), found
    gradients = [name for name in wrong(found.errors) if name.startswith("gradient ")]
    few = SOME_GRADIENTS.get(cause)
    assert len(gradients) == few if few else len(gradients) > 2


@pytest.mark.parametrize("cause", CAUSES)
def test_the_evidence_leads_to_place_and_cause(cause):
    broken = zoo.variant(cause, 1)
    evidence = examine(broken)
    assert solutions_merak_bugs.diagnose(evidence) == (broken.place, cause)
    assert bool(evidence.ledger) == (cause in OTHER_BYTES)
    assert bool(wrong(evidence.forward)) == (cause in FORWARD_IS_WRONG)
    assert bool(evidence.unwaited) == (cause == "sum not waited for")


def test_what_each_first_error_is():
    half, other, averaged = (
        examine(zoo.variant(cause, 1))
        for cause in (
            "residual of the other half",
            "another microbatch recomputed",
            "copies averaged",
        )
    )
    first, second = np.split(abs(half.got - half.want), 2)
    assert first.max() < 1e-12 < 1e-3 < second.max()
    assert other.microbatches == (0, 1, 2)  # the last one is by itself, so it is the right one
    assert abs(2 * averaged.got - averaged.want).max() < 1e-15
    assert averaged.microbatches == ()


def test_without_the_fault_it_is_equal():
    """With the knobs of a fault, and the program lies beside itself."""

    class Right(zoo.BrokenMerak):
        def build(self, *args, **options):
            return tv.Merak.build(self, *args, **options)

    seeded = [zoo.seed(cause) for cause in CAUSES]
    knobs = {(s.schedule, s.recompute, s.subpipeline): s.healthy for s in seeded}
    assert len(knobs) == 4
    for healthy in knobs.values():
        right = Right(**{f.name: getattr(healthy, f.name) for f in fields(healthy)})
        evidence = examine(right)
        assert repr(evidence).count(" 0 of ") == 4, evidence
        assert evidence.got is evidence.want is None and not evidence.ledger
    assert repr(evidence).endswith("first error in microbatches -; all waited for: yes")


def test_healthy_is_the_strategy_without_the_fault():
    broken = zoo.seed("weights of a microbatch left out", block=2)
    assert broken.healthy == tv.Merak(pp=4, schedule="zb_h1", recompute="none")
    assert broken.place == "blocks.2"


@pytest.mark.parametrize(
    ("cause", "layer", "block", "grid", "words"),
    [
        ("gremlins", None, None, None, "gremlins"),
        ("bias on every rank", "mlp.up", None, None, "layer='mlp.up' is not possible"),
        ("one buffer for all microbatches", None, 3, None, "block=3 is not possible: use 1 or 2"),
        ("gradient not summed", None, None, (4, 1, 1), r"grid=\(4, 1, 1\) is not possible"),
    ],
)
def test_unknown_faults_and_places_are_refused(cause, layer, block, grid, words):
    with pytest.raises(ValueError, match=words):
        zoo.seed(cause, layer, block, grid=grid)
