"""AxoNN's communication model: by hand, by the ledger, by closed forms, by the authors' script; its
bandwidths, its ranking, the models and FLOPs of its papers."""

from dataclasses import replace
from itertools import product

import pytest
from grids import AXES, SMALL, axonn, flat, grids
from hypothesis import given, settings
from hypothesis import strategies as st

import tpviz as tv
from tpviz.schemes.axonn import model_released, models, paper, rates
from tpviz.schemes.axonn.paper import FC, volume

GRIDS = grids(8)


# -- volumes ---------------------------------------------------------------------------------------
def mlp_bytes(x, y, z, data):
    """Bytes that a rank of an MLP 16 -> 64 -> 16 sends for 32 tokens in float64, weights kept."""
    first, second = (volume(fc, 32 / data, x, y, z, data) for fc in (FC(16, 64), FC(64, 16, True)))
    return {
        "gather": 8 * (first.gather + second.gather),
        "scatter": 8 * (first.scatter + second.scatter),
        "y": 8 * (first.forward + second.backward),
        "x": 8 * (first.backward + second.forward),
        "data": 8 * (first.data + second.data),
    }


@pytest.mark.parametrize(
    "grid, expected",
    [
        ((2, 2, 2, 1), {"gather": 2048, "scatter": 2048, "y": 8192, "x": 2048, "data": 0}),
        ((4, 1, 1, 1), {"gather": 0, "scatter": 0, "y": 0, "x": 12288, "data": 0}),
        ((1, 4, 1, 1), {"gather": 0, "scatter": 0, "y": 49152, "x": 0, "data": 0}),
        ((1, 1, 4, 1), {"gather": 12288, "scatter": 12288, "y": 0, "x": 0, "data": 0}),
        ((1, 1, 1, 4), {"gather": 0, "scatter": 0, "y": 0, "x": 0, "data": 24576}),
        ((2, 1, 2, 2), {"gather": 4096, "scatter": 4096, "y": 0, "x": 2048, "data": 4096}),
    ],
)
def test_an_mlp_by_hand(grid, expected):
    """The first four were counted on an independent implementation of eight processes."""
    assert mlp_bytes(*grid) == expected


def test_a_layer_of_unlike_sizes_by_hand():
    """k = 6, n = 20, m = 12 on x = 2, y = 3, z = 4, data = 5."""
    assert volume(FC(6, 20), 12, 2, 3, 4, 5) == pytest.approx(
        (3 * 5, 3 * 5, 4 / 3 * 12 * 20 / 8, 12 * 6 / 12, 8 / 5 * 5)
    )
    assert volume(FC(6, 20, True), 12, 2, 3, 4, 5) == pytest.approx(
        (3 * 5, 3 * 5, 12 * 20 / 12, 4 / 3 * 12 * 6 / 8, 8 / 5 * 5)
    )


@pytest.mark.parametrize("recompute, keep", list(product((False, True), repeat=2)))
@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("grid", [(2, 2, 2, 1), (4, 2, 1, 1), (1, 2, 2, 2), (2, 1, 2, 2)])
def test_the_ledger_of_a_block(grid, recompute, keep, accumulation):
    """Beside the layers the program sends statistics of LayerNorm over y, and at the end the
    gradients of what is not in pieces."""
    s = axonn(grid, recompute=recompute, keep=keep, accumulation=accumulation)
    x, y, _, data = grid
    w, expected = replace(SMALL, dtype="float64"), paper.elements(s, SMALL)
    (one, one_end), (two, two_end) = (sent(s, replace(w, layers=k)) for k in (1, 2))
    rows = SMALL.batch * SMALL.seq / data / s.z
    statistics = 2 * (2 + recompute) * 2 * rows * 2 * (y - 1) / y
    whole = (3 / x + 1 / y + 4 / x + 1 / y + 4 / y) * SMALL.hidden  # biases, norms
    for axis in ("x", "y", "z"):
        more = statistics if axis == "y" else 0
        assert two[axis] - one[axis] - more == pytest.approx(expected[axis], rel=1e-12)
    assert two_end["data"] - one_end["data"] - 2 * (data - 1) / data * whole == pytest.approx(
        expected["data"], rel=1e-12
    )


def sent(strategy, w):
    """({axis: elements before the end of the step}, {axis: elements at its end})."""
    before, end = dict.fromkeys(AXES, 0.0), dict.fromkeys(AXES, 0.0)
    for row in strategy.ledger(w):
        where = end if row.phase == "sync" else before
        where[row.axis.removesuffix("_ahead")] += row.wire_bytes / w.itemsize
    return before, end


SIZES = st.sampled_from([1, 2, 3, 4, 8])


@given(
    st.tuples(SIZES, SIZES, SIZES, SIZES),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 4]),
    st.sampled_from([1, 2, 4]),
)
@settings(max_examples=80, deadline=None)
def test_closed_forms_are_the_sum_over_layers(grid, recompute, keep, accumulation, ratio):
    w = replace(SMALL, mlp_ratio=ratio)
    s = axonn(grid, recompute=recompute, keep=keep, accumulation=accumulation)
    assert paper.closed_forms(s, w) == pytest.approx(paper.elements(s, w), rel=1e-12)


