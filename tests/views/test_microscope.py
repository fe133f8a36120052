"""The microscope: each collective gives what torch's own gives, and shows just what was sent."""

from collections import Counter

import pytest

import tpviz as tv
from tpviz.cluster.collectives import cost
from tpviz.views.collectives import Microscope
from tpviz.views.collectives.algorithms import ALGORITHMS
from tpviz.views.collectives.observe import matched

SIZES = [2, 3, 4, 5, 8]
SUMS = ("all_reduce", "reduce_scatter")


@pytest.fixture(scope="module", params=SIZES)
def seen(request):
    """{(collective, algorithm): Microscope} of all that work on so many ranks."""
    n = request.param
    return {
        key: tv.microscope(*key, world_size=n)
        for key, algorithm in ALGORITHMS.items()
        if not algorithm.powers or n & (n - 1) == 0
    }


def sends(trace):
    """(sender, receiver, bytes) of every send row, counted."""
    rows = trace.select(kind="comm", name="send")
    return Counter((*map(int, e.members.split(",")), e.bytes) for e in rows)


def test_results_are_those_of_torch(seen):
    assert {key: m.error for key, m in seen.items()} == dict.fromkeys(seen, 0.0)


def test_the_steps_are_the_recorded_sends(seen):
    for m in seen.values():
        assert Counter((x.sender, x.receiver, x.bytes) for x in m.messages) == sends(m.trace)
        for x in m.messages:
            rows = m.trace.select(name="send", rank=x.sender, step=x.step, chunk=x.chunk)
            assert x.start in rows["start"]
            assert f"{x.sender},{x.receiver}" in rows["members"]
            assert x.value == m.values[x.step][x.sender][x.chunk]


def test_values_follow_from_the_messages(seen):
    """What ranks noted is what the messages make of the step before; sums are of distinct ranks."""
    for m in seen.values():
        for number, step in enumerate(m.steps):
            expected = [list(row) for row in m.values[number]]
            for x in step:
                old = expected[x.receiver][x.slot] if x.phase == "reduce" else 0
                expected[x.receiver][x.slot] = old + x.value
            assert expected == m.values[number + 1], (m, number)


def test_a_cell_names_the_ranks_whose_numbers_it_sums(seen):
    for m in seen.values():
        for frame in m.cells:
            for row in frame:
                for cell in filter(None, row):
                    assert len(set(cell.ranks)) == len(cell.ranks)
                    if m.collective in SUMS:
                        terms = [m.values[0][rank][cell.chunk] for rank in cell.ranks]
                        assert cell.value == sum(terms)


def test_in_the_end_all_is_there(seen):
    for (collective, _), m in seen.items():
        n, last = m.world_size, m.cells[-1]
        for rank, row in enumerate(last):
            if collective == "all_reduce":
                assert all(cell.ranks == tuple(range(n)) for cell in row)
            if collective == "reduce_scatter":
                assert row[rank].ranks == tuple(range(n))
            if collective == "all_gather":
                assert [cell.ranks for cell in row] == [(r,) for r in range(n)]
            if collective == "all_to_all":
                assert [(c.chunk, c.ranks) for c in row[n:]] == [(rank, (r,)) for r in range(n)]


def test_steps_and_bytes_are_those_of_the_formula(seen):
    for (collective, algorithm), m in seen.items():
        hops, volume = cost(
            ALGORITHMS[collective, algorithm].formula, collective, m.payload, m.world_size
        )
        assert (len(m.steps), m.cost) == (hops, (hops, volume))
        if algorithm in ("ring", "recursive_doubling", "pairwise"):
            assert m.sent == [volume] * m.world_size
        elif algorithm == "double_tree":  # two ranks alone pass nothing on
            assert max(m.sent) == volume if m.world_size in (4, 8) else max(m.sent) <= volume
        if collective == "all_reduce" and algorithm != "recursive_doubling":
            assert sum(m.sent) == 2 * (m.world_size - 1) * m.payload


