"""PyTorch's own schemes as strategies: their knobs are checked like those of ours."""

import pytest

import tpviz as tv
from tpviz import GPT
from tpviz.evidence import peers


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: peers.FSDP2(0), "dp=0 is too small: the least that works is 1"),
        (lambda: peers.DDP(dp=-1), "dp=-1 is too small"),
        (lambda: peers.DTensorTP("2"), "tp must be a whole number, not '2'"),
        (lambda: peers.DTensorTP(True), "tp must be a whole number, not True"),
        (lambda: peers.DDP(bucket_mb=0), "bucket_mb=0 is not between"),
    ],
)
def test_knobs_that_cannot_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_their_names_say_how_they_are_set():
    assert peers.DTensorTP(tp=2).short == "DTensorTP(tp=2)"
    assert peers.FSDP2().short == "FSDP2(dp=4)" and peers.FSDP2().world_size == 4
    hybrid = peers.FSDP2(8, shard=4, reshard_after_forward=2)
    assert hybrid.axes == {"replicate": 2, "shard": 4}
    assert hybrid.short == "FSDP2(dp=8, shard=4, reshard_after_forward=2)"
    assert peers.DDP(dp=2, bucket_mb=1).short == "DDP(dp=2, bucket_mb=1.0)"


def test_sizes_that_do_not_divide():
    with pytest.raises(ValueError, match="does not split evenly over tp=3"):
        peers.DTensorTP(3).check(GPT(heads=4))
    with pytest.raises(ValueError, match="does not split evenly over dp=3"):
        peers.FSDP2(3).check(GPT(batch=8))


def test_one_pool_runs_them_in_any_order():
    """DTensor remembers meshes, and the groups of an earlier run's are gone."""
    workload = GPT(layers=1, hidden=16, heads=4, seq=8, batch=4)
    tensor, data = peers.DTensorTP(tp=2), peers.FSDP2(dp=2)
    ledgers = [
        tv.run(peer, workload, steps=1, memory=False, progress=False).ledger()
        for peer in (tensor, tensor, data, data, tensor)
    ]
    assert ledgers[0] == ledgers[1] == ledgers[4] and ledgers[2] == ledgers[3]
    assert ledgers[0].total()[0] == 4 and ledgers[2].total()[0] == 5


@pytest.mark.parametrize(
    "knobs", [{}, {"shard": 2}, *({"reshard_after_forward": n} for n in (False, 2))]
)
def test_ours_sends_what_fsdp2_does(knobs):
    """As many collectives of each kind, of as many bytes; axes and phases have other names."""
    w = tv.GPT(layers=3, hidden=16, heads=4, seq=8, batch=4, tied=False)
    theirs = tv.run(peers.FSDP2(**knobs), w, steps=1, memory=False, progress=False).ledger()
    ours = tv.DataParallel(zero=3, **knobs).ledger(w)
    sent = [sorted((r.collective, *r[3:]) for r in ledger) for ledger in (ours, theirs)]
    assert sent[0] == sent[1]