@pytest.mark.parametrize(
    "recompute, keep, of_y, of_x, of_z",
    [
        (False, True, 12, 4, 2),
        (False, False, 12, 4, 3),
        (True, True, 19, 6, 3),
        (True, False, 19, 6, 4),
    ],
)
def test_a_gpt_block_by_hand(recompute, keep, of_y, of_x, of_z):
    """7R + 5, 2R + 2 and a, on (2, 2, 2, 2): m h = 4096, h^2 = 1024."""
    s = axonn((2, 2, 2, 2), recompute=recompute, keep=keep)
    assert paper.elements(s, SMALL) == {
        "y": of_y * 4096 / 4,
        "x": of_x * 4096 / 4,
        "z": of_z * 1536,
        "data": 1536,
    }


# -- times -----------------------------------------------------------------------------------------
def test_seconds_by_hand():
    """(2, 2, 2, 2), both layers, elements of 4 bytes, one bandwidth an axis; gradients of 8."""
    asked = {}

    def rate(inside, size):
        asked[inside, size] = True
        return {1: 1e3, 2: 2e3, 4: 4e3, 8: 8e3}[inside]

    s = axonn((2, 2, 2, 2))
    assert paper.seconds_by_axis(s, SMALL, rate) == {
        "x": 2 * 4096 * 4 / 1e3,
        "y": 2 * 12288 * 4 / 2e3,
        "z": 2 * 3072 * 4 / 4e3,
        "data": 2 * 1536 * 4 / 8e3,
    }
    assert paper.seconds_by_axis(s, SMALL, rate, gradient_bytes=8)["data"] == 2 * 1536 * 8 / 8e3
    other = paper.seconds_by_axis(replace(s, order="yxz"), SMALL, rate)
    assert (other["x"], other["y"]) == (2 * 4096 * 4 / 2e3, 2 * 12288 * 4 / 1e3)
    assert asked.keys() == {(1, 2), (2, 2), (4, 2), (8, 2)}


def test_an_axis_of_one_rank_asks_for_no_bandwidth():
    def rate(inside, size):
        assert size > 1
        return 1e9

    assert paper.seconds(axonn((1, 1, 1, 1)), SMALL, rate) == 0
    assert paper.seconds(axonn((1, 1, 4, 1)), SMALL, rate) > 0


@given(st.sampled_from(GRIDS), st.booleans(), st.booleans())
@settings(max_examples=40, deadline=None)
def test_more_work_takes_longer(grid, recompute, keep):
    s = axonn(grid, recompute=recompute, keep=keep)
    base = paper.seconds(s, SMALL, flat)
    plane, weights = s.x * s.y > 1, s.z > 1
    assert (paper.seconds(s, replace(SMALL, batch=64), flat) > base) is plane
    assert (paper.seconds(replace(s, accumulation=2), SMALL, flat) > base) is weights
    assert (paper.seconds(s, SMALL, flat, gradient_bytes=8) > base) is (s.data > 1)
    if keep:
        assert (paper.seconds(replace(s, keep=False), SMALL, flat) > base) is weights
    if not recompute:
        more = paper.seconds(replace(s, recompute=True), SMALL, flat)
        assert (more > base) is (plane or weights)
    assert paper.seconds(s, replace(SMALL, layers=6), flat) == pytest.approx(3 * base)
    assert paper.seconds(s, SMALL, lambda inside, size: 5e8) == pytest.approx(2 * base)


@pytest.mark.parametrize(
    "ours, theirs, world",
    [
        (tv.clusters.perlmutter(16), rates.PERLMUTTER, 64),
        (tv.clusters.frontier(8), rates.FRONTIER, 64),
    ],
    ids=["Perlmutter", "Frontier"],
)
def test_our_clusters_have_the_bandwidths_of_the_model(ours, theirs, world):
    mine, sizes = rates.of_cluster(ours, world), [2**k for k in range(7)]
    keys = [(inside, size) for inside, size in product(sizes, sizes[1:]) if inside * size <= world]
    assert len(keys) == 21
    for key in keys:
        assert mine(*key) == pytest.approx(theirs(*key), rel=1e-12), key
    for grid in [(4, 2, 2, 4), (1, 2, 8, 4), (1, 1, 64, 1), (2, 1, 2, 16)]:
        s = axonn(grid)
        by_theirs = paper.seconds(s, SMALL, theirs)
        assert s.communication(SMALL, ours) == pytest.approx(by_theirs, rel=1e-12)


