"""Segments: what hides and what does not, worked by hand; the queue beside them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpviz.cost import (
    Beside,
    Memory,
    Segment,
    Stretch,
    Transfer,
    by_axis,
    parts,
    show_bytes,
    show_seconds,
)


def test_blocking_adds_and_covering_hides():
    s = Stretch().kernel(2.0).blocking(Transfer("tp", 3.0, 1.0)).segment("forward")
    assert (s.seconds, s.exposed, s.hidden, s.latency) == (5.0, {"tp": 3.0}, {"tp": 0.0}, 1.0)
    s = Stretch().covered(Transfer("tp", 3.0, 1.5), 2.0).segment("backward")
    # a third of it is exposed, and a third of its latency
    assert (s.seconds, s.exposed, s.hidden) == (3.0, {"tp": 1.0}, {"tp": 2.0})
    assert s.latency == pytest.approx(0.5)
    s = Stretch().covered(Transfer("tp", 3.0), 4.0).segment("backward")
    assert (s.seconds, s.exposed, s.hidden) == (4.0, {"tp": 0.0}, {"tp": 3.0})


def test_one_rank_has_no_axis():
    s = Stretch().kernel(1.0).blocking(Transfer("tp", 0.0)).covered(Transfer("tp", 0.0), 2.0)
    assert s.segment("forward") == Segment("forward", compute=3.0)


@pytest.mark.parametrize(
    "g, a, chunks, seconds",
    [
        (4.0, 1.0, 1, 5.0),  # one piece: nothing overlaps
        (2.0, 1.0, 2, 5.0),  # GEMMs 0-2, 2-4; sums 2-3, 4-5
        (1.0, 3.0, 2, 7.0),  # GEMMs 0-1, 1-2; sums 1-4, 4-7
        (1.0, 1.0, 4, 5.0),
    ],
)
def test_chunks_are_a_pipeline_of_two_stages(g, a, chunks, seconds):
    s = Stretch().chunked(g, Transfer("tp", a, a / 2), chunks).segment("forward")
    assert s.seconds == seconds and s.compute == chunks * g
    assert s.exposed["tp"] + s.hidden["tp"] == chunks * a
    assert s.latency == pytest.approx(s.exposed["tp"] / 2)


def test_queue_beside_by_hand():
    """Kernels of 1, 2 and 1 s; sums of 2, 2 and 1 s, sent after the first, second and third."""
    beside = Beside("dp")
    ends = []
    for kernel, moved in ((1.0, 2.0), (2.0, 2.0), (1.0, 1.0)):
        beside.run(Segment("backward", compute=kernel))
        ends.append(beside.issue(Transfer("dp", moved, 0.5 * moved)))
    assert ends == [3.0, 5.0, 6.0]  # 1-3, 3-5, then 5-6 behind it
    beside.wait(ends[-1], "sync")
    found = beside.finish()
    assert [s.hidden for s in found] == [{}, {"dp": 2.0}, {"dp": 1.0}, {}]
    assert found[-1].exposed == {"dp": 2.0} and found[-1].latency == 1.0
    assert parts(found) == {
        "compute": 4.0,
        "exposed communication": 1.0,
        "latency": 1.0,
        "bubble": 0.0,
    }
    beside.wait(3.0, "sync")  # long past: no segment
    assert len(beside.finish()) == 4


times = st.floats(0.01, 10)


@given(st.lists(st.tuples(times, times), min_size=1, max_size=8))
def test_zero_0_ends_by_the_closed_form(pairs):
    """max(last kernel, max over k of ready_k + t_k + t_{k+1} + ...)."""
    beside, ready, now = Beside("dp"), [], 0.0
    for kernel, moved in pairs:
        beside.run(Segment("backward", compute=kernel))
        end = beside.issue(Transfer("dp", moved))
        now += kernel
        ready.append(now)
    beside.wait(end, "sync")
    moved = [t for _, t in pairs]
    assert beside.now == pytest.approx(max(r + sum(moved[k:]) for k, r in enumerate(ready)))
    found = beside.finish()
    exposed, hidden = by_axis(found, "exposed"), by_axis(found, "hidden")
    assert exposed.get("dp", 0) + hidden.get("dp", 0) == pytest.approx(sum(moved))
    assert sum(parts(found).values()) == pytest.approx(beside.now)


def test_waiting_for_another_axis_hides_too():
    """A sum of 4 s runs while kernels take 1 s, wait 2 s for tp, and then 1 s for it."""
    beside = Beside("dp")
    end = beside.issue(Transfer("dp", 4.0))
    beside.run(Stretch().kernel(1.0).blocking(Transfer("tp", 2.0)).segment("forward"))
    beside.wait(end, "sync")
    first, last = beside.finish()
    assert first.hidden == {"tp": 0.0, "dp": 3.0} and last.exposed == {"dp": 1.0}


def test_memory_and_units():
    memory = Memory(parameters=1, gradients=2, optimizer=4, activations=8)
    assert memory.total == 15 and dict(memory)["optimizer"] == 4
    assert [show_seconds(s) for s in (0, 2e-9, 0.00045, 0.0123, 1.2)] == [
        "0 s",
        "2 ns",
        "450 us",
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
