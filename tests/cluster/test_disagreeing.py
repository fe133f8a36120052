"""Captured programs whose ranks disagree, or which cannot finish, are refused with both calls."""

from functools import partial

import calls
import pytest
import torch
import torch.distributed as dist

import tpviz as tv

W = tv.GPT(layers=1, hidden=12, heads=2, seq=8, batch=12)
PAIR = tv.clusters.nvlink_pairs(pairs=1)


def scheme(work, ranks=2, groups=0):
    """A strategy whose step does this first: ``work(rank, groups of all ranks...)``."""

    def build(workload, mesh):
        model = tv.reference_model(workload)
        made = [dist.new_group(range(ranks)) for _ in range(groups)]

        def step(batch):
            work(dist.get_rank(), *made)
            return model(*batch)

        return model, step

    return tv.Custom({"all": ranks}, build)


@pytest.mark.parametrize("what", calls.CLASHES)
def test_members_that_disagree_are_refused(what):
    work, words = calls.CLASHES[what]
    with pytest.raises(ValueError, match="cannot run, since its ranks disagree: ") as caught:
        tv.simulate(scheme(work), W, PAIR)
    assert str(caught.value).endswith(words.format(0))
    with pytest.raises(ValueError, match="its ranks disagree"):
        tv.capture(scheme(work), W)


def test_members_that_issue_less_are_refused_though_nobody_waits():
    def work(rank):
        for _ in range(2 - rank):
            dist.all_reduce(torch.ones(3), async_op=True)

    words = (
        "never ends: rank 0 issues all_reduce #1 on axis world of ranks 0,1, "
        "and rank 1 issues 1 collectives there"
    )
    with pytest.raises(ValueError, match=words):
        tv.simulate(scheme(work), W, PAIR)
    with pytest.raises(
        ValueError, match=r"rank 1 issues send #0 .* ranks 1,0, and rank 0 issues 0"
    ):
        tv.simulate(scheme(lambda rank: rank and dist.isend(torch.ones(2), 0)), W, PAIR)


def test_groups_with_equal_members_are_different_groups():
    def work(rank, *groups, swap=True, wait=True):
        for group in groups[:: -1 if rank and swap else 1]:
            dist.all_reduce(torch.ones(3), group=group, async_op=not wait)

    words = (
        r"rank 0 waits in all_reduce #0 on axis world \(group 2\) of ranks 0,1, which rank 1 never "
        r"issues; rank 1 waits in all_reduce #0 on axis world \(group 3\) of ranks 0,1, which rank "
        "0 never issues"
    )
    with pytest.raises(RuntimeError, match=words):
        tv.simulate(scheme(work, groups=2), W, PAIR)
    crossed = tv.simulate(scheme(partial(work, wait=False), groups=2), W, PAIR)
    assert set(crossed.lanes) >= {"comm/world (group 2)", "comm/world (group 3)"}
    plain = tv.simulate(scheme(partial(work, swap=False), groups=2), W, PAIR)
    assert plain.ledger() == crossed.ledger()


def test_legal_differences_are_simulated():
    trace = tv.simulate(
        scheme(lambda rank: calls.legal(), calls.SIZE), W, tv.clusters.nvswitch_nodes(1)
    )
    assert trace.badge == "simulated" and trace.ranks == [0, 1, 2]
    assert trace.ledger().total(collective="all_to_all_v")[0] == 1


def test_ranks_that_stand_for_others_are_compared_in_their_places():
    """Along an axis where ranks differ, and round its end."""

    def work(rank):
        right, left = (rank + 2) % 8, (rank - 2) % 8
        works = [dist.isend(torch.ones(4), right), dist.irecv(torch.empty(4 - (rank == 7)), left)]
        [work.wait() for work in works]

    with pytest.raises(ValueError, match="message #0: 16 bytes on rank 5, 12 on rank 7"):
        tv.capture(scheme(work, 8), W)
