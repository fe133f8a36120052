"""The clock: what is hidden and what is exposed, worked by hand; queues that overlap other axes."""

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpviz.cluster.clock.cost import Memory, Segment, by_axis, parts
from tpviz.cluster.clock.fast import Clock
from tpviz.cluster.clock.queues import Transfer
from tpviz.core.step import (
    Chunks,
    Collective,
    Issue,
    Kernel,
    Operations,
    Overlapped,
    Part,
    Repeat,
    Wait,
    count,
    interned,
)
from tpviz.core.tables import show_bytes, show_seconds


def kernel(seconds):
    return Kernel(seconds, 0)


def move(axis, seconds, collective="all_reduce"):
    """Half of its time is latency."""
    return Collective(axis, collective, seconds)


def run(*operations, clock=None):
    """The segments of parts with these operations each, on a clock of whole numbers."""
    clock = clock or Clock(
        lambda kernel: kernel.flops, lambda m: Transfer(m.axis, m.payload, m.payload / 2)
    )
    return clock.run([Part("forward", str(k), tuple(each)) for k, each in enumerate(operations)])


def test_blocking_adds_and_overlapping_hides():
    (s,) = run([kernel(2.0), move("tp", 3.0)])
    assert (s.seconds, s.exposed, s.hidden, s.latency) == (5.0, {"tp": 3.0}, {"tp": 0.0}, 1.5)
    (s,) = run([Overlapped(move("tp", 3.0), kernel(2.0))])
    # a third of it is exposed, and a third of its latency
    assert (s.seconds, s.exposed, s.hidden, s.latency) == (3.0, {"tp": 1.0}, {"tp": 2.0}, 0.5)
    (s,) = run([Overlapped(move("tp", 3.0), kernel(4.0))])
    assert (s.seconds, s.exposed, s.hidden) == (4.0, {"tp": 0.0}, {"tp": 3.0})


def test_an_axis_of_one_rank_leaves_nothing():
    clock = Clock(lambda kernel: kernel.flops, lambda m: Transfer(m.axis, 0.0))
    made = run(
        [kernel(1.0), move("tp", 9.0), Overlapped(move("tp", 9.0), kernel(2.0))], clock=clock
    )
    assert made == [Segment("forward", "0", compute=3.0)]
    step = [Part("forward", "", (move("tp", 9), Issue(move("tp", 9)), Wait("tp")))]
    assert not count(step, {"tp": 1}) and count(step, {"tp": 2}).total()[0] == 2


@pytest.mark.parametrize(
    "g, a, chunks, seconds",
    [
        (4.0, 1.0, 1, 5.0),  # one piece: nothing overlaps
        (2.0, 1.0, 2, 5.0),  # GEMMs 0-2, 2-4; all-reduces 2-3, 4-5
        (1.0, 3.0, 2, 7.0),  # GEMMs 0-1, 1-2; all-reduces 1-4, 4-7
        (1.0, 1.0, 4, 5.0),
    ],
)
def test_chunks_are_a_pipeline_of_two_stages(g, a, chunks, seconds):
    (s,) = run([Chunks(kernel(g), move("tp", a), chunks)])
    assert s.seconds == seconds and s.compute == chunks * g
    assert s.exposed["tp"] + s.hidden["tp"] == chunks * a
    assert s.latency == pytest.approx(s.exposed["tp"] / 2)


def test_a_queue_across_parts_by_hand():
    """Kernels of 1, 2 and 1 s; all-reduces of 2, 2 and 1 s, issued after the first, second and
    third: they run at 1-3, 3-5, and 5-6 behind the second."""
    sent = [Issue(move("dp", seconds)) for seconds in (2.0, 2.0, 1.0)]
    made = run(
        [kernel(1.0)], sent[:1], [kernel(2.0)], sent[1:2], [kernel(1.0)], sent[2:], [Wait("dp")]
    )
    assert [s.layer for s in made] == ["0", "2", "4", "6"], "to issue takes no time"
    assert [s.hidden for s in made] == [{}, {"dp": 2.0}, {"dp": 1.0}, {"dp": 0.0}]
    assert made[-1].exposed == {"dp": 2.0} and made[-1].latency == 1.0
    assert parts(made) == {
        "compute": 4.0,
        "bandwidth wait": 1.0,
        "latency wait": 1.0,
        "bubble": 0.0,
    }


