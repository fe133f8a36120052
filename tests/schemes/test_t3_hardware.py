"""T3's simulated hardware: what it moves, what it computes, how long it takes."""

import doctest
from importlib import import_module
from itertools import product
from math import ceil, prod

import numpy as np
import pytest

from tpviz.evidence.t3_hardware import (
    COLLECTIVES,
    CONFIGS,
    Dma,
    Gemm,
    Machine,
    Remote,
    maps,
    simulate,
)
from tpviz.evidence.t3_hardware.closed_form import sublayer_times
from tpviz.evidence.t3_hardware.dram import EventClock
from tpviz.evidence.t3_hardware.payload import ring_sum
from tpviz.evidence.t3_hardware.ring import all_gather, reduce_scatter
from tpviz.evidence.t3_hardware.tiling import Tiling

SMALL = Machine(cus=2, llc=64 << 10)
RAGGED = Gemm(90, 76, 24, itemsize=4, tile=(16, 16))


def partials(gemm, ranks, seed):
    """Numbers of very different sizes, so that any other order of sums gives other bits."""
    rng = np.random.default_rng(seed)
    shape = ranks, gemm.m, gemm.n
    return (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)).astype(np.float32)


@pytest.mark.parametrize("module", ["map_errors", "machine", "maps", "run", "tiling", "tracker"])
def test_examples_in_docstrings(module):
    done = doctest.testmod(import_module(f"tpviz.evidence.t3_hardware.{module}"))
    assert done.attempted and not done.failed


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_memory_traffic_is_the_paper_s_to_the_byte(ranks):
    """2 N - 1 reads become N - 2; the writes 2 N of GEMM and reduce-scatter 2 N - 2."""
    gemm = Gemm(16 * ranks, 64, 32, tile=(16, 16))
    c = gemm.bytes // ranks
    before, after = (simulate(gemm, ranks, SMALL, config).dram for config in ("sequential", "t3"))
    n = ranks
    assert (before["rs_read"], before["rs_write"], before["gemm_write"]) == (
        (2 * n - 1) * c,
        n * c,
        n * c,
    )
    assert (after["dma_read"], after["update_local"], after["update_incoming"]) == (
        (n - 2) * c,
        (n - 1) * c,
        (n - 1) * c,
    )
    for found in before, after:
        assert (found["ag_read"], found["ag_write"]) == ((n - 1) * c, (n - 1) * c)
    if n in (8, 16):
        moved = [sum(found.values()) - found["gemm_read"] for found in (before, after)]
        assert moved == {8: [45 * c, 34 * c], 16: [93 * c, 74 * c]}[n]  # 5.625 S and 4.25 S, ...


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_memory_traffic_of_the_other_collectives(ranks):
    """Section 2.9 of our notes: (own stores, what comes in, reads of the DMA) in chunks; of the
    all-gather its own chunk is the GEMM's output, the rest the collective's."""
    gemm = Gemm(16 * ranks, 64, 32, tile=(16, 16))
    n, c = ranks, gemm.bytes // ranks
    for name, chunks in {
        "direct_rs": (1, n - 1, 0),
        "all_to_all": (1, n - 1, 0),
        "ring_ag": (1, n - 1, n - 1),
    }.items():
        done = simulate(gemm, ranks, SMALL, collective=name)
        own = "update_local" if name == "direct_rs" else "gemm_write"
        assert [done.dram[what] for what in (own, "update_incoming", "dma_read")] == [
            number * c for number in chunks
        ]
        after = 2 * (n - 1) * c if name == "direct_rs" else 0  # its all-gather
        assert sum(done.dram.values()) - done.dram["gemm_read"] == sum(chunks) * c + after


