"""Interleaved, zero-bubble and V-shaped schedules, beside PyTorch's own orders of them."""

from random import Random

import pytest
from torch.distributed.pipelining import schedules as peer

from tpviz.core.schedules import Schedule, schedule, timeline
from tpviz.core.schedules.formulas import in_flight, makespan

PEERS = {
    "interleaved_1f1b": peer.ScheduleInterleaved1F1B,
    "zb_h1": peer.ScheduleInterleavedZeroBubble,
    "zb_v": peer.ScheduleZBVZeroBubble,
    "dualpipe_v": peer.ScheduleDualPipeV,
}


def order_of_peer(name, p, m, chunks):
    """PyTorch's order, as words per rank; "0F1+3B0" is an overlapped pair."""
    found = object.__new__(PEERS[name])  # its sizes are all that the order depends on
    found.pp_group_size, found.n_local_stages, found.num_stages = p, chunks, p * chunks
    found._n_microbatches, found.microbatches_per_round = m, m // max(1, m // p)
    return [
        [
            "+".join(map(str, action.sub_actions or (action,)))
            for action in found._calculate_single_rank_operations(rank)
            if action is not None
        ]
        for rank in range(p)
    ]


def words(name, p, m, chunks):
    """Ours, with the stage before every action."""
    found = schedule(name, p, m, chunks, recompute=False)
    return (
        [[str(a) for a in row] for row in found.actions]
        if chunks == 1
        else [found.words(rank) for rank in range(p)]
    )


@pytest.mark.parametrize("name", PEERS)
def test_orders_are_those_of_pytorch(name):
    """On 25 random sizes. ZB-V's weight gradients are ours: always the oldest that waits."""
    rng = Random(name)
    for _ in range(25):
        p = rng.randint(1, 8)
        chunks = {"interleaved_1f1b": rng.randint(2, 4), "zb_h1": rng.randint(1, 3)}.get(name, 2)
        m = {"zb_v": 2 * p - 1, "dualpipe_v": 2 * p}.get(name, p) + rng.randint(0, 12)
        m -= m % p if name == "interleaved_1f1b" or (name == "zb_h1" and chunks > 1) else 0
        ours, theirs = words(name, p, m, chunks), order_of_peer(name, p, m, chunks)
        if name == "zb_v":
            assert all(sorted(a) == sorted(b) for a, b in zip(ours, theirs))
            ours, theirs = (
                [["W" if "W" in word else word for word in row] for row in rows]
                for rows in (ours, theirs)
            )
        assert ours == theirs, (p, m, chunks)


def test_few_microbatches_take_no_longer_than_pytorch_s():
    for p, m in ((2, 1), (3, 4), (5, 6), (7, 10), (8, 11)):
        theirs = "\n".join(" ".join(row) for row in order_of_peer("zb_v", p, m, 2))
        mine = timeline(schedule("zb_v", p, m, recompute=False))
        assert mine.makespan <= timeline(Schedule.parse(theirs)).makespan


@pytest.mark.parametrize("name, kind", [("gpipe", peer.ScheduleGPipe), ("1f1b", peer.Schedule1F1B)])
def test_plain_orders_are_those_of_pytorch(name, kind):
    """Its 1F1B listing numbers the last rank's forwards from 1: they are counted from 0 here."""
    for p, m in ((2, 4), (4, 6), (5, 5)):
        found = object.__new__(kind)
        found._num_stages, found._n_microbatches = p, m
        listed = found._get_pipeline_order()
        for rank in range(p):
            row = [str(a) for a in listed[rank] if a and "REDUCE" not in str(a)]
            if name == "1f1b" and rank == p - 1:
                row = [f"{rank}F{int(w.split('F')[1]) - 1}" if "F" in w else w for w in row]
            assert row == words(name, p, m, 1)[rank]