def test_some_may_stay_in_flight():
    """Waiting for the first of two all-reduces of 2 s, then for both."""
    made = Operations()
    first, second = made.issue(move("tp", 2.0)), made.issue(move("tp", 2.0))
    made.wait(first)
    made.append(kernel(1.0))
    made.wait(second)
    made.wait(None)  # nothing was issued
    assert made[2] == Wait("tp", in_flight=1)
    (s,) = run(made)
    assert s.seconds == 4.0 and s.exposed == {"tp": 3.0} and s.hidden == {"tp": 1.0}


times = st.floats(0.01, 10)


@given(st.lists(st.tuples(times, times), min_size=1, max_size=8))
def test_zero_0_ends_by_the_closed_form(pairs):
    """max(last kernel, max over k of ready_k + t_k + t_{k+1} + ...)."""
    operations, ready, now = [], [], 0.0
    for seconds, moved in pairs:
        operations += [[kernel(seconds)], [Issue(move("dp", moved))]]
        now += seconds
        ready.append(now)
    made = run(*operations, [Wait("dp")])
    moved = [t for _, t in pairs]
    ends = max(r + sum(moved[k:]) for k, r in enumerate(ready))
    assert sum(s.seconds for s in made) == pytest.approx(ends)
    exposed, hidden = by_axis(made, "exposed"), by_axis(made, "hidden")
    assert exposed.get("dp", 0) + hidden.get("dp", 0) == pytest.approx(sum(moved))


def test_waiting_for_another_axis_hides_too():
    """An all-reduce of 4 s runs while kernels take 1 s, wait 2 s for tp, and then 1 s for it."""
    first, last = run([Issue(move("dp", 4.0))], [kernel(1.0), move("tp", 2.0)], [Wait("dp")])
    assert first.hidden == {"tp": 0.0, "dp": 3.0} and last.exposed == {"dp": 1.0}


@given(st.lists(st.tuples(times, times, st.booleans()), min_size=1, max_size=5), st.integers(0, 12))
def test_a_repeat_is_as_if_written_out(items, repeats):
    """Prefetching parts, of which each leaves a collective to the next one."""
    body = tuple(
        Part("forward", str(k), (Wait("a"), kernel(seconds), *([Issue(move("a", moved))] * sends)))
        for k, (seconds, moved, sends) in enumerate(items)
    )
    clocks = [
        Clock(lambda k: k.flops, lambda m: Transfer(m.axis, m.payload, min(m.payload, 0.3)))
        for _ in range(2)
    ]
    short = clocks[0].run([Repeat(body, repeats), Part("sync", "", (Wait("a"),))])
    full = clocks[1].run([*body * repeats, Part("sync", "", (Wait("a"),))])
    assert [s[:2] for s in short] == [s[:2] for s in full]
    for a, b in zip(short, full):
        assert a.seconds == pytest.approx(b.seconds) and a.hidden == pytest.approx(b.hidden)
        assert a.latency == pytest.approx(b.latency)
    written, repeated = count([*body * repeats], {"a": 4}), count([Repeat(body, repeats)], {"a": 4})
    assert written == repeated


of_a_block = st.one_of(
    times.map(kernel),
    st.builds(move, st.sampled_from("ab"), times),
    st.builds(Issue, st.builds(move, st.sampled_from("abc"), times)),
    st.builds(Wait, st.sampled_from("ab"), st.integers(0, 3)),
)