def test_pieces_follow_each_other_through_a_tree():
    m = tv.microscope("all_reduce", "tree", 4, chunks=3)
    assert m.error == 0
    assert len(m.steps) == 4 + 2
    both = [{x.phase for x in step} for step in m.steps]
    assert {"reduce", "copy"} in both
    double = tv.microscope("all_reduce", "double_tree", 4, chunks=6)
    assert double.error == 0
    assert len(double.steps) == 4 + 2


def test_bandwidths_as_nccl_tests_has_them():
    m = tv.microscope(elements=4096)
    assert (m.collective, m.algorithm, m.world_size, m.payload) == ("all_reduce", "ring", 4, 16384)
    assert m.algbw == pytest.approx(m.payload / m.seconds)
    assert m.busbw == pytest.approx(1.5 * m.algbw)
    gather = tv.microscope("all_gather", elements=4096)
    assert gather.busbw == pytest.approx(0.75 * gather.algbw)
    assert m.predicted is None
    assert m.cluster_seconds is None


@pytest.mark.filterwarnings("ignore:this emulated run is not faithful")  # the machine may be busy
def test_on_an_emulated_cluster_each_step_has_its_prediction():
    cluster = tv.clusters.nvlink_pairs().scale_model(slow_motion=300)
    m = tv.microscope(world_size=4, elements=2**16, cluster=cluster)
    hop = cluster.link((1, 2), 4, 1)
    assert m.trace.meta["badge"] == "emulated"
    assert m.predicted == pytest.approx([hop.latency + 2**16 / hop.bandwidth] * 6)
    assert min(m.step_seconds) >= 0.99 * m.predicted[0]  # pacing holds back, however busy we are
    assert m.cluster_seconds == pytest.approx(
        cluster.collective_time("all_reduce", 2**18, 4, cluster.link(range(4), 4))
    )
    assert f"On {cluster.caption}" in m.describe()


def test_repr_and_words_do_not_depend_on_times():
    first, second = (tv.microscope("all_gather", world_size=3) for _ in range(2))
    assert (
        repr(first)
        == repr(second)
        == ("<Microscope ring all_gather, 3 ranks, 12 bytes, 2 steps, 6 messages>")
    )
    assert first.values == second.values


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"collective": "gather"},
            r"collective='gather' is not possible: use 'all_reduce', 'all_g",
        ),
        (
            {"algorithm": "mesh"},
            r"algorithm='mesh' is not possible: use 'ring', 'tree', 'double_tree'",
        ),
        ({"collective": "all_to_all", "algorithm": "ring"}, r"use 'pairwise'"),
        ({"algorithm": "recursive_doubling", "world_size": 6}, r"use 4 or 8, or algorithm='ring'"),
        ({"world_size": 1}, r"world_size=1 is too small: the least that works is 2"),
        ({"world_size": 99}, r"world_size=99 is more than the 16 ranks allowed"),
        (
            {"elements": 10},
            r"elements=10 does not split evenly over chunks=4: use chunks=2 or 5, or",
        ),
        ({"elements": 0}, r"elements=0 is too small"),
        ({"chunks": 2}, r"chunks=2: ring all_reduce on 4 ranks has 4 of them; only trees"),
        ({"algorithm": "double_tree", "chunks": 1}, r"chunks=1 is too small: the least .* is 2"),
        ({"cluster": "pairs", "world_size": 4}, r"4 ranks do not fit the 2 devices"),
    ],
)
def test_what_cannot_be_done_is_refused(arguments, words):
    if arguments.get("cluster"):
        arguments = {**arguments, "cluster": tv.clusters.nvswitch(2)}
    with pytest.raises(ValueError, match=words):
        tv.microscope(**arguments)


@pytest.mark.parametrize("cluster", ["x", tv.clusters.nvswitch, {"levels": 2}])
def test_a_cluster_that_is_none_is_refused(cluster):
    with pytest.raises(ValueError, match=r"use a cluster such as tv\.clusters.nvlink_pairs"):
        tv.microscope(cluster=cluster)


def test_a_message_without_its_partner_is_noticed():
    m = tv.microscope(world_size=2)
    with pytest.raises(ValueError, match="was only sent or only received"):
        matched(m.trace.where(~((m.trace["name"] == "recv") & (m.trace["step"] == 1))), m.values)
    assert isinstance(m, Microscope)
