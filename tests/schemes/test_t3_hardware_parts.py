"""The parts of T3's simulated GPU by themselves: memory, cache, knobs, sizes, what is drawn."""

from dataclasses import fields, replace
from math import inf

import numpy as np
import pytest

from tpviz.core.tables import show_bytes
from tpviz.evidence.t3_hardware import Gemm, Machine, simulate
from tpviz.evidence.t3_hardware.dram import COMM, READ, STORE, Dram, EventClock
from tpviz.evidence.t3_hardware.llc import Cache
from tpviz.evidence.t3_hardware.small_gpu import SMALL_GPU
from tpviz.evidence.t3_hardware.tiling import Tiling

PLAIN = Machine(dram=1e9, efficiency=1.0, mixed=0.5, queue=1, entry=100, update=2.0)


def served(policy, asked, machine=PLAIN, limit=inf):
    """Names of requests (seconds, stream, name, bytes, cost) in the order served, and the times."""
    clock, order = EventClock(), []
    memory = Dram(clock, machine, policy)
    memory.limit = limit
    for at, stream, name, bytes, cost in asked:
        clock.at(
            at,
            lambda now, a: memory.ask(now, *a),
            (stream, "gemm_read", bytes, cost, lambda now, n: order.append((n, now)), name),
        )
    clock.run()
    return "".join(name for name, _ in order), [round(1e9 * now) for _, now in order]


ASKED = [
    (0.0, COMM, "a", 100, 1.0),
    (1e-9, COMM, "b", 100, 1.0),
    (2e-9, STORE, "s", 100, 1.0),
    (3e-9, READ, "r", 100, 1.0),
    (4e-9, COMM, "c", 100, 1.0),
    (5e-9, READ, "q", 100, 1.0),
]


@pytest.mark.parametrize(
    "policy, order", [("fifo", "absrcq"), ("round_robin", "arbqcs"), ("mca", "arqsbc")]
)
def test_whom_the_memory_serves(policy, order):
    """Within the GEMM's stream reads go before stores, but for what simply came first."""
    found, times = served(policy, ASKED, replace(PLAIN, mixed=1.0))
    assert found == order
    assert times == [100, 200, 300, 400, 500, 600]


def test_turns_are_by_bytes_not_by_requests():
    asked = (
        [(0.0, COMM, "x", 100, 1.0)]
        + [(1e-9, READ, "R", 300, 1.0)] * 2
        + [(1e-9, COMM, "c", 100, 1.0)] * 6
    )
    assert served("round_robin", asked, replace(PLAIN, mixed=1.0))[0] == "xRcccRccc"


def test_mca_lets_communication_in_below_its_threshold_or_when_it_starved():
    wide = replace(PLAIN, queue=8, mixed=1.0)
    asked = [(0.0, READ, "r", 100, 1.0)] * 4 + [
        (1e-9, COMM, "c", 100, 1.0),
        (150e-9, READ, "q", 100, 1.0),
    ]
    assert served("mca", asked, wide)[0] == "rrrrcq"
    assert served("mca", asked, wide, limit=2)[0] == "rrrrqc"  # not while two are queued
    starved = replace(wide, queue=1, starvation=120e-9)
    assert served("mca", [*asked, (160e-9, READ, "p", 100, 1.0)], starved)[0] == "rrcrrqp"


def test_a_starved_backlog_is_served_until_it_is_young_again():
    """Five of communication wait since 0, one since 620 ns; the GEMM always waits too."""
    one = replace(PLAIN, mixed=1.0, starvation=120e-9)
    asked = (
        [(0.0, READ, "r", 100, 1.0)] * 9
        + [(0.0, COMM, c, 100, 1.0) for c in "abcde"]
        + [(620e-9, COMM, "y", 100, 1.0)]
    )
    found, times = served("mca", asked, one)
    assert found == "rrabcderyrrrrrr"
    assert times == [100 * (i + 1) for i in range(15)]


def test_updates_and_mixed_streams_cost_more():
    one = served("fifo", [(0.0, READ, "r", 100, 1.0)])[1]
    update = served("fifo", [(0.0, COMM, "u", 100, 2.0)])[1]
    both = served(
        "fifo",
        [(0.0, READ, "r", 100, 1.0), (0.0, COMM, "c", 100, 1.0), (0.0, READ, "q", 100, 1.0)],
        replace(PLAIN, queue=3),
    )[1]
    assert (one, update) == ([100], [200])
    assert both == [100, 300, 400]  # c runs while the other stream is queued, q no longer


def test_cache_keeps_what_was_used_last():
    cache = Cache(300, "lru")
    for key in "abc":
        cache.put(key, 100)
    assert cache.get("a") is not None
    cache.put("d", 100)
    assert [k for k in "abcd" if cache.get(k)] == ["a", "c", "d"]
    assert cache.put("large", 301).bytes == 301 and cache.get("large") is None
    assert cache.used == 300