def test_bandwidths_by_hand():
    p, f = rates.PERLMUTTER, rates.FRONTIER
    assert [p(inside, 16) / 1e9 for inside in (1, 2, 4, 16)] == [80, 40, 20, 20]
    assert [f(inside, 16) / 1e9 for inside in (1, 2, 4, 8, 64)] == [40, 20, 10, 5, 5]
    assert p(2, 2) == 76e9 and p(1, 4) == 225e9 and f(2, 4) == 72e9 and f(1, 4) == 52e9
    assert p(4, 2) == 20e9 and p(2, 4) == 40e9
    with pytest.raises(
        ValueError,
        match=r"groups of 3 ranks 1 apart .* use \(inside, size\) = "
        r"\(1, 2\) or \(1, 4\) or \(2, 2\)",
    ):
        p(1, 3)
    finer = rates.of_cluster(tv.clusters.perlmutter(3), 12)
    assert (p(2, 3), finer(2, 3)) == (40e9, 20e9)  # 0 2 | 4: one member in the second node


def test_the_mesh_around_it_decides_where_axes_lie():
    cluster, s = tv.clusters.perlmutter(4), axonn((2, 1, 2, 1))
    inner = tv.Mesh({"data": 1, "z": 2, "y": 1, "x": 2, "other": 4})
    at = paper.seconds_by_axis(s, SMALL, rates.PERLMUTTER, inner.axes)
    assert s.communication(SMALL, cluster, inner) == sum(at.values())
    assert at["x"] == 2 * 4 * paper.elements(s, SMALL)["x"] / 20e9
    assert s.communication(SMALL, cluster) < s.communication(SMALL, cluster, inner)


def test_special_cases():
    """x alone is Megatron; y alone sends three times as much."""
    box = tv.clusters.nvswitch()
    alone = axonn((8, 1, 1, 1)).communication(SMALL, box)
    assert alone == pytest.approx(tv.Megatron(tp=8).communication(SMALL, box), rel=1e-12)
    assert axonn((1, 8, 1, 1)).communication(SMALL, box) == pytest.approx(3 * alone, rel=1e-12)
    atp = tv.ATP(mesh=(4, 2), attention="A1").communication(SMALL, box)
    assert axonn((4, 2, 1, 1)).communication(SMALL, box) == pytest.approx(atp, rel=1e-12)


# -- the authors' script ---------------------------------------------------------------------------
PAPER = models.paper_models(batch=1024)["20B"]
GOLDEN = {
    ("Perlmutter", False): [
        ((1, 1, 32, 1), 1.3351),
        ((1, 1, 16, 2), 1.5217),
        ((1, 2, 16, 1), 10.1341),
        ((1, 4, 8, 1), 10.1659),
    ],
    ("Perlmutter", True): [
        ((1, 1, 32, 1), 1.3351),
        ((1, 1, 16, 2), 1.5217),
        ((1, 4, 8, 1), 5.6859),
        ((1, 2, 16, 1), 5.7130),
    ],
    ("Frontier", False): [
        ((1, 1, 32, 1), 2.6701),
        ((1, 1, 16, 2), 3.5027),
        ((1, 2, 16, 1), 7.7933),
        ((1, 2, 8, 2), 8.5398),
    ],
    ("Frontier", True): [
        ((1, 1, 32, 1), 2.6701),
        ((1, 1, 16, 2), 3.5027),
        ((1, 2, 16, 1), 5.1886),
        ((1, 2, 8, 2), 5.9351),
    ],
}


@pytest.mark.parametrize("name, corrected", list(GOLDEN))
def test_the_script_to_every_printed_digit(name, corrected):
    """20B on 32 GPUs: what the authors' script gave when it was run for our references, as it is
    and with its MLP put right."""
    theirs = {"Perlmutter": rates.PERLMUTTER, "Frontier": rates.FRONTIER}[name]
    found = model_released.script_ranking(
        PAPER, 32, theirs, models.LEAST_RANKS["20B"], corrected=corrected
    )
    assert len(found) == 36
    assert [(tuple(g), round(s, 4)) for g, s in found[:4]] == GOLDEN[name, corrected]


@pytest.mark.parametrize("grid, seconds", [((1, 1, 1024, 1), 5.31), ((1, 1, 64, 16), 5.65)])
def test_the_script_for_80b(grid, seconds):
    w = models.paper_models()["80B"]
    assert model_released.script_seconds(grid, w, rates.PERLMUTTER) == pytest.approx(
        seconds, abs=0.005
    )


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("theirs", [rates.PERLMUTTER, rates.FRONTIER], ids=lambda r: r.name)
def test_the_slips_are_all_that_differs(theirs, accumulation):
    """Put right, the script is our model with recomputation, gradients of 4 bytes and the order
    yxz, its unit apart."""
    grids = list(model_released.script_grids(PAPER, 32))
    assert len(grids) == 56
    for grid in grids:
        c, r, d, data = grid
        ours = paper.seconds(
            axonn((r, c, d, data), order="yxz", recompute=True, accumulation=accumulation),
            PAPER,
            theirs,
            gradient_bytes=4,
        )
        right, slipped = (
            model_released.script_seconds(grid, PAPER, theirs, accumulation, fixed)
            for fixed in (True, False)
        )
        assert right * 1024**3 / 1e9 == pytest.approx(ours, rel=1e-12)
        assert (slipped == pytest.approx(right, rel=1e-9)) is (c * r == 1)
