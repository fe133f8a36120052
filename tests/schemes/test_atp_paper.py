"""ATP's estimate of communication: volumes against the ledger, times and tables by hand."""

from dataclasses import replace
from math import inf, isclose

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tpviz as tv
from tpviz.schemes.atp import paper
from tpviz.schemes.atp.paper import bus_time, payloads, wire_volume
from tpviz.schemes.megatron.paper import volume as megatron_volume

MESHES = [(d, n // d) for n in range(2, 17) for d in range(1, n + 1) if n % d == 0]
ORDERS = ("column", "row")
WIDE = tv.GPT(layers=1, hidden=12288, heads=48, seq=2048, batch=4, dtype="bfloat16")
"""The layer of the benchmark script in the authors' repository."""


def fitting(mesh, **more):
    """A workload whose sizes every mesh of these sizes divides, and no larger."""
    n = mesh[0] * mesh[1]
    return tv.GPT(layers=1, hidden=2 * n, heads=n, seq=n, batch=2, vocab=n, **more)


def per_layer(strategy, w):
    """{axis: wire elements of one block} from the ledger, statistics of LayerNorm left out."""
    one, two = (strategy.ledger(replace(w, layers=layers)) for layers in (1, 2))
    found = {
        axis: (two.total(axis=axis)[2] - one.total(axis=axis)[2]) / w.itemsize
        for axis in ("d1", "d2")
    }
    at = strategy.layout
    if at.l1:
        numbers = 8 * w.batch * w.seq // (at.i if at.sp else 1)
        found[at.stream] -= 2 * (at.s - 1) * numbers / at.s
    if at.sp:  # gradients of what is replicated, once a step
        rows = 4 * (w.hidden if at.l2 else w.hidden // at.s) + 2 * w.hidden // at.s
        found[at.inside] -= 2 * (at.i - 1) * rows / at.i
    return found


# -- volumes -----------------------------------------------------------------------------------
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("order", ORDERS)
def test_equation_1_is_the_ledger(mesh, order):
    for ratio, attention in ((4, "A3"), (4, "A1"), (3, "A3")):
        w = fitting(mesh, mlp_ratio=ratio)
        strategy = tv.ATP(mesh=mesh, order=order, attention=attention)
        assert wire_volume(strategy, w) == per_layer(strategy, w)
        i, s = mesh if order == "column" else mesh[::-1]
        whole = w.batch * w.seq * w.hidden
        by_hand = 2 * whole / (i * s) * (4 * (i - 1) + (4 + 2 * ratio) * (s - 1))
        assert sum(wire_volume(strategy, w).values()) == pytest.approx(by_hand, rel=1e-15)


@pytest.mark.parametrize("mesh", [(4, 2), (2, 4), (2, 2), (8, 1), (1, 8)], ids=str)
@pytest.mark.parametrize(
    "knobs", [{"norm": "L2"}, {"sp": True}, {"sp": True, "norm": "L2"}, {"chunks": 2}], ids=str
)
def test_the_knobs_that_send_more_are_the_ledger_too(mesh, knobs):
    for order in ORDERS:
        strategy, w = tv.ATP(mesh=mesh, order=order, **knobs), fitting(mesh)
        assert wire_volume(strategy, w) == pytest.approx(per_layer(strategy, w), rel=1e-12)


@pytest.mark.parametrize(
    "mesh, d1, d2",
    [
        ((8, 1), 7, 0),
        ((4, 2), 3, 3),
        ((2, 4), 1, 9),
        ((1, 8), 0, 21),
        ((4, 1), 6, 0),
        ((2, 2), 2, 6),
        ((1, 4), 0, 18),
    ],
)
def test_the_table_of_volumes(mesh, d1, d2):
    """In units of B s h, forward and backward; the row order has the axes exchanged."""
    unit = WIDE.batch * WIDE.seq * WIDE.hidden
    for attention in ("A3", "A1"):
        column = wire_volume(tv.ATP(mesh=mesh, attention=attention), WIDE)
        assert column == {"d1": d1 * unit, "d2": d2 * unit}
        row = wire_volume(tv.ATP(mesh=mesh[::-1], order="row", attention=attention), WIDE)
        assert row == {"d1": d2 * unit, "d2": d1 * unit}


@pytest.mark.parametrize("attention, forward, backward", [("A1", 7, 5), ("A3", 6, 6)])
def test_payloads_of_the_phases(attention, forward, backward):
    unit = WIDE.batch * WIDE.seq * WIDE.hidden
    strategy = tv.ATP(mesh=(4, 2), attention=attention)
    assert payloads(strategy, WIDE, "forward") == {"d1": 2 * unit / 2, "d2": forward * unit / 4}
    assert payloads(strategy, WIDE, "backward") == {"d1": 2 * unit / 2, "d2": backward * unit / 4}
    assert payloads(strategy, WIDE) == {"d1": 4 * unit / 2, "d2": 12 * unit / 4}
    with pytest.raises(ValueError, match="phase='sync' is not possible"):
        payloads(strategy, WIDE, "sync")


def test_the_released_norm_makes_it_worse_than_one_axis():
    """L2: 8 B s h at (4, 2), where one axis sends 7 and the formula says 6; A2's own half more is
    not in this package."""
    unit = WIDE.batch * WIDE.seq * WIDE.hidden
    assert sum(wire_volume(tv.ATP(mesh=(4, 2), norm="L2"), WIDE).values()) == 8 * unit


# -- times -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "mesh, order, ring, milliseconds",
    [
        ((8, 1), "column", 17e9, 82.9),
        ((8, 1), "column", 32e9, 44.0),
        ((4, 2), "column", 17e9, 38.4),
        ((4, 2), "column", 32e9, 38.4),
        ((2, 4), "row", 17e9, 71.1),
        ((2, 4), "row", 32e9, 54.4),
        ((4, 2), "row", 17e9, 107.5),
        ((4, 2), "row", 32e9, 107.5),
        ((2, 4), "column", 17e9, 118.4),
        ((2, 4), "column", 32e9, 68.5),
    ],
)
def test_the_box_of_nvlink_pairs(mesh, order, ring, milliseconds):
    """By hand, and with the bandwidths that the cluster itself gives to the axes."""
    strategy = tv.ATP(mesh=mesh, order=order)
    rates = {(8, 1): (ring, inf), (4, 2): (17e9, 211e9), (2, 4): (17e9, ring)}[mesh]
    assert 1e3 * bus_time(strategy, WIDE, rates) == pytest.approx(milliseconds, abs=0.05)
    box = tv.clusters.nvlink_pairs(rings="single" if ring == 17e9 else "multi")
    assert strategy.communication(WIDE, box) == bus_time(strategy, WIDE, rates)
    assert strategy.communication(replace(WIDE, layers=3), box) == 3 * bus_time(
        strategy, WIDE, rates
    )


SHAPES = st.sampled_from([m for m in MESHES if m != (1, 1)])
RATES = st.floats(1e6, 1e12)


@given(SHAPES, st.sampled_from(ORDERS), RATES, RATES, st.sampled_from(["A1", "A3"]))
@settings(max_examples=80, deadline=None)
def test_bus_and_algorithm_form_are_one_equation(mesh, order, b1, b2, attention):
    w, strategy = fitting(mesh), tv.ATP(mesh=mesh, order=order, attention=attention)
    rates = [paper.algorithm_bandwidth(b, n) for b, n in zip((b1, b2), mesh)]
    for phase in paper.PHASES:
        bus = bus_time(strategy, w, (b1, b2), phase)
        assert isclose(bus, paper.algorithm_time(strategy, w, rates, phase), rel_tol=1e-12)
    halves = [bus_time(strategy, w, (b1, b2), phase) for phase in ("forward", "backward")]
    assert isclose(sum(halves), bus_time(strategy, w, (b1, b2)), rel_tol=1e-12)


@given(SHAPES, RATES, RATES)
@settings(max_examples=50, deadline=None)
def test_row_order_is_column_order_with_the_axes_exchanged(mesh, b1, b2):
    w = fitting(mesh)
    row = bus_time(tv.ATP(mesh=mesh, order="row"), w, (b1, b2))
    assert row == pytest.approx(bus_time(tv.ATP(mesh=mesh[::-1]), w, (b2, b1)), rel=1e-12)


@pytest.mark.parametrize("nothing", [0, None, inf, float("nan")])
def test_an_axis_of_one_rank_costs_nothing_whatever_its_bandwidth(nothing):
    for strategy, rates in (
        (tv.ATP(mesh=(8, 1)), (1e9, nothing)),
        (tv.ATP(mesh=(1, 8), order="row"), (nothing, 1e9)),
    ):
        assert bus_time(strategy, WIDE, rates) == megatron_volume(WIDE, 8) * 2 / 1e9
        assert paper.algorithm_time(strategy, WIDE, rates) > 0
    assert bus_time(tv.ATP(mesh=(1, 1)), WIDE, (nothing, nothing)) == 0
    assert paper.algorithm_bandwidth(1e9, 1) == inf


def test_hops():
    """8 (n-1) an axis and layer, and 8 (d2 - 1) for the statistics; half of it forward."""
    strategy, rates = tv.ATP(mesh=(4, 2)), (1e30, 1e30)
    assert bus_time(strategy, WIDE, rates, latencies=(1.0, 100.0)) == pytest.approx(24 + 800)
    assert bus_time(strategy, WIDE, rates, "forward", (1.0, 100.0)) == pytest.approx(12 + 400)
    assert bus_time(
        strategy, WIDE, rates, latencies=(1.0, 100.0), statistics=True
    ) == pytest.approx(24 + 1600)
    row = tv.ATP(mesh=(4, 2), order="row")
    assert bus_time(row, WIDE, rates, latencies=(1.0, 100.0), statistics=True) == pytest.approx(
        48 + 800
    )


def test_five_is_forward_alone():
    unit = WIDE.batch * WIDE.seq * WIDE.hidden * WIDE.itemsize
    strategy = tv.ATP(mesh=(4, 2), attention="A1")
    by_hand = 7 * unit / (4 * 3e9) + 2 * unit / (2 * 2e9)
    assert paper.algorithm_time(strategy, WIDE, (2e9, 3e9), "forward") == pytest.approx(by_hand)


# -- special cases -----------------------------------------------------------------------------
@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_one_axis_is_megatron(n):
    w, cluster = fitting((n, 1)), tv.clusters.nvswitch(8)
    first, last = tv.ATP(mesh=(n, 1)), tv.ATP(mesh=(1, n), order="row")
    for strategy in (first, last):
        assert sum(wire_volume(strategy, w).values()) == megatron_volume(w, n)
        assert strategy.communication(w, cluster) == tv.Megatron(tp=n).communication(w, cluster)
    for strategy in (tv.ATP(mesh=(1, n)), tv.ATP(mesh=(n, 1), order="row")):
        wide = paper.row_parallel_first_volume(w, n)
        assert sum(wire_volume(strategy, w).values()) == pytest.approx(wide)
        assert wide == 3 * megatron_volume(w, n)
    with_sp = tv.ATP(mesh=(n, 1), sp=True).communication(w, cluster)
    assert with_sp == pytest.approx(tv.Megatron(tp=n, sp=True).communication(w, cluster))
    assert with_sp == pytest.approx(1.25 * first.communication(w, cluster))


def test_megatron_by_its_ledger():
    w, cluster = replace(fitting((4, 1)), layers=3), tv.clusters.nvswitch(8)
    for sp in (False, True):
        strategy = tv.Megatron(tp=4, sp=sp)
        one, two = (strategy.ledger(replace(w, layers=k)).total()[2] for k in (1, 2))
        more = 2 * 3 * 6 * w.hidden * 4 / 4 if sp else 0  # gradients of what is replicated
        assert strategy.communication(w, cluster) == pytest.approx(
            3 * (two - one - more) / cluster.bandwidth({"tp": 4}, "tp")
        )
    assert tv.Megatron(tp=1).communication(w, cluster) == 0.0


@pytest.mark.parametrize("q", [2, 3, 4])
def test_square(q):
    w, unit = fitting((q, q)), 2 * q * q * q * q * 2 * q * q
    assert unit == pytest.approx(w.batch * w.seq * w.hidden * q * q)
    for order in ORDERS:
        volume = sum(wire_volume(tv.ATP(mesh=(q, q), order=order), w).values())
        assert volume == pytest.approx(paper.square_volume(w, q))
    assert paper.square_volume(w, q) == pytest.approx(32 * unit / q**2 * (q - 1) / q**2)


@pytest.mark.parametrize("hidden, summa", [(2048, 5.6), (4096, 7.3), (12288, 14.1)])
def test_against_summa(hidden, summa):
    w = replace(WIDE, hidden=hidden, heads=16)
    unit = w.batch * w.seq * hidden
    assert paper.summa_volume(w, 4) / unit == pytest.approx(summa, abs=0.05)
    assert paper.square_volume(w, 4) / unit == 6.0
    assert megatron_volume(w, 16) / unit == 7.5


@pytest.mark.parametrize("hidden, wins", [(2500, False), (2510, True)])
def test_atp_sends_less_than_summa_where_tokens_are_few(hidden, wins):
    """11 B s < 36 h: at 8192 tokens from h = 2503 on."""
    w = replace(WIDE, hidden=hidden, heads=1)
    assert (paper.square_volume(w, 4) < paper.summa_volume(w, 4)) is wins


# -- the best mesh -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    "n, mesh, volume, one, ratio",
    [
        (4, (4, 1), 6.000, 6.000, 1.000),
        (8, (4, 2), 6.000, 7.000, 0.857),
        (16, (8, 2), 5.000, 7.500, 0.667),
        (32, (8, 4), 4.000, 7.750, 0.516),
        (128, (16, 8), 2.250, 7.938, 0.283),
        (256, (32, 8), 1.625, 7.969, 0.204),
        (1024, (64, 16), 0.844, 7.992, 0.106),
    ],
)
def test_the_best_mesh_of_equal_bandwidths(n, mesh, volume, one, ratio):
    w = tv.GPT(layers=1, hidden=2048, heads=1024, seq=1, batch=1)
    found, seconds = paper.best(tv.ATP.meshes(w, n), w, (1e9, 1e9))
    assert found.mesh == mesh and found.order == "column"
    assert seconds * 1e9 / w.itemsize / w.hidden == pytest.approx(volume, abs=5e-4)
    megatron = megatron_volume(w, n) / w.hidden
    assert megatron == pytest.approx(one, abs=5.1e-4)
    assert volume / megatron == pytest.approx(ratio, abs=5e-4)


def test_equal_times_go_to_the_one_nearest_1d():
    w = tv.GPT(layers=1, hidden=12, heads=6, seq=2, batch=1)
    tie = [tv.ATP(mesh=(3, 2)), tv.ATP(mesh=(6, 1))]
    assert len({bus_time(s, w, (1e9, 1e9)) for s in tie}) == 1
    assert paper.best(tie, w, (1e9, 1e9))[0] == tie[1]
    assert [s.copies for s in tie] == [2, 1] and tv.Megatron(tp=4).copies == 1
    with pytest.raises(ValueError, match="no strategies to choose from"):
        paper.best([], w, (1e9, 1e9))


@given(
    st.sampled_from([64, 256, 1024]),
    RATES,
    RATES,
    st.sampled_from(ORDERS),
    st.sampled_from([2, 4, 8]),
)
@settings(max_examples=60, deadline=None)
def test_the_continuous_optimum(n, b1, b2, order, ratio):
    """Its sizes multiply to n, the equation gives its time there, and no mesh beats it."""
    w = tv.GPT(layers=1, hidden=2048, heads=1024, seq=1, batch=1, mlp_ratio=ratio)
    d1, d2, seconds = paper.optimum(w, n, (b1, b2), order)
    assert d1 * d2 == pytest.approx(n)
    i, s, first, second = (d1, d2, b1, b2) if order == "column" else (d2, d1, b2, b1)
    unit = 8 * w.hidden * w.itemsize / n
    there = unit * ((i - 1) / first + (1 + ratio / 2) * (s - 1) / second)
    assert there == pytest.approx(seconds, rel=1e-9, abs=1e-9 * unit / min(b1, b2))
    meshes = [m for m in tv.ATP.meshes(w, n) if m.order == order]
    _, least = paper.best(meshes, w, (b1, b2))
    assert seconds <= least * (1 + 1e-9) + 1e-12 * unit / min(b1, b2)


def test_time_falls_as_one_over_the_root_of_n():
    w = tv.GPT(layers=1, hidden=2048, heads=1024, seq=1, batch=1)
    times = [paper.optimum(w, n, (1e9, 1e9))[2] for n in (10**6, 4 * 10**6)]
    assert times[1] / times[0] == pytest.approx(0.5, abs=2e-3)


def test_schemes_without_a_formula_say_so():
    with pytest.raises(NotImplementedError, match="DataParallel has no formula of its comm"):
        tv.DataParallel(dp=4).communication(WIDE, tv.clusters.nvswitch())
    inner = tv.ATP(mesh=(2, 2))  # of a mesh that another strategy is around: neighbours stay so
    mesh = tv.Mesh({"dp": 2, "d1": 2, "d2": 2})
    box = tv.clusters.nvlink_pairs()
    assert inner.communication(WIDE, box, mesh) == bus_time(inner, WIDE, (17e9, 211e9))