def test_a_walk_through_a_little_too_much_misses_all_under_lru_only():
    hits = {}
    for policy in ("lru", "nru"):
        cache = Cache(1000, policy)
        hits[policy] = 0
        for _ in range(20):
            for key in range(12):
                if cache.get(key):
                    hits[policy] += 1
                else:
                    cache.put(key, 100)
    assert hits["lru"] == 0
    assert 60 < hits["nru"] < 200


def test_stores_around_the_cache_leave_it_to_the_gemm():
    """Mega-GPT-2's FC-2 at TP 8: with its output in the cache the panels no longer fit."""
    gemm = Gemm(16384, 3072, 1536, wavefronts=1)
    before, after = (simulate(gemm, 8, config=c).dram["gemm_read"] for c in ("sequential", "t3"))
    once = (gemm.m + gemm.n) * gemm.k * 2
    assert once <= after < 0.6 * before


def test_panels_end_where_the_matrix_does():
    """T-NLG's 4256 columns are 33.25 tiles: with room for all, each number is read once."""
    for gemm in (Gemm(1024, 4256, 256), Gemm(1100, 512, 256), Gemm(90, 76, 24, tile=(32, 16))):
        done = simulate(gemm, 2, Machine(llc=1 << 32, cus=8), "t3", mode="full")
        assert done.dram["gemm_read"] == (gemm.m + gemm.n) * gemm.k * gemm.itemsize


def test_a_tenth_of_the_machine_keeps_its_times():
    """Amounts over rates, and the limit of starvation over how long a stage's reads take (they go
    with the root of its tiles); the full one's to 1 %, for rounding."""

    def times(m):
        return np.array(
            [
                m.slots / m.rate,
                m.llc / m.dram,
                m.dma_buffer / m.link,
                m.latency,
                m.dram / m.link,
                m.starvation * m.dram / m.slots**0.5,
            ]
        )

    np.testing.assert_allclose(times(SMALL_GPU), times(Machine()), rtol=0.01)
    assert SMALL_GPU.queue * SMALL_GPU.entry == Machine().queue * Machine().entry
    assert SMALL_GPU.cus * 10 == Machine().cus and SMALL_GPU.link * 10 == Machine().link


@pytest.mark.parametrize(
    "machine, expected",
    [
        ({"cus": 0}, "cus=0 is too small: the least that works is 1"),
        (
            {"policy": "random"},
            "policy='random' is not possible: use 'round_robin', 'fifo' or 'mca'",
        ),
        ({"efficiency": 1.5}, "efficiency=1.5 is not between 0.05 and 1.0"),
        ({"thresholds": (5, 10)}, "2 thresholds need 1 intensities between them, not 3"),
        ({"intensities": (0.1, 0.2, 0.3)}, "must fall"),
        ({"thresholds": 5}, "thresholds=5 must be several numbers"),
        ({"intensities": ("low",) * 3}, "intensities must be a number"),
        ({"cus": None}, "cus must be a whole number"),
        ({"link": "fast"}, "link must be a number"),
    ],
)
def test_knobs_out_of_bounds(machine, expected):
    with pytest.raises(ValueError, match=expected):
        Machine(**machine)


def test_every_knob_says_what_it_is_and_where_it_is_from():
    rows = Machine().knobs()[1:]
    assert [row[0] for row in rows] == [f.name for f in fields(Machine)]
    assert all(what for _, _, what, _ in rows)
    assert {row[3] for row in rows} == {"note", "derived", "recalled", "public", "chosen", "fitted"}
    assert Machine().rate == pytest.approx(114.7e12, rel=1e-3)
    assert replace(Machine(), cus=160).rate == 2 * Machine().rate


@pytest.mark.parametrize(
    "make, expected",
    [
        (lambda: Gemm(0, 8, 8), "m=0 is too small"),
        (lambda: Gemm(8, 8, 8, tile=128), "tile=128 must be two numbers"),
        (lambda: simulate(Gemm(256, 256, 64), 8), "has 4 tiles of 128 x 128, too few for ranks=8"),
        (lambda: simulate(Gemm(384, 256, 64), 4), "no 4 chunks that are alike"),
        (lambda: simulate((8, 8, 8), 2), "takes a Gemm and a Machine"),
        (lambda: simulate(Gemm(256, 256, 64), 2, config="best"), "config='best' is not possible"),
        (
            lambda: simulate(Gemm(256, 256, 64), 2, config="ideal", collective="direct_rs"),
            "is of ring_rs",
        ),
        (lambda: simulate(Gemm(256, 256, 64), 2, values=[0, 0]), "use mode='full'"),
        (
            lambda: simulate(Gemm(256, 256, 64), 2, mode="full", values=np.zeros((2, 9, 9))),
            "a partial of shape",
        ),
        (lambda: simulate(Gemm(256, 256, 64), 2, mode="full", values=5), "values=5 is no list"),
        (
            lambda: simulate(
                Gemm(2, 256, 64, tile=(2, 128), wavefronts=1),
                2,
                mode="full",
                values=[(np.zeros((2, 9)), np.zeros((9, 256)))] * 2,
            ),
            "rank 0: A ",
        ),
        (
            lambda: simulate(Gemm(256, 256, 64), 2, mode="full", values=np.zeros((3, 256, 256))),
            "3 values for ranks=2",
        ),
    ],
)
def test_sizes_that_clash(make, expected):
    with pytest.raises(ValueError, match=expected):
        make()


