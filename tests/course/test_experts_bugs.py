"""The bug zoo of expert parallelism: each fault trains, `verify` flags it, by numbers or by the
ledger too, and the evidence leads back to the place and the cause."""

import pytest
import solutions_experts_bugs

import tpviz as tv
from tpviz.course import experts_zoo as zoo
from tpviz.course.zoo import examine

CAUSES = zoo.BrokenExperts.faults
OTHER_BYTES = {"experts added over ep", "router not in sync"}
RIGHT_FORWARD = {"expert's gradient over ep", *OTHER_BYTES}


@pytest.mark.parametrize("cause", CAUSES)
def test_verify_flags_every_fault(cause):
    found = tv.verify(zoo.variant(cause, 0), zoo.WORKLOAD, steps=1, progress=False)
    assert not found.ok and "NOT EQUAL" in repr(found)
    assert found.ledger_ok == (cause not in OTHER_BYTES), found
    assert (found.errors["outputs"] > 1e-10) == (cause not in RIGHT_FORWARD)
    assert found.max_error > 1e-10 and not found.unwaited


@pytest.mark.parametrize("cause", CAUSES)
def test_the_evidence_leads_to_place_and_cause(cause):
    for number in range(2):
        broken = zoo.variant(cause, number)
        evidence = examine(broken)
        assert solutions_experts_bugs.diagnose(evidence) == (broken.place, cause), evidence
        assert bool(evidence.ledger) == (cause in OTHER_BYTES)
        assert bool(evidence.tokens) == (cause not in RIGHT_FORWARD)


def test_a_result_is_shown_with_the_token_that_it_is_of():
    shown = repr(examine(zoo.seed("rows above the mean dropped")))
    assert "rank 3: " in shown and "*0 " in shown and "3<-5: token 3 has" in shown
    assert "<-" in repr(examine(zoo.seed("rows in the wrong order"))).split("rank 0: ")[1]
    assert "rank 0" not in repr(examine(zoo.seed("router not in sync")))


def test_without_the_fault_it_is_equal():
    class Right(zoo.BrokenExperts):
        def build(self, *args, **options):
            return tv.Experts.build(self, *args, **options)

    evidence = examine(Right(ep=zoo.EP))
    assert repr(evidence).count(" 0 of ") == 3, evidence
    assert not evidence.ledger and not evidence.tokens


@pytest.mark.parametrize(
    ("cause", "options", "words"),
    [
        ("gremlins", {}, "gremlins"),
        ("combine without weights", {"layer": "attention"}, "layer='attention' is not possible"),
        ("combine without weights", {"block": 2}, "block=2 is not possible: use 0 or 1"),
    ],
)
def test_unknown_faults_and_places_are_refused(cause, options, words):
    with pytest.raises(ValueError, match=words):
        zoo.seed(cause, **options)
