"""T3's bug zoo: each fault trains, and `verify` flags it; what moves other bytes is in the ledger
too, and the evidence leads back to the place and the cause."""

import numpy as np
import pytest
import solutions_t3_bugs
from wrongs import wrong

import tpviz as tv
from tpviz.course import t3_zoo as zoo
from tpviz.course.zoo import FIRST, examine

CAUSES = zoo.BrokenT3.faults

OTHER_BYTES = {"last tile left out", "bias's gradient summed", "copies not summed"}
ONE_GRADIENT = {"bias's gradient summed", "weight's gradient of one chunk"}
GRADIENTS_ONLY = ONE_GRADIENT | {"copies not summed"}


@pytest.mark.parametrize("cause", CAUSES)
def test_verify_flags_every_fault(cause):
    broken = zoo.variant(cause, 0)
    found = tv.verify(broken, zoo.WORKLOAD, steps=1, progress=False)
    assert not found.ok and "NOT EQUAL" in repr(found)
    forward = cause not in GRADIENTS_ONLY and broken.layer not in FIRST
    forward |= cause == "pieces in the order they came"
    assert (found.errors["outputs"] > 1e-10) == forward
    assert found.ledger_ok == (cause not in OTHER_BYTES), found
    assert bool(found.unwaited) == (cause == "message not waited for"), found
    gradients = [name for name in wrong(found.errors) if name.startswith("gradient ")]
    assert len(gradients) == 1 if cause in ONE_GRADIENT else len(gradients) > 1


@pytest.mark.parametrize("cause", CAUSES)
def test_the_evidence_leads_to_place_and_cause(cause):
    broken = zoo.variant(cause, 1)
    evidence = examine(broken)
    assert solutions_t3_bugs.diagnose(evidence) == (broken.place, cause), evidence
    assert bool(evidence.ledger) == (cause in OTHER_BYTES)
    assert bool(evidence.unwaited) == (cause == "message not waited for")
    assert bool(wrong(evidence.forward) + wrong(evidence.backward)) == (cause not in GRADIENTS_ONLY)


def test_a_tile_says_who_is_missing():
    """In chunk 0, which sets out at rank 3, goes to 2 and 1 and ends at 0."""
    early, unadded, floored = (
        examine(zoo.variant(cause, 1)).sums
        for cause in ("triggered after one update", "sent before added", "last tile left out")
    )
    assert early[0, 0] == {(0, 0): 1, (1, 0): 1}
    assert unadded[0, 0] == {(0, 0): 1, (3, 0): 1}
    assert floored[0, 1] == {(rank, 0): 1 for rank in range(4)} and floored[0, 2] == {}
    assert zoo.in_words(early[0, 0]) == "chunk 0 of rank 0 + chunk 0 of rank 1"


def test_pieces_are_misplaced_on_all_ranks_but_the_first():
    """Rank 0 begins with chunk 0: there the order in which they come is right."""
    evidence = examine(zoo.variant("pieces in the order they came", 1))
    assert evidence.rank == 1 and not evidence.sums
    assert np.allclose(np.roll(evidence.got, len(evidence.got) // zoo.TP, 0), evidence.want)


def test_sums_are_taken_apart_by_hand():
    rng = np.random.default_rng(0)
    parts, strategy = rng.standard_normal((4, 40, 16)), tv.T3(tp=4, tile=4)
    want = parts.sum(0)
    got = want.copy()
    got[4:8] += 2 * parts[3, 4:8] - parts[1, 4:8]
    got[20:24] = parts[2, 10:14]
    got[30:34] += 1.5 * parts[0, 30:34]
    sums = zoo.taken_apart(strategy, 0, got, want, list(parts))
    assert len(sums) == 12
    assert sums.pop((0, 1)) == {(0, 0): 1, (2, 0): 1, (3, 0): 3}
    assert sums.pop((2, 0)) == {(2, 1): 1}
    assert sums.pop((3, 0)) is None
    assert all(
        found == {(rank, chunk): 1 for rank in range(4)} for (chunk, _), found in sums.items()
    )


@pytest.mark.parametrize("gather", ["after", "consumer"])
def test_without_the_fault_it_is_equal(gather):
    """And a program with the zoo's ring, but no other piece in it, lies beside itself."""

    class Right(zoo.BrokenT3):
        def build(self, *args, **options):
            return tv.T3.build(self, *args, **options)

    evidence = examine(Right(tp=zoo.TP, tile=zoo.TILE, gather=gather))
    assert repr(evidence).count(" 0 of ") == 3, evidence
    assert evidence.got is evidence.want is None
    assert not evidence.ledger and not evidence.sums and not evidence.unwaited


def test_healthy_is_the_strategy_without_the_fault():
    broken = zoo.seed("last tile left out", "mlp.up", 1, gather="consumer")
    assert broken.healthy == tv.T3(tp=4, tile=4, gather="consumer")
    assert broken.place == "blocks.1.mlp.up"


@pytest.mark.parametrize(
    ("cause", "options", "words"),
    [
        ("gremlins", {}, "gremlins"),
        ("bias on every rank", {"layer": "mlp.up"}, "layer='mlp.up' is not possible"),
        ("sent before added", {"block": 2}, "block=2 is not possible: use 0 or 1"),
        ("last tile left out", {"mode": "chunk"}, "mode='chunk' is not possible"),
        ("copies not summed", {"gather": "after"}, "gather='after' is not possible"),
    ],
)
def test_unknown_faults_and_places_are_refused(cause, options, words):
    with pytest.raises(ValueError, match=words):
        zoo.seed(cause, **options)