def test_the_traffic_of_unequal_chunks():
    """Each rank reads for its DMA what is in positions 1 to N - 2 of its own order; by itself a
    ring's step takes as long as the largest chunk, and moves the rank's own."""
    done = simulate(RAGGED, 4, SMALL, mode="full")
    sizes = Tiling(RAGGED, 4).chunk_bytes
    assert len(set(sizes)) > 2
    for rank, found in enumerate(done.drams):
        assert found["dma_read"] == sum(sizes[(rank + j) % 4] for j in (2, 3))
        assert (
            found["update_local"]
            == found["update_incoming"]
            == sum(sizes[(rank + j) % 4] for j in (2, 3, 4))
        )
        assert found["ag_read"] == sum(sizes) - sizes[rank - 1]
        assert found["ag_write"] == sum(sizes) - sizes[rank]
    assert done.link_bytes == sum(sizes[1:]) + sum(sizes[:3])
    for config in ("sequential", "ideal_nmc"):
        plain, near = simulate(RAGGED, 4, SMALL, config, mode="full"), config == "ideal_nmc"
        assert plain.mode == "mirror" and len(plain.drams) == 1
        assert (
            plain.dram["rs_read"] == sum(sizes[1:])
            if near
            else (sum(sizes) + sum(sizes[2:]) + sizes[0])
        )
        assert plain.dram["rs_write"] == sum(sizes) - (sizes[1] if near else sizes[1] - sizes[0])
        assert plain.link_bytes == done.link_bytes
    slow = Machine(cus=2, dram=1e9)  # memory's time too is that of the largest
    plain, clock = simulate(RAGGED, 4, slow, "sequential"), EventClock()
    alike = all_gather(clock, slow, max(sizes), 4, plain.rs_end)
    clock.run()
    assert plain.ag_end - plain.rs_end == pytest.approx(alike.ended - plain.rs_end, rel=0.01)


@pytest.mark.parametrize(
    "ranks, config, policy, jitter",
    [
        (2, "t3", "fifo", 0.0),
        (3, "t3", "round_robin", 2e-6),
        (4, "t3_mca", "round_robin", 2e-6),
        (4, "t3", "mca", 0.0),
        (5, "t3_mca", "fifo", 2e-6),
        (5, "t3", "fifo", 2e-6),
    ],
)
def test_result_is_the_ring_s_sum_to_the_bit(ranks, config, policy, jitter):
    values = partials(RAGGED, ranks, ranks)
    expected = ring_sum(values, Tiling(RAGGED, ranks))
    other = [values[(r + 1) % ranks] for r in range(ranks)]
    assert ranks == 2 or (ring_sum(other, Tiling(RAGGED, ranks)) != expected).any()
    for seed in range(3):
        machine = Machine(cus=2, policy=policy, jitter=jitter, seed=seed)
        done = simulate(RAGGED, ranks, machine, config, mode="full", values=values)
        assert (done.values == expected).all()
        assert done.config == ("t3_mca" if policy == "mca" else config)  # it is called what it is


def test_values_may_be_the_two_factors():
    a, b = (np.random.default_rng(1).standard_normal((3, *shape)) for shape in ((90, 24), (24, 76)))
    done = simulate(RAGGED, 3, SMALL, mode="full", values=list(zip(a, b)))
    assert (done.values == ring_sum(list(a @ b), Tiling(RAGGED, 3))).all()


def test_other_collectives_carry_what_they_should():
    values, tiling = partials(RAGGED, 4, 0), Tiling(RAGGED, 4)
    machine = Machine(cus=2, jitter=1e-6)
    whole = values.astype(float)  # sums of 4 in any order, to float32's rounding
    direct = simulate(RAGGED, 4, machine, collective="direct_rs", mode="full", values=values)
    np.testing.assert_allclose(direct.values, whole.sum(0), rtol=0, atol=1e-6 * np.abs(whole).max())
    assert direct.dram["dma_read"] == 0
    exchanged = simulate(RAGGED, 4, machine, collective="all_to_all", mode="full", values=values)
    assert (exchanged.values == values).all()
    assert exchanged.rs_end == exchanged.ag_end > 0
    gathered = simulate(RAGGED, 4, machine, collective="ring_ag", mode="full", values=values).values
    for chunk, tiles in enumerate(tiling.chunks):
        for place in (p for t in tiles for p in tiling.parts(t)):
            assert (gathered[:, *place] == values[chunk][place]).all()


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_mirror_and_full_agree(collective):
    gemm = Gemm(256, 128, 64, tile=(32, 32), wavefronts=2)
    one = simulate(gemm, 4, SMALL, collective=collective)
    all_of = simulate(gemm, 4, SMALL, collective=collective, mode="full")
    assert one.seconds == pytest.approx(all_of.seconds, rel=1e-9)
    assert one.dram == all_of.dram and len({str(d) for d in all_of.drams}) == 1
    assert one.link_bytes == all_of.link_bytes
    np.testing.assert_allclose(one.tiles.second[0], all_of.tiles.second[0])


def test_mirror_and_full_agree_where_chunks_begin_within_a_column():
    gemm = Gemm(128, 18 * 32, 64, tile=(32, 32))  # 4 x 18 tiles, 9 a chunk: caches differ a little
    one, all_of = (simulate(gemm, 8, SMALL, mode=mode).seconds for mode in ("mirror", "full"))
    assert one == pytest.approx(all_of, rel=0.02)


