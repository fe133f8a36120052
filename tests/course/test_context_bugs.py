"""The bug zoo of context parallelism: each fault trains, `verify` flags it, by numbers or by the
ledger alone, and the evidence leads back to the place and the cause."""

import pytest
import solutions_context_bugs
from wrongs import wrong

import tpviz as tv
from tpviz.course import context_zoo as zoo
from tpviz.course.zoo import examine

CAUSES = zoo.BrokenContext.faults
OTHER_BYTES = {"gradients not sent home", "last hop sent in vain"}
RIGHT_FORWARD = OTHER_BYTES
FIRST_RANK_RIGHT = {"positions not shifted", "own mask on every block", "log-sum-exp not rescaled"}


@pytest.mark.parametrize("cause", CAUSES)
def test_verify_flags_every_fault(cause):
    found = tv.verify(zoo.variant(cause, 0), zoo.WORKLOAD, steps=1, progress=False)
    assert not found.ok and "NOT EQUAL" in repr(found)
    assert found.ledger_ok == (cause not in OTHER_BYTES), found
    assert (found.errors["outputs"] > 1e-10) == (cause not in RIGHT_FORWARD)
    assert bool(wrong(found.errors)) == (cause != "last hop sent in vain")
    assert not found.unwaited


@pytest.mark.parametrize("cause", CAUSES)
def test_the_evidence_leads_to_place_and_cause(cause):
    for number in range(2):
        broken = zoo.variant(cause, number)
        evidence = examine(broken)
        assert solutions_context_bugs.diagnose(evidence) == (broken.place, cause), evidence
        assert bool(evidence.ledger) == (cause in OTHER_BYTES)


@pytest.mark.parametrize("cause", sorted(FIRST_RANK_RIGHT))
def test_rank_0_has_one_block_and_is_right(cause):
    tokens = examine(zoo.seed(cause)).tokens
    assert not any(bad for _, bad in tokens[0])
    assert all(bad for rank in (1, 2, 3) for _, bad in tokens[rank][:-1])
    last_is_right = cause == "own mask on every block"
    assert all(tokens[rank][-1][1] != last_is_right for rank in (1, 2, 3))
    assert [place for row in tokens.values() for place, _ in row] == [*range(zoo.WORKLOAD.seq)]


def test_tokens_are_shown_where_they_are_wrong():
    shown = repr(examine(zoo.seed("own block not masked")))
    assert "rank 0: 0x 1x 2x 3\n" in shown and shown.endswith("x: wrong tokens")
    assert "rank 0" not in repr(examine(zoo.seed("last hop sent in vain")))


def test_without_the_fault_it_is_equal():
    class Right(zoo.BrokenContext):
        def build(self, *args, **options):
            return tv.Context.build(self, *args, **options)

    evidence = examine(Right(cp=zoo.CP, kind="ring"))
    assert repr(evidence).count(" 0 of ") == 3, evidence
    assert not evidence.ledger and not evidence.tokens


@pytest.mark.parametrize(
    ("cause", "options", "words"),
    [
        ("gremlins", {}, "gremlins"),
        ("own block not masked", {"layer": "mlp.up"}, "layer='mlp.up' is not possible"),
        ("own block not masked", {"block": 2}, "block=2 is not possible: use 0 or 1"),
        ("last hop sent in vain", {"kind": "zigzag"}, "kind='zigzag' is not possible"),
    ],
)
def test_unknown_faults_and_places_are_refused(cause, options, words):
    with pytest.raises(ValueError, match=words):
        zoo.seed(cause, **options)
