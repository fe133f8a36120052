"""The replay of small programs written by hand, against times worked out by hand."""

import pytest

from tpviz.cluster import Cluster, Device, Level
from tpviz.cluster.clock.engine import Engine, GroupQueue
from tpviz.cluster.clock.injected_faults import Faults

FLAT = Cluster("flat", Device({"float32": 1e9}, 1e9, 1e9), (Level("link", 4, 100.0, 100.0, 0.25),))


def queue(axis, members, cluster=FLAT, shift=None):
    link = cluster.link(members, cluster.size, shift)
    return GroupQueue(axis, members, (axis, shift), link, 1.0)


def test_a_collective_starts_with_its_last_member():
    # ring all-reduce of 100 bytes over 2: 2 hops of 0.25 s and 100 bytes at 100/s: 1.5 s
    q = queue("tp", (0, 1))
    ops = [("issue", q, "all_reduce", 100), ("wait", 0)]
    times = Engine(FLAT, [[("kernel", 1.0), *ops], [("kernel", 3.0), *ops]]).run()
    assert times[0] == [(0.0, 1.0), (1.0, 4.5), (1.0, 4.5)]
    assert times[1] == [(0.0, 3.0), (3.0, 4.5), (3.0, 4.5)]


def test_collectives_of_one_group_queue_and_kernels_go_on():
    q = queue("tp", (0, 1))
    program = [
        ("issue", q, "all_reduce", 100),
        ("issue", q, "all_reduce", 100),
        ("kernel", 2.0),
        ("wait", 0),
        ("wait", 1),
    ]
    times = Engine(FLAT, [program, program]).run()
    assert times[0][0] == (0.0, 1.5)
    assert times[0][1] == (0.0, 3.0)
    assert times[0][3] == (2.0, 2.0)  # was over before the wait
    assert times[0][4] == (2.0, 3.0)


@pytest.mark.parametrize(("contention", "end"), [(True, 2.5), (False, 1.5)])
def test_groups_of_different_axes_run_at_the_same_time_and_share_ports(contention, end):
    # 0.5 s silent, then 100 bytes through half of a port, or through all of it
    tp = {rank: q for q in (queue("tp", (0, 1)), queue("tp", (2, 3))) for rank in q.members}
    dp = {rank: q for q in (queue("dp", (0, 2)), queue("dp", (1, 3))) for rank in q.members}
    programs = [
        [("issue", q, "all_reduce", 100) for q in (tp[r], dp[r])] + [("wait", 0), ("wait", 1)]
        for r in range(4)
    ]
    times = Engine(FLAT, programs, contention).run()
    assert times[0][0][1] == pytest.approx(end)


def test_a_message_joins_sender_and_receiver():
    q = queue("pp", (0, 1), shift=1)
    times = Engine(
        FLAT,
        [
            [("kernel", 2.0), ("issue", q, "send", 50)],
            [("issue", q, "recv", 50), ("wait", 0), ("kernel", 1.0)],
            [],
            [],
        ],
    ).run()
    assert times[1][1] == (0.0, 2.75)
    assert times[1][2] == (2.75, 3.75)


def test_a_program_that_never_ends_is_named():
    q = queue("tp", (0, 1))
    with pytest.raises(
        RuntimeError, match="all_reduce #0 on axis tp of ranks 0,1, which rank 1 never issues"
    ):
        Engine(FLAT, [[("issue", q, "all_reduce", 8), ("wait", 0)], []]).run()


def test_faults_check_their_numbers():
    with pytest.raises(ValueError, match="must be a number above 0"):
        Faults(stragglers={0: -1})
    with pytest.raises(ValueError, match="names rank 9, but ranks are 0 to 3"):
        Faults(slow_links={9: 2.0}).check(4)
    with pytest.raises(ValueError, match=r"stragglers=\[1\] must be"):
        Faults(stragglers=[1])
    assert Faults(jitter=0.5).kernel_factor(1, 7) == Faults(jitter=0.5).kernel_factor(1, 7)
    assert 1 <= Faults(jitter=0.5).kernel_factor(1, 7) <= 1.5


def test_where_members_send_unequal_parts_the_largest_counts():
    for sizes in ((10, 100), (100, 10)):
        q = queue("tp", (0, 1))
        programs = [[("issue", q, "all_to_all", bytes), ("wait", 0)] for bytes in sizes]
        assert Engine(FLAT, programs).run()[0][0] == (0.0, 0.25 + 0.5)


def test_aligned_ranks_go_on_together():
    times = Engine(
        FLAT,
        [
            [("kernel", 1.0), ("align",), ("kernel", 1.0)],
            [("kernel", 3.0), ("align",), ("kernel", 1.0)],
        ],
    ).run()
    assert times[0] == [(0.0, 1.0), (3.0, 3.0), (3.0, 4.0)]
    with pytest.raises(RuntimeError, match="rank 0 waits for all to begin a step"):
        Engine(FLAT, [[("align",)], []]).run()