@pytest.mark.parametrize(
    "m, n, k, ranks",
    [(16384, 3072, 1536, 8), (8192, 4256, 266, 16), (8192, 4256, 1596, 8), (2048, 18432, 2304, 32)],
)
def test_without_contention_only_the_longer_counts(m, n, k, ranks):
    """Within 2 % of max(GEMM, reduce-scatter summed in memory) + all-gather, where the GEMM's time
    is simulated, and the sum may begin when the first tile is there.

    Against the closed form too, which has the GEMM by rates alone: at most by the last stage, which
    is not full, the tiles at the edges, which are not whole, and 2 % for the first slice's reads
    and the last stage's stores, behind which nothing hides. 1 % less, since the link begins before
    the first stage ends. The cache holds everything: T3's stores leave more of it to the GEMM.
    """
    gemm, machine = Gemm(m, n, k, wavefronts=1), Machine(llc=1 << 32)
    plain = simulate(gemm, ranks, machine, "sequential")
    fused = simulate(gemm, ranks, machine, "t3", contention=False)
    formula = sublayer_times(gemm, ranks, machine)
    scatter, gather = formula.rs_nmc, plain.ag_end - plain.rs_end
    lead = np.nanmin(fused.tiles.computed)
    least = max(plain.gemm_end, scatter) + gather
    most = max(plain.gemm_end, lead + scatter) + gather
    assert 0.98 * least <= fused.seconds <= 1.02 * most
    computed = ceil(prod(gemm.tiles) / machine.slots) * machine.slots * prod(gemm.tile)
    stages = computed / (m * n) * formula.gemm
    assert 0.99 * formula.t3() <= fused.seconds
    assert fused.seconds <= 1.02 * (max(stages, formula.lead + scatter) + formula.ag)
    assert fused.gemm_end == pytest.approx(plain.gemm_end, rel=2e-3)
    assert simulate(gemm, ranks, machine, "t3").seconds > fused.seconds


@pytest.mark.parametrize("megabytes, ranks", list(product((6, 48, 192), (2, 4, 8, 16))))
def test_rings_alone_are_the_formula_s(megabytes, ranks):
    machine, chunk = Machine(), megabytes * 1e6 / ranks
    step = chunk / 150e9 + 500e-9
    for ring, last in ((reduce_scatter, 3 * chunk / 0.92e12), (all_gather, 0.0)):
        clock = EventClock()
        done = ring(clock, machine, chunk, ranks)
        clock.run()
        assert done.ended == pytest.approx((ranks - 1) * step + last, rel=0.01)


@pytest.mark.parametrize("update", [1.0, 4.0])
def test_memory_is_no_faster_than_its_rate(update):
    """With everything else for nothing the memory's work is what the time is spent on."""
    machine = Machine(cus=64, dram=1e9, mixed=0.92, update=update, link=1e12, latency=0.0, llc=0)
    done = simulate(Gemm(256, 256, 8, tile=(32, 32)), 4, machine, "t3")
    d = done.dram
    work = d["gemm_read"] + d["dma_read"] + update * (d["update_local"] + d["update_incoming"])
    least = work / 0.92e9
    assert least <= max(done.rs_end, done.gemm_end) <= 1.1 * least


def test_knobs_of_communication_matter():
    gemm = Gemm(2048, 1024, 512, wavefronts=1)

    def run(config="t3_mca", **knobs):
        return simulate(gemm, 8, Machine(cus=16, **knobs), config)

    assert run("t3", dma_buffer=1).rs_end > 1.05 * run("t3").rs_end
    slow = {"dram": 1e11, "starvation": 1.0}
    none, all_of = (run(thresholds=(entries,) * 4, **slow).gemm_end for entries in (1, 64))
    assert none < 0.99 * all_of  # few entries ahead of the GEMM's reads


def test_configurations_stand_in_the_order_that_they_must():
    gemm = Gemm(2048, 1024, 512, wavefronts=1)
    done = {config: simulate(gemm, 8, Machine(cus=16), config) for config in CONFIGS}
    seconds = {config: d.seconds for config, d in done.items()}
    assert seconds["ideal_nmc"] <= seconds["ideal"] < seconds["sequential"]
    assert seconds["t3"] < seconds["sequential"]
    assert done["sequential"].gemm_end == done["ideal"].gemm_end
    plain = done["sequential"]
    assert plain.gemm_end < plain.rs_end < plain.ag_end == plain.seconds


