"""A deadlock that is certain is told long before the time-out; no program that goes on is."""

import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import tpviz as tv
from tpviz.ranks import places

LATE = 0.5  # seconds by which a rank comes late: more than two looks of `quick`


@pytest.fixture
def quick(monkeypatch):
    """Looks in quick succession tell a deadlock soon, and would tell what is none."""
    monkeypatch.setattr(places.RankWatch.__init__, "__defaults__", (0.2, 0.05))


def summed(group=None, rank=None):
    """In a rank: an all-reduce of one number, if this is the rank."""
    value = torch.ones(1)
    if rank is None or dist.get_rank() == rank:
        dist.all_reduce(value, group=group)
    return value.item()


# -- deadlocks -------------------------------------------------------------------------------------
def finished_peer():
    summed()
    summed(rank=0)


def finished_peer_of_an_awaited_one():
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1), async_op=True).wait()


def other_collective():
    summed() if dist.get_rank() == 0 else dist.barrier()


def opposite_orders():
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    for group in groups if dist.get_rank() == 0 else groups[::-1]:
        summed(group)


def both_receive():
    dist.recv(torch.ones(1), 1 - dist.get_rank())


def nobody_sends():
    if dist.get_rank() == 0:
        dist.recv(torch.ones(1), 1)


def nobody_receives():
    if dist.get_rank() == 0:
        dist.send(torch.ones(1), 1)


def another_tag():
    """The message that is there is not the one that is waited for."""
    if dist.get_rank() == 0:
        dist.isend(torch.ones(1), 1, tag=1)
    else:
        dist.recv(torch.ones(1), 0, tag=2)


def group_made_by_one():
    if dist.get_rank() == 0:
        dist.new_group([1, 0])


WORLD = r"on axis world \(ranks 0,1\)"
DEADLOCKS = {
    finished_peer: rf"rank 1 finished and never joins all_reduce #\d+ {WORLD}, 4 bytes, in which "
    "rank 0 waits: a deadlock",
    finished_peer_of_an_awaited_one: rf"rank 1 finished and never joins all_reduce #\d+ {WORLD}",
    other_collective: rf"rank 0 waits for rank 1 in all_reduce #\d+ {WORLD}, 4 bytes; rank 1 waits "
    rf"for rank 0 in barrier #\d+ {WORLD}, 0 bytes: a deadlock",
    opposite_orders: "rank 0 waits for rank 1 in all_reduce #0 .*; rank 1 waits for rank 0 in all",
    both_receive: r"rank 0 waits for rank 1 in recv #\d+ .*; rank 1 waits for rank 0 in recv #\d+ ",
    nobody_sends: r"rank 1 finished and never joins recv #\d+ .*, in which rank 0 waits",
    nobody_receives: r"rank 1 finished and never joins send #\d+ .*, in which rank 0 waits",
    another_tag: r"rank 0 finished and never joins recv #\d+ .*, in which rank 1 waits",
    group_made_by_one: r"rank 1 finished and never joins new_group \(ranks 0,1\), in which ",
}


@pytest.mark.parametrize("program", DEADLOCKS, ids=lambda program: program.__name__)
def test_a_certain_deadlock_is_told_before_the_time_out(quick, program):
    with pytest.raises(tv.RankTimeoutError, match=DEADLOCKS[program]) as caught:
        tv.launch(program, world_size=2, timeout=100)
    assert str(caught.value).startswith("rank "), "the cause comes first"
    assert "\n\nState of each rank:\n  rank" in str(caught.value)
    assert sorted(caught.value.states) == [0, 1]


def test_ranks_that_wait_for_one_that_waits_for_another():
    def chain():
        rank = dist.get_rank()
        dist.barrier()  # all are there when the first two are seen to wait
        if rank:
            dist.recv(torch.ones(1), rank - 1)

    with pytest.raises(
        tv.RankTimeoutError, match=r"^rank 0 finished and never joins recv"
    ) as caught:
        tv.launch(chain, world_size=3, timeout=100)
    assert caught.value.states[0] == "finished"
    assert all("s in recv #0" in caught.value.states[rank] for rank in (1, 2))


def test_at_the_time_out_a_certain_deadlock_comes_first():
    tv.launch(slow_peer, world_size=2)  # imports this module
    with pytest.raises(
        tv.RankTimeoutError, match=r"^rank 1 finished .*: ranks did not finish with"
    ):
        tv.launch(finished_peer, world_size=2, timeout=0.7)


def test_ranks_in_new_group_are_shown_so():
    def late():
        if dist.get_rank() == 0:
            dist.new_group([0, 1])
        time.sleep(100)

    with pytest.raises(tv.RankTimeoutError) as caught:
        tv.launch(late, world_size=2, timeout=0.4)
    assert "s in new_group (ranks 0,1), at test_deadlocks.py" in caught.value.states[0]
    assert caught.value.states[1].startswith("no collective, running user code")


# -- programs that go on ---------------------------------------------------------------------------
def slow_peer():
    time.sleep(LATE * dist.get_rank())
    return summed()


def issued_and_finished():
    """A rank has finished that has done its part."""
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1), async_op=True)
        return 2.0
    time.sleep(LATE)
    return summed()


def never_awaited():
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1), async_op=True)
    time.sleep(LATE)
    return 2.0


def subgroup():
    """Rank 2 has finished, and has no part in it."""
    pair = dist.new_group([0, 1])
    if dist.get_rank() == 2:
        return 2.0
    time.sleep(LATE * dist.get_rank())
    return summed(pair)


def subgroup_made_by_its_members():
    """Torch asks all ranks to make it, and waits for the members."""
    if dist.get_rank() == 2:
        return 2.0
    time.sleep(LATE * dist.get_rank())
    return summed(dist.new_group([0, 1]))