@given(
    st.lists(st.lists(of_a_block, max_size=4), min_size=1, max_size=4),
    st.lists(of_a_block, max_size=3),
    st.integers(3, 8),
    st.integers(0, 4),
)
def test_blocks_are_as_if_written_out(block, before, layers, ready):
    """Queues that are idle, drain, recur or grow (nobody waits for "c" until the end), in blocks of
    which the part ``ready`` completes a gradient, where there is one."""
    parts = [
        Part("forward", f"{layer}.{k}", tuple(operations), (f"{layer}.{k}.weight",) * (k == ready))
        for layer in range(layers)
        for k, operations in enumerate(block)
    ]
    end = [Part("sync", "", (Wait(axis, left),)) for axis in "abc" for left in (2, 0)]
    step = [Part("forward", "embed", tuple(before)), *parts, *end]
    clocks = [
        Clock(lambda k: k.flops, lambda m: Transfer(m.axis, m.payload, min(m.payload, 0.3), 0.8))
        for _ in range(2)
    ]
    with patch("tpviz.core.step.FEWEST", 0):
        made = interned(step)
    short, full = (
        [s for s in clock.run(one) if s.ready or s.seconds > 1e-9]  # a tie may be rounded away
        for clock, one in zip(clocks, (made, step))
    )
    assert [(s.phase, s.layer, s.ready) for s in short] == [
        (s.phase, s.layer, s.ready) for s in full
    ]
    for a, b in zip(short, full):
        assert (a.compute, a.latency) == pytest.approx((b.compute, b.latency))
        for axis in "abc":
            mine, its = ((s.exposed.get(axis, 0), s.hidden.get(axis, 0)) for s in (a, b))
            assert mine == pytest.approx(its, abs=1e-9)


@pytest.mark.parametrize("moved", [1.0, 2.0, 3.0])
def test_blocks_that_recur_are_not_walked_again(moved):
    """An all-reduce issued in a block of 2 s ends in it, with it, or later than it."""
    block = (kernel(2.0), Issue(move("dp", moved)))
    step = interned([Part("backward", str(k), block) for k in range(48)])
    (blocks,) = step.blocks
    assert (blocks.count, blocks.waited) == (48, frozenset())
    clock = Clock(lambda k: k.flops, lambda m: Transfer(m.axis, m.payload))
    walked = []
    clock._walk = lambda parts, walk=clock._walk: walked.append(parts) or walk(parts)
    made = clock.run(step)
    assert [s.layer for s in made] == [str(k) for k in range(48)] and len(walked) <= 3
    assert made[-1].hidden == {"dp": min(moved, 2.0)}
    (waiting,) = clock.run([Part("sync", "", (Wait("dp"),))])
    assert waiting.exposed["dp"] == pytest.approx(moved if moved <= 2 else 48 * moved - 94)


def test_memory_and_units():
    memory = Memory(parameters=1, gradients=2, optimizer=4, activations=8)
    assert memory.total == 15 and dict(memory)["optimizer"] == 4
    assert [show_seconds(s) for s in (0, 2e-9, 0.00045, 0.0123, 1.2)] == [
        "0 s",
        "2 ns",
        "450 µs",
        "12.3 ms",
        "1.2 s",
    ]
    assert [show_bytes(b) for b in (12, 1500, 2e6, 80e9, 3e12)] == [
        "12 B",
        "1.5 kB",
        "2 MB",
        "80 GB",
        "3 TB",
    ]


SENT = Issue(move("dp", 2.0))


@pytest.mark.parametrize(
    "before, block, latency",
    [  # half of a collective of 4 s is left, then the whole of one of 2 s, each with 0.1 s of hops
        ((Issue(move("dp", 4.0)), kernel(2.0)), (Wait("dp"), kernel(1.0), SENT), 0.05 + 39 * 0.1),
        # more and more are in flight; from the seventh block on kernels wait for half of one
        ((), (SENT, kernel(1.0), Wait("dp", in_flight=3)), 34 * 0.05),
    ],
)
def test_blocks_that_seem_to_recur(before, block, latency):
    step = [
        Part("forward", "", before),
        *(Part("backward", str(k), block) for k in range(40)),
    ]
    hops = []
    for one in (interned(step), step):
        clock = Clock(lambda k: k.flops, lambda m: Transfer(m.axis, m.payload, 0.1))
        hops.append([s.latency for s in clock.run(one)])
    assert hops[0] == pytest.approx(hops[1]) and sum(hops[0]) == pytest.approx(latency)
