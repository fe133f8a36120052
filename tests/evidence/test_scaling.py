"""Scaling: the table of section 2.5, the laws that its caveats state, both fabrics."""

from dataclasses import replace

import pytest

import tpviz as tv
from tpviz.evidence import atp
from tpviz.evidence.atp.scaled import layer_flops, one_nic

W = tv.GPT(layers=2, hidden=12288, heads=96, seq=2048, batch=4, vocab=51200, dtype="bfloat16")


@pytest.fixture(scope="module")
def found():
    return atp.scaling(W, sizes=(4, 8, 16, 32, 64, 128, 256, 512, 1024))


@pytest.mark.parametrize(
    "ranks, mesh, sent, one, ratio",
    [
        (4, (4, 1), 6.0, 6.0, 1.0),
        (8, (4, 2), 6.0, 7.0, 0.857),
        (16, (8, 2), 5.0, 7.5, 0.667),
        (32, (8, 4), 4.0, 7.75, 0.516),
        (128, (16, 8), 2.25, 7.938, 0.283),
        (256, (32, 8), 1.625, 7.969, 0.204),
        (1024, (64, 16), 0.844, 7.992, 0.106),
    ],
)
def test_table_of_section_2_5(found, ranks, mesh, sent, one, ratio):
    point = next(p for p in found.points["constant"] if p.ranks == ranks)
    assert point.strategy.mesh == mesh and point.strategy.order == "column"
    assert point.volume == pytest.approx(sent, abs=5e-4)
    assert point.volume_1d == pytest.approx(one, abs=5e-4)
    assert point.volume / point.volume_1d == pytest.approx(ratio, abs=6e-4)
    assert point.seconds == pytest.approx(point.volume * 4 * 2048 * 12288 * 2 / 100e9)


def test_absolute_time_falls_as_the_root_while_1d_stays(found):
    points = {p.ranks: p for p in found.points["constant"]}
    assert points[256].seconds / points[1024].seconds == pytest.approx(2, rel=0.05)
    assert points[1024].seconds_1d == pytest.approx(points[64].seconds_1d, rel=0.02)


def test_fractions_are_those_of_the_caveats(found):
    """Communication over compute: strong as N^1/2 (1D: N), weak constant (1D: N^1/2)."""

    def over_compute(ranks, weak, one):
        share = next(p for p in found.points["constant"] if p.ranks == ranks).fraction(weak, one)
        return share / (1 - share)

    for weak, one, growth in (
        (False, False, 2),
        (False, True, 4),
        (True, False, 1),
        (True, True, 2),
    ):
        grown = over_compute(1024, weak, one) / over_compute(256, weak, one)
        assert grown == pytest.approx(growth, rel=0.07)


def test_compute_is_that_of_the_step(found):
    per_layer = replace(W, layers=2).step_flops - replace(W, layers=1).step_flops
    assert layer_flops(W) == per_layer == 72 * 4 * 2048 * 12288**2 + 12 * 4 * 2048**2 * 12288
    point = found.points["constant"][1]
    assert point.ranks == 8 and point.compute == pytest.approx(per_layer / 8 / 250e12)
    assert point.factor == pytest.approx(2**0.5)
    assert point.compute_weak == pytest.approx(layer_flops(W, 2**0.5) / 8 / 250e12)


def test_a_shared_nic_shrinks_the_gain(found):
    for constant, shared in zip(found.points["constant"], found.points["shared"]):
        if constant.ranks > 16:  # in a node nothing is shared; of two, half of a ring is in one
            assert shared.seconds_1d / shared.seconds < constant.seconds_1d / constant.seconds
    last = found.points["shared"][-1]
    cluster = one_nic(1024)
    for axis, size in last.strategy.axes.items():
        assert size > 1 and cluster.bandwidth(last.strategy.axes, axis) <= 50e9


def test_all_rings_on_one_link_gain_nothing():
    """(d1 - 1) d2 + 3 (d2 - 1) is least for d2 = 1; by rows, 3 (d1 - 1) d2 + d2 - 1 for d1 = 1."""

    class Shared:
        caption = "one link"

        def bandwidth(self, mesh, axis):
            return 100e9 / (mesh["d2"] if axis == "d1" else 1)

    for point in atp.scaling(W, (8, 64), shared=lambda n: Shared()).points["shared"]:
        assert point.strategy.mesh == (point.ranks, 1)
        assert point.seconds == point.seconds_1d


def test_words(found):
    words = found.describe()
    for caveat in ("(a) ", "(b) ", "(c) ", "not reproduced", "Modelled"):
        assert caveat in words
    assert found.badges == ("modelled",) and "modelled>" in repr(found)
    table = found.to_table()
    assert len(table) == 1 + 2 * 9 and table[2][:6] == [
        "constant",
        "8",
        "(4, 2) column",
        "6.000",
        "7.000",
        "0.857",
    ]
    assert "0.857" in found._repr_html_()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"sizes": ()}, "no sizes"),
        ({"sizes": 8}, "sizes=8: give numbers"),
        ({"sizes": (1,)}, "size=1 is too small"),
        ({"sizes": (12,)}, "12 ranks do not fill nodes of 8"),
        ({"bandwidths": 1e9}, "must be two rates"),
        ({"bandwidths": (1e9, 0)}, "bandwidth of d2=0 must be a number above 0"),
        ({"flops": -1}, "flops=-1 must be a number above 0"),
        ({"shared": 8}, "shared=8: give a function"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        atp.scaling(W, **arguments)


def test_an_unknown_fabric_is_refused(found):
    with pytest.raises(ValueError, match="fabric='torus' is not possible"):
        found.figure(fabric="torus")