def test_a_partial_of_two_rows_may_be_lists():
    """It is not taken for (A, B)."""
    gemm = Gemm(2, 32, 8, tile=(2, 16), wavefronts=1)
    partials = np.random.default_rng(0).integers(-9, 9, (2, 2, 32))
    done = simulate(gemm, 2, mode="full", values=partials.tolist())
    assert (done.values == partials.sum(0)).all()


@pytest.mark.parametrize("seed", range(12))
def test_tiles_cover_the_output_once(seed):
    rng = np.random.default_rng(seed)
    m, n, tile, other, waves = rng.integers([20, 20, 3, 3, 1], [90, 90, 17, 17, 4]).tolist()
    gemm = Gemm(m, n, 8, tile=(tile, other), wavefronts=min(waves, tile))
    grid = Tiling(gemm, 3)
    seen = np.zeros((m, n), int)
    for number in range(grid.total):
        parts = grid.parts(number)
        assert len(parts) == len(grid.sizes[number])
        for place, size in zip(parts, grid.sizes[number]):
            seen[place] += 1
            assert seen[place].size * gemm.itemsize == size
    assert (seen == 1).all()
    assert sum(grid.chunk_bytes) == gemm.bytes
    assert {len(c) for c in grid.chunks} <= {grid.total // 3, grid.total // 3 + 1}


def test_posted_stores_are_those_that_outrun_the_link():
    """A stage makes all tiles of the first chunk at once: the link still has all but what it sent
    by then; where it is faster than the GEMM, one tile."""
    gemm = Gemm(512, 256, 64, tile=(32, 32), wavefronts=1)
    chunk, tile = gemm.bytes // 4, 32 * 32 * 2
    slow = simulate(gemm, 4, Machine(cus=64, link=1e6))
    assert chunk - tile <= slow.posted <= chunk
    assert simulate(gemm, 4, Machine(cus=1, wgs_per_cu=1, link=1e12)).posted == tile
    small = Machine(cus=2, llc=64 << 10)
    both = [simulate(gemm, 4, small, mode=mode).posted for mode in ("mirror", "full")]
    assert both[0] == both[1] > 0
    assert ["link, stores posted at the peak", show_bytes(slow.posted)] in slow.to_table()
    assert simulate(gemm, 4, small, collective="ring_ag").posted == 0  # all by DMA


def test_samples_add_up():
    done = simulate(Gemm(512, 256, 64, tile=(32, 32)), 4, Machine(cus=2))
    found = done.series(500)
    width = found["width"]
    gemm = done.dram["gemm_read"] + done.dram["update_local"]
    assert (found["gemm_rate"] * width).sum() == pytest.approx(gemm)
    assert (found["comm_rate"] * width).sum() == pytest.approx(sum(done.dram.values()) - gemm)
    assert (found["link"] * width).sum() == pytest.approx(done.link_bytes / 150e9)
    assert found["link"].max() <= 1 + 1e-9
    assert 0 < found["tracker"].max() <= done.tracker.peak and found["tracker"][-1] == 0
    assert found["gemm_queue"].max() > 0 and found["comm_queue"].max() > 0
    assert found["gemm_queue"][-1] == 0


def test_trace_and_words():
    done = simulate(Gemm(512, 256, 64, tile=(32, 32)), 4, Machine(cus=2), mode="full")
    trace = done.trace()
    assert trace.meta["badge"] == "simulated" and trace.ranks == [0, 1, 2, 3]
    assert trace.step_time == pytest.approx(done.seconds)
    assert trace.select(rank=0, kind="comm")["wire_bytes"].sum() == pytest.approx(done.link_bytes)
    for lane in trace.lanes:
        mine = trace.select(rank=1, lane=lane)
        assert (mine["start"][1:] >= mine["end"][:-1] - 1e-12).all()
    assert 0 < trace.overlap() < 1
    assert "simulated" in done.describe() and "simulated" in repr(done)
    assert done.to_table()[0] == ["what (simulated)", "value"]
    assert "<table" in done._repr_html_()