@pytest.mark.parametrize("collective, seed", list(product(COLLECTIVES, range(3))))
def test_every_part_gets_exactly_its_updates(collective, seed):
    """Conservation, for sizes, policies, configurations and tables of the tracker at random."""
    rng = np.random.default_rng([seed, *collective.encode()])
    ranks, policy = int(rng.integers(2, 6)), str(rng.choice(["fifo", "round_robin", "mca"]))
    m, n, k = rng.integers(60, 200, 3).tolist()
    machine = Machine(
        cus=int(rng.integers(1, 8)),
        jitter=1e-6,
        seed=seed,
        tracker_sets=2,
        tracker_records=int(rng.integers(1, 6)),
        policy=policy,
    )
    config = str(rng.choice(["t3", "t3_mca"]))
    done = simulate(Gemm(m, n, k, tile=(16, 16)), ranks, machine, config, collective, "full")
    tracked = done.tracker
    assert tracked.peak <= tracked.capacity + (tracked.spilled > 0)
    assert tracked.capacity == 2 * machine.tracker_records
    for rank, row in enumerate(maps(collective, ranks)):
        for chunk, rule in row:
            mine = tracked.updates[rank][done.tiles.chunk == chunk]
            sources = ranks if collective == "all_to_all" else 1  # a buffer for each
            expected = 0 if isinstance(rule, Remote) else rule.updates * sources
            assert (mine == expected).all()


def test_a_small_tracker_stalls_and_changes_nothing_else():
    values = partials(RAGGED, 4, 3)
    tiny, large = (
        simulate(
            RAGGED, 4, Machine(cus=2, tracker_sets=s, tracker_records=r), mode="full", values=values
        )
        for s, r in ((1, 2), (256, 8))
    )
    assert tiny.tracker.stalls > 0 and tiny.tracker.stalled > 0 and tiny.tracker.peak == 2
    assert large.tracker.stalls == 0 and large.tracker.stalled == 0
    assert (tiny.values == large.values).all()
    assert tiny.drams == large.drams
    assert tiny.seconds > large.seconds


@pytest.mark.parametrize("sizes, ranks, records", [((80, 32, 8), 6, 1), ((64, 64, 8), 6, 2)])
def test_ranks_whose_trackers_wait_for_each_other_do_not_wait_for_ever(sizes, ranks, records):
    """Found by search: on each rank a chunk's store takes the only records before the store of the
    chunk that the rank above waits for."""
    gemm = Gemm(*sizes, itemsize=4, tile=(16, 16), wavefronts=1)
    machine = Machine(cus=16, llc=1024, tracker_sets=1, tracker_records=records)
    values = partials(gemm, ranks, 0)
    done = simulate(gemm, ranks, machine, "t3", mode="full", values=values)
    assert done.tracker.spilled > 0 and done.tracker.stalls > 0
    assert done.tracker.peak == records + 1  # one at a time, complete: it does not stay
    assert "tracker, parts past it" in str(done.to_table())
    assert (done.values == ring_sum(values, Tiling(gemm, ranks))).all()
    wide = simulate(gemm, ranks, Machine(cus=16, llc=1024), "t3", mode="full")
    assert wide.tracker.spilled == 0 and "past it" not in str(wide.to_table())
    assert wide.drams == done.drams


def test_a_part_s_times_follow_each_other():
    done = simulate(Gemm(256, 128, 64, tile=(32, 32)), 4, SMALL, mode="full")
    t, latency = done.tiles, SMALL.latency
    assert (t.start < t.computed).all()
    for rank, row in enumerate(maps("ring_rs", 4)):
        for position, (chunk, rule) in enumerate(row):
            mine = t.chunk == chunk
            assert (t.position[rank][mine] == position).all()
            at = {name: getattr(t, name)[rank][mine] for name in t._fields[7:]}
            if isinstance(rule, Remote):
                assert np.isnan(at["stored"]).all() and (at["sent"] > at["computed"]).all()
            else:
                assert (at["second"] >= np.maximum(at["stored"], at["arrived"])).all()
                assert (at["stored"] > at["computed"]).all()
            if isinstance(rule, Dma):
                assert (at["triggered"] == at["second"]).all()
                assert (at["sent"] > at["triggered"]).all()
            if position < 3:
                there = t.arrived[rule.to][mine]
                np.testing.assert_allclose(there, at["sent"] + latency, rtol=1e-12)