def slow_messages():
    """Both ends come late in turn; the last one's sender has finished when it is waited for."""
    value = torch.zeros(1)
    if dist.get_rank() == 0:
        time.sleep(LATE)
        dist.send(torch.ones(1), 1)
        dist.send(torch.ones(1), 1)
        dist.send(torch.full((1,), 2.0), 1)
        return 2.0
    dist.recv(value, 0)
    time.sleep(LATE)
    dist.recv(value)  # from anyone
    last = dist.irecv(value, 0)
    time.sleep(LATE)
    last.wait()
    return value.item()


def by_a_thread():
    """A rank's function has ended, its thread has not."""
    if dist.get_rank() == 0:
        return summed()
    threading.Thread(target=lambda: (time.sleep(LATE), summed())).start()
    return 2.0


def freed_by_a_thread():
    if dist.get_rank() == 0:
        send = lambda: (time.sleep(LATE), dist.send(torch.ones(1), 1))
        threading.Thread(target=send).start()
    else:
        dist.recv(torch.ones(1), 0)
    return summed()


def limited_group():
    """A program may live on when its own limit has passed."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=LATE))
    try:
        summed(group, rank=0)
    except RuntimeError:
        pass
    return 2.0


def limited_wait():
    work = dist.all_reduce(torch.ones(1), async_op=True) if dist.get_rank() == 0 else None
    try:
        work and work.wait(timedelta(seconds=LATE))
    except RuntimeError:
        pass
    return 2.0


def late_new_group():
    time.sleep(LATE * dist.get_rank())
    return summed(dist.new_group([0, 1]))


def destroyed():
    """Groups are left at different times, then the world."""
    group = dist.new_group([0, 1])
    value = summed(group)
    time.sleep(LATE * dist.get_rank())
    dist.destroy_process_group(group)
    dist.destroy_process_group()
    return value


def called_back():
    """What a rank waits for is issued by a callback of its peer, which waits too."""
    rank, groups = dist.get_rank(), [dist.new_group([0, 1]) for _ in range(3)]
    if rank == 0:
        dist.all_reduce(torch.ones(1), group=groups[1])
        time.sleep(LATE)
        summed(groups[0])
        return summed(groups[2])
    first = dist.all_reduce(torch.ones(1), group=groups[0], async_op=True)
    first.get_future().add_done_callback(
        lambda _: dist.all_reduce(torch.ones(1), group=groups[2], async_op=True)
    )
    summed(groups[1])
    first.wait()
    time.sleep(LATE)
    return 2.0


NEAR_MISSES = [
    *(slow_peer, issued_and_finished, never_awaited, slow_messages, by_a_thread, freed_by_a_thread),
    *(limited_group, limited_wait, late_new_group, destroyed, called_back),
]


@pytest.mark.parametrize("program", NEAR_MISSES, ids=lambda program: program.__name__)
def test_a_program_that_goes_on_is_left_alone(quick, program):
    assert tv.launch(program, world_size=2, timeout=100) == [2.0, 2.0]


@pytest.mark.parametrize("program", [subgroup, subgroup_made_by_its_members])
def test_a_rank_that_has_no_part_may_finish(quick, program):
    assert tv.launch(program, world_size=3, timeout=100) == [2.0] * 3


# -- what follows from where ranks stand -----------------------------------------------------------
def at(waits=None, counts=(), unseen=False, serial=0):
    """A rank's place; waits: (key, sequence number, name, peers)."""
    if waits:
        key, seq, name, peers = waits
        waits = places.PendingWait(key, 0, seq, name, sum(1 << peer for peer in peers))
    return places.RankPlace(serial, waits, unseen, dict(counts))


def test_stuck():
    waiting, idle = at((7, 2, 1, [0, 1]), {7: 3}), at(counts={7: 2})
    assert places.stuck([waiting, idle], []) == {}, "its peer runs"
    assert places.stuck([waiting, idle], [1]) == {0: [1]}
    assert places.stuck([waiting, at(counts={7: 2}, unseen=True)], [1]) == {}
    assert places.stuck([waiting, at(counts={7: 3})], [1]) == {}, "its peer has done its part"
    other = at((7, 2, 2, [0, 1]), {7: 3})
    assert places.stuck([waiting, other], []) == {0: [1], 1: [0]}
    assert places.stuck([waiting, at((7, 2, 1, [0, 1]), {7: 3})], []) == {}, "both are in it"
    elsewhere = at((8, 0, 1, [1, 2]), {8: 1})
    assert places.stuck([waiting, elsewhere, at()], []) == {}, "rank 2 may free both"
    assert places.stuck([waiting, elsewhere, at()], [2]) == {0: [1], 1: [2]}
    moving = at((8, 0, 1, [1, 2]), {8: 1})
    assert places.stuck([waiting, moving, at(counts={8: 1})], [2]) == {}, "it is on its way"


def test_only_what_stays_is_certain(monkeypatch):
    found = {}
    watch = places.RankWatch(type("Ranks", (), {"read": lambda _: found["now"]})(), 1.0, 0.25)
    wait = (7, 0, 1, [0, 1])
    found["now"] = [at(wait), at()]
    assert watch.look([1], 10.0) == {}
    assert watch.look([1], 10.1) == {}, "too soon for another look"
    assert watch.look([1], 10.9) == {}
    assert watch.look([1], 11.0) == {}, "too soon"
    assert watch.look([1], 11.2) == {0: [1]}
    found["now"] = [at(wait, serial=2), at()]
    assert watch.look([1], 12.5) == {}, "another wait of the same kind"
    assert watch.look([1], 13.5) == {0: [1]}