@pytest.mark.parametrize(
    "name, times, peak, overlapped",
    [
        ("interleaved_1f1b", (57, 105), (11, 9, 7, 5), False),
        ("zb_h1", (51, 99), (8,) * 4, False),
        ("zb_v", (51, 99), (8,) * 4, False),
        ("dualpipe_v", (54, 102), (9,) * 4, True),
        ("dualpipe_v", (51, 99), (9,) * 4, False),
    ],
)
def test_makespans_of_four_ranks_with_two_chunks(name, times, peak, overlapped):
    """F = I = W = 1, 8 and 16 microbatches; pairs cost the sum, side by side or in turn."""
    for m, expected in zip((8, 16), times):
        found = schedule(name, 4, m, chunks=2, recompute=False)
        clock = timeline(found, overlapped=overlapped)
        assert clock.makespan == expected
        assert clock.busy == (6 * m,) * 4
        assert clock.peak_in_flight == peak == in_flight(name, 4, m, 2)
        assert makespan(name, 4, m, chunks=2, overlapped=overlapped) == expected


def test_bubbles_of_one_stage_a_rank():
    """GPipe and 1F1B 3 (F + B), ZB-H1 a third of it, in the same memory as 1F1B on rank 0."""
    for name, expected in (("gpipe", 9), ("1f1b", 9), ("zb_h1", 3)):
        clock = timeline(schedule(name, 4, 8, recompute=False))
        assert clock.bubble == (expected,) * 4
    assert clock.peak_in_flight == (4,) * 4
    assert clock.bubble_inside == (3, 2, 1, 0)


def test_zero_bubble_is_between_a_rank_s_first_and_last_action():
    """The fill stays: p - 1 on each rank, of which rank s has s before and the others after."""
    for p in (2, 3, 5, 8):
        for m in (2 * p - 1, 2 * p, 3 * p + 1):
            clock = timeline(schedule("zb_v", p, m, recompute=False))
            assert clock.bubble_inside == (0,) * p
            assert clock.bubble == (p - 1,) * p
            assert [starts[0] for starts in clock.start] == list(range(p))
        short = timeline(schedule("zb_v", p, 2 * p - 2, recompute=False))
        assert max(short.bubble_inside) > 0


def test_pairs_run_side_by_side():
    """Both from when both can, for as long as both take; what they make is there at the end."""
    text = "0F0 3F0 3B0 0F1+0B0 3F1 3B1 0B1 \n 1F0 2F0 2B0 1B0 1F1 2F1 2B1 1B1"
    found = Schedule.parse(text)
    turns, pairs = timeline(found), timeline(found, overlapped=True)
    assert turns.start[0][3:5] == (6, 10)
    assert pairs.start[0][3] == pairs.start[0][4] == 10
    assert pairs.end[0][3] == pairs.end[0][4] == 13
    assert pairs.start[1][4] == 13 and turns.start[1][4] == 10
    assert pairs.busy == turns.busy == (12, 12)


def test_recompute_before_the_gradient_of_the_input_hides():
    """R waits for nothing but its place: zero-bubble schedules hide some, plain ones none."""
    for name, hides in (("zb_h1", True), ("1f1b", False)):
        with_it = timeline(schedule(name, 4, 8)).makespan
        without = timeline(schedule(name, 4, 8, recompute=False)).makespan
        assert (with_it < without + 8 + 3) == hides


def test_more_chunks_for_a_smaller_bubble():
    """(p - 1)(F + B) / v of a whole rank's F and B, and more activations."""
    bubbles, held = [], []
    for v in (2, 3, 4):
        clock = timeline(schedule("interleaved_1f1b", 4, 8, v, recompute=False), 12 / v, 24 / v)
        bubbles.append(clock.bubble[0])
        held.append(clock.peak_in_flight[0] / v)
    assert bubbles == pytest.approx([108 / 2, 108 / 3, 108 / 4])
    assert held == pytest.approx([4 * (1 + 3 / (4 * v)) for v in (2, 3, 4)])
