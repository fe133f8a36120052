"""Calibration: the fit on made-up times, the whole way on real ranks, refusals before any starts.

What is fast here is no matter: measured times are never compared.
"""

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import replace
from datetime import date

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tpviz as tv
from tpviz.cluster import Cluster, Device, Level
from tpviz.cluster.collectives import cost
from tpviz.cluster.fit import fit_kernels, fit_line
from tpviz.cluster.profiles import fitted
from tpviz.cluster.routes import family
from tpviz.verbs.calibrate import calibration_of, device_of_steps
from tpviz.verbs.timing import LARGE, MODELS, SMALL
from tpviz.views.figures.chart_svg import LEGIBLE
from tpviz.views.figures.svg import image

calibrate_module = sys.modules[tv.calibrate.__module__]
SIZES = (2**12, 2**16, 2**20, 2**24)


# -- the fit ----
@given(st.floats(1e-6, 1e-2), st.floats(1e8, 1e12), st.integers(2, 8))
@settings(max_examples=60, deadline=None)
def test_the_fit_finds_the_line_that_made_the_times(alpha, bandwidth, ranks):
    sizes = [alpha * bandwidth * scale for scale in (0.01, 0.3, 1, 3, 100)]
    hops, volume = zip(*(cost("ring", "all_reduce", size, ranks) for size in sizes))
    found = fit_line(hops, volume, np.multiply(hops, alpha) + np.divide(volume, bandwidth))
    assert found == pytest.approx((alpha, bandwidth), rel=1e-6)


@pytest.mark.parametrize("factor", [0.5, 3, 10])
@pytest.mark.parametrize("which", range(8))
def test_one_outlier_does_not_move_the_line(which, factor):
    hops, volume = np.full(8, 6), np.geomspace(1e4, 1e8, 8)
    times = 6 * 1e-4 + volume / 1e9
    times[which] *= factor
    alpha, bandwidth = fit_line(hops, volume, times)
    near = 0.01 if factor > 1 else 0.08  # of relative errors, one of a short time weighs more
    assert alpha == pytest.approx(1e-4, rel=near) and bandwidth == pytest.approx(1e9, rel=near)


@pytest.mark.parametrize("times", [[4e-3, 3e-3, 2e-3, 1e-3], [1e-3] * 4, [1e-5, 1e-3, 2e-2, 9e-1]])
def test_times_that_make_no_line_give_numbers_that_can_be(times):
    alpha, bandwidth = fit_line([2] * 4, [1e4, 1e5, 1e6, 1e7], times)
    assert alpha >= 0 and 0 < bandwidth < float("inf")


def test_a_bandwidth_that_cannot_be_told_is_the_lowest_that_would_not_show():
    alpha, bandwidth = fit_line([2] * 3, [1e4, 1e5, 1e6], [1e-3] * 3)
    assert alpha == pytest.approx(0.5e-3, rel=0.05)
    assert bandwidth == pytest.approx(1e6 / (0.05 * 1e-3))


@pytest.mark.parametrize("times", [[1e-3], [1e-3, 0.0], [1e-3, -1.0], [1e-3, float("nan")]])
def test_times_that_cannot_be(times):
    with pytest.raises(ValueError, match="two or more times above 0"):
        fit_line([2] * len(times), [1e4] * len(times), times)


# -- from stamps to a cluster, with stamps made by a formula ----
TRUE = {(1, 2): (1e-4, 2e9), (2, 2): (2e-4, 1e9), (1, 4): (3e-4, 5e8), "message": (5e-5, 4e9)}
FAR = {"between hosts": (4e-4, 2e8), "between hosts, one pair": (3e-4, 3e8)}


def made_up(hosts=("a",) * 4, repeats=3, compared=False, slow=1.0):
    """What four ranks would have measured on such links: late starts, one repeat disturbed. On two
    hosts, whose clocks may have been compared, and the second may be slower."""
    pairs = calibrate_module._pairs(4, hosts.count("a"))
    ranks = [
        {
            "points": {},
            "gemm": {"float32": 1e9 * (r + 1) / (slow if r > 1 else 1)},
            "copy": (2e9 + r) / (slow if r > 1 else 1),
            "to_host": 1e9 + r,
            "host": [hosts[r], f"clock of {hosts[r]}"],
            "memory": 4e9,
            "device": "core",
            "words": "2 cores, gloo",
            "badge": "this machine, gloo",
        }
        for r in range(4)
    ]
    for r, rank in enumerate(ranks):
        moment = {"time": 0.0, "ahead": -1000.0 * r, "error": 1e-4}
        rank["offset"] = {"to": ranks[0]["host"][1], "moments": [moment]} if compared and r else {}
    kinds = TRUE | {kind: FAR[kind] for kind in FAR if kind in pairs}
    for kind, (alpha, bandwidth) in kinds.items():
        names = ("send",) if kind in pairs else ("all_reduce", "all_gather", "reduce_scatter")
        groups = pairs.get(kind) or family(range(0, kind[0] * kind[1], kind[0]), 4)
        for name in names:
            for size in SIZES:
                hops, volume = cost("ring", name, size, len(groups[0]))
                for group in groups:
                    for place, rank in enumerate(group):
                        stamps = ranks[rank]["points"].setdefault((kind, name, size), [])
                        clock = -1000.0 * (len(set(hosts)) > 1) * rank
                        for i in range(repeats):
                            last = 10.0 * i + 0.01 * (len(group) - 1)
                            took = (hops * alpha + volume / bandwidth) * (9 if i == 2 else 1)
                            start = 10.0 * i + 0.01 * place
                            stamps.append([clock + start, clock + last + took])
    for rank in ranks:  # who is in no pair rests
        resting = dict.fromkeys(ranks[0]["points"], [[0.0, 1e-6]] * repeats)
        rank["points"] = resting | rank["points"]
    return ranks


@pytest.mark.parametrize("hosts, compared", [("aaaa", False), ("aabb", False), ("aabb", True)])
def test_the_cluster_is_the_one_that_made_the_times(hosts, compared):
    found = calibration_of(made_up(hosts, compared=compared))
    cluster = found.cluster
    for axes in ({"dp": 2, "tp": 2}, {"tp": 4}):
        mesh = tv.Mesh(axes)
        for axis, size in axes.items():
            alpha, bandwidth = TRUE[4 // size if axis == "dp" else 1, size]
            link = cluster.axis_link(mesh, axis)
            assert link.latency == pytest.approx(alpha, rel=1e-5)
            assert link.bandwidth == pytest.approx(bandwidth, rel=1e-5)
    assert cluster.link((0, 1), 4, shift=1).latency == pytest.approx(5e-5)
    one = hosts == "aaaa"
    assert cluster.device.flops == {"float32": 2.5e9 if one else 1.5e9}
    assert cluster.device.memory_bandwidth == 2e9 + (1.5 if one else 0.5)
    assert (cluster.hosts, found.hosts.keys()) == ((1, set()) if one else (2, {"a", "b"}))
    words = "this machine (2 cores, gloo)" if one else "2 hosts (a, b; each 2 cores, gloo)"
    assert cluster.name == words and cluster.levels[0].name == "gloo"
    assert str(date.today()) in cluster.source and ("on a, b" in cluster.source) == (not one)
    assert found.fits[1, 4] == pytest.approx(TRUE[1, 4], rel=1e-5)
    assert all(abs(point["residual"]) < 1e-5 for point in found.points)
    assert tv.Cluster.from_json(cluster.to_json()) == cluster


def test_links_between_hosts_are_a_level_that_pairs_of_ranks_share():
    cluster = calibration_of(made_up("aabb", compared=True)).cluster
    within, between = cluster.levels
    assert [level.units for level in cluster.levels] == [2, 2]
    assert (within.latency, within.p2p) == pytest.approx((5e-5, 4e9), rel=1e-4)
    assert (between.latency, between.p2p) == pytest.approx((3e-4, 3e8), rel=1e-4)
    assert between.group == pytest.approx(2 * 2e8, rel=1e-4)  # of both pairs at once
    assert cluster.link((0, 2), 4, shift=2).bandwidth == pytest.approx(2e8, rel=1e-4)
    assert len(calibration_of(made_up("abcd")).cluster.levels) == 1, "no links within hosts"
    (far,) = calibration_of(made_up("abcd")).cluster.levels
    assert far.units == 4


def test_the_slowest_host_decides_and_each_is_told():
    found = calibration_of(made_up("aabb", slow=10.0))
    assert found.cluster.device.flops == {"float32": pytest.approx(3.5e8)}
    assert "a, 2 ranks: GEMMs float32 1.5 GFLOP/s" in found.describe()
    assert "b, 2 ranks: GEMMs float32 350 MFLOP/s" in found.describe()


def test_groups_within_a_host_are_preferred_where_links_between_hosts_are_slow():
    cluster = calibration_of(made_up("aabb")).cluster
    w, plan = tv.GPT(batch=8), tv.Megatron(tp=2) * tv.DataParallel(dp=2)
    for verb in (tv.predict, tv.simulate):
        inside = verb(plan, w, cluster).step_time
        assert inside < verb(plan.with_order("dp-tp"), w, cluster).step_time
    best = tv.search(w, cluster, [tv.Megatron, tv.DataParallel]).best
    assert tv.simulate(best, w, cluster).step_time <= inside


def test_hosts_of_unequally_many_ranks_are_refused():
    with pytest.raises(ValueError, match=r"3 on a, 2 on b: .* use world_size=4 or 6"):
        calibrate_module._per_host([*"aaabb"])


def test_the_slowest_group_counts():
    ranks = made_up()
    for rank in (2, 3):
        for stamps in ranks[rank]["points"].values():
            stamps[:] = [[start, end + 1.0] for start, end in stamps]
    before, after = calibration_of(made_up()), calibration_of(ranks)
    for a, b in zip(before.points, after.points):
        assert b["seconds"] == pytest.approx(a["seconds"] + 1.0)


def test_a_residual_is_measured_over_fitted():
    ranks = made_up()
    for rank in ranks:
        key = (1, 4), "all_reduce", SIZES[1]
        rank["points"][key] = [[s, s + 3 * (e - s)] for s, e in rank["points"][key]]
    found = calibration_of(ranks)
    assert found.worst["kind"] == (1, 4) and found.worst["bytes"] == SIZES[1]
    assert found.residual[1, 4][SIZES[1]] == found.worst["residual"] > 0.5
    assert abs(found.residual[1, 2][SIZES[1]]) < 1e-5
    row = next(
        row
        for row in found.to_table()
        if row[0] == "groups of 4, neighbours" and row[1] == "all-reduce" and row[2] == "64 KiB"
    )
    assert row[-1] == f"{100 * found.worst['residual']:+.1f} %"
    assert f"{100 * found.worst['residual']:+.0f} %" in found.describe()


# -- pictures and words ----
@pytest.mark.parametrize("theme", ["light", "dark", "auto"])
def test_the_picture_has_every_point_every_panel_and_the_badge(theme):
    found = calibration_of(made_up())
    tree = ElementTree.fromstring(found.to_svg(theme=theme))
    words = [node.text for node in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert "measured: this machine, gloo" in words
    assert {
        "groups of 2, neighbours",
        "groups of 2, 2 apart",
        "groups of 4, neighbours",
        "messages between neighbours",
    } <= set(words)
    traces = [node for node in tree.iter() if node.get("class") == "tpv-trace"]
    measured = Counter(g.get("data-name") for g in traces for node in g if node.get("transform"))
    collectives = dict.fromkeys(("all-reduce", "all-gather", "reduce-scatter"), 3 * len(SIZES))
    assert measured == {**collectives, "message": len(SIZES)}
    lines = [node.get("d").count("L") for node in tree.iter() if node.tag.endswith("path")]
    assert lines.count(24) == 2 * 3 + 1  # drawn bent, as they are on logarithmic axes


def test_what_it_says_of_itself():
    found = calibration_of(made_up())
    assert repr(found) == (
        "<Calibration of 4 ranks, 3 kinds of groups, 4 sizes: measured: this machine, gloo>"
    )
    assert found._repr_html_() == image(found.to_svg(), found.describe(), LEGIBLE)
    assert found.to_table()[0] == [
        "groups",
        "collective",
        "size",
        "measured",
        "of",
        "fitted",
        "residual",
    ]
    assert len(found.to_table()) == 1 + 3 * 3 * 4 + 4
    assert "Groups of 2, 2 apart: 200 µs a hop and 1 GB/s" in found.describe()
    assert "GEMMs float32 2.5 GFLOP/s" in found.describe()


# -- real ranks ----
@pytest.mark.parametrize(
    "world_size, axes, kinds", [(4, None, [(1, 2), (1, 4), (2, 2)]), (3, {"tp": 3}, [(1, 3)])]
)
def test_on_real_ranks(world_size, axes, kinds):
    said = []
    found = tv.calibrate(
        world_size,
        axes,
        sizes=(64, 1001, 4096),
        repeats=2,
        dtypes=["float64"],
        gemm=16,
        device="cpu",
        progress=lambda *report: said.append(report),
    )
    assert [kind for kind in found.fits if kind != "message"] == kinds
    assert set(found.cluster.table) == set(found.cluster.latencies) == set(kinds)
    assert found.cluster.size == world_size and list(found.cluster.device.flops) == ["float64"]
    assert found.badge == "measured: this machine, gloo"
    assert re.fullmatch(r"this machine \(\d+ cores, gloo\)", found.cluster.name)
    for point in found.points:
        assert 0 < point["shortest"] <= point["seconds"] <= point["longest"]
        parts = 4 if point["kind"] == "message" else 4 * point["kind"][1]
        assert point["bytes"] % parts == 0  # whole numbers on every rank
    assert len(found.points) == 3 * (3 * len(kinds) + 1)
    done = [part for part, *_ in said]  # not each: at most 20 a second are shown
    assert done == sorted(done) and done[-1] == said[-1][1] and len(set(done)) > 2
    device = found.cluster.device
    assert device.pointwise == "eager" and device.startup > 0 and found.cluster.cores
    assert tv.simulate(tv.DataParallel(dp=world_size), tv.GPT(batch=12), found.cluster).step_time
    ElementTree.fromstring(found.to_svg())
    matrix = tv.communication_matrix(found)
    assert matrix.badge == found.badge
    assert {key: (e.latency, e.bandwidth) for key, e in matrix.entries.items()} == {
        kind: fit for kind, fit in found.fits.items() if kind != "message"
    }
    assert {entry.source for entry in matrix.entries.values()} == {"measured"}
    assert np.isinf(matrix.p2p()).sum() == world_size


def test_a_measured_cluster_serves_the_other_verbs():
    cluster = calibration_of(made_up()).cluster
    link = cluster.axis_link(tv.Mesh({"tp": 4}), "tp")
    assert cluster.collective_time("all_reduce", 1e6, 4, link) == pytest.approx(
        6 * 3e-4 + 1.5e6 / 5e8
    )


# -- refusals ----
@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"world_size": 1}, "world_size=1 is too small: the least that works is 2"),
        ({"world_size": 2.5}, "world_size must be a whole number"),
        ({"world_size": 1000}, "is more than the .* ranks allowed here"),
        ({"sizes": (1024, 2048)}, "2 different sizes are too few for a fit with a residual"),
        ({"sizes": (1024, 1024, 2048)}, "2 different sizes are too few"),
        ({"sizes": 5}, r"sizes=5: give several in a list, as in \[65536, 1048576, 4194304\]"),
        ({"sizes": None}, "sizes=None: give several"),
        ({"dtypes": None}, r"dtypes=None: give several in a list, as in \['float32', 'float64'\]"),
        ({"dtypes": "float32"}, "dtypes='float32': give several"),
        ({"sizes": (0, 1, 2)}, "size of a message=0 is too small: the least that works is 4"),
        ({"repeats": 0}, "repeats=0 is too small"),
        ({"dtypes": ["int7"]}, "dtype='int7' is not possible: use 'float32'"),
        ({"dtypes": []}, "at least one of the dtypes"),
        ({"gemm": -2}, "gemm=-2 is too small"),
        ({"axes": {"tp": 8}}, "mesh tp 8 has 8 ranks, but world_size=4: use world_size=8, or axes"),
        ({"axes": "tp"}, "axes='tp': give meshes"),
        ({"axes": []}, "no axis of 2 or more ranks"),
        ({"device": "tpu"}, "device='tpu'"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        tv.calibrate(**arguments)


def test_no_rank_starts_for_a_bad_argument(monkeypatch):
    monkeypatch.setattr(calibrate_module, "launch", lambda *a, **k: pytest.fail("started"))
    with pytest.raises(ValueError):
        tv.calibrate(4, {"tp": 8})


def test_axes_of_eight_ranks_when_left_out():
    assert calibrate_module._keys(8, None) == [(1, 2), (1, 4), (1, 8), (2, 2), (2, 4), (4, 2)]
    assert calibrate_module._keys(4, [{"dp": 2, "tp": 2}]) == [(1, 2), (2, 2)]
    assert calibrate_module._keys(6, tv.Mesh({"dp": 3, "one": 1, "tp": 2})) == [(1, 2), (2, 3)]


# -- devices from training steps ----
TRUE_DEVICE = Device(
    {"float32": 5e10, "float64": 2e10}, 4e9, 1e10, "core",
    gemm_efficiency=0.6, memory_efficiency=0.4, unhidden=0.3, startup=2e-5, pointwise="eager",
    attention_efficiency=fitted()["attention"],
)  # fmt: skip
OTHERS = [(tv.GPT(layers=3, hidden=96, seq=48, batch=5), 1), (tv.GPT(hidden=384, heads=8), 2)]


def steps_on(device, workloads):
    on = Cluster("host", device, (Level("gloo", 4, 1e9),))
    return {w: tv.predict(tv.DataParallel(dp=1), w, on).step_time for w in workloads}


@pytest.mark.parametrize("dtypes", [("float32",), ("float32", "float64")])
def test_the_device_is_the_one_that_made_the_steps(dtypes):
    asked = [replace(w, dtype=dtype) for dtype in dtypes for w in MODELS]
    ideal = Device(TRUE_DEVICE.flops, 4e9, 1e10, "core")
    found = device_of_steps(ideal, steps_on(TRUE_DEVICE, asked))
    for name in ("gemm_efficiency", "memory_efficiency", "unhidden", "startup"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE_DEVICE, name), rel=0.02), name
    cluster = replace(calibration_of(made_up()).cluster, device=found)
    true = replace(cluster, device=TRUE_DEVICE)
    for w, tp in OTHERS:
        for verb in (tv.predict, tv.simulate):
            seconds = [verb(tv.Megatron(tp=tp), w, c).step_time for c in (cluster, true)]
            assert seconds[0] == pytest.approx(seconds[1], rel=0.02)


def test_one_disturbed_step_does_not_move_the_device():
    steps = steps_on(TRUE_DEVICE, MODELS)
    steps[MODELS[2]] *= 3
    found = device_of_steps(Device(TRUE_DEVICE.flops, 4e9, 1e10), steps)
    for name, rest in (("gemm_efficiency", 0.1), ("startup", 0.1)):
        assert getattr(found, name) == pytest.approx(getattr(TRUE_DEVICE, name), rel=rest)


def test_a_device_that_does_more_than_its_peak_has_a_higher_peak():
    faster = replace(TRUE_DEVICE, gemm_efficiency=1.0, memory_efficiency=1.0)
    slow = {dtype: rate / 2 for dtype, rate in TRUE_DEVICE.flops.items()}
    found = device_of_steps(Device(slow, 4e9, 5e9), steps_on(faster, MODELS))
    assert found.gemm_efficiency == pytest.approx(1.0) == found.memory_efficiency
    assert found.flops["float32"] == pytest.approx(5e10, rel=0.02)
    assert found.memory_bandwidth == pytest.approx(1e10, rel=0.02)


def test_the_calibrated_cluster_has_the_device_the_factors_and_the_cores():
    """Kernels take 1.1 times as long where small all-reduces come between, bytes 3 times."""
    ranks, between = made_up(), (0.01, 0.03, 0.1, 0.2, 0.4)
    (alpha, bandwidth), (hops, volume) = TRUE[1, 4], cost("ring", "all_reduce", SMALL, 4)
    large = (cost("ring", "all_reduce", LARGE, 4)[1] - volume) / bandwidth
    added = [0.05 + 0.01 * r for r in range(4)]
    ranks = [
        {**rank, "steps": steps_on(replace(TRUE_DEVICE, flops={"float32": 2.5e9}), MODELS)}
        | {
            "cores": 2,
            "core_share": 0.4 + 0.1 * r,
            "interrupted": [
                (s, added[r] + 0.1 * s, added[r] + 0.1 * s + 3 * large) for s in between
            ]
            + [(0.05, 7.0, 1.0)],
            "queued": [0.6, 0.4, 0.55 + r, 0.5],
        }
        for r, rank in enumerate(ranks)
    ]
    for rank in ranks:
        for key, stamps in rank["points"].items():
            if key[1] == "reduce_scatter":
                (n_hops, size), (hop, rate) = cost("ring", *key[1:], key[0][1]), TRUE[key[0]]
                more = 3 * n_hops * hop + size / rate  # 4 times the latency, twice the bytes
                stamps[:] = [[start, end + more] for start, end in stamps]
    found = calibration_of(ranks)
    assert found.cluster.cores == 2 and found.cluster.core_share == pytest.approx(0.55)
    overhead = 0.065 - hops * alpha - volume / bandwidth
    assert found.cluster.overhead == pytest.approx(overhead, rel=1e-3)
    assert found.cluster.table[1, 4] == pytest.approx(TRUE[1, 4][1] / 3, rel=1e-3)
    assert found.cluster.queued == pytest.approx(0.525)
    assert found.cluster.factors["all_gather"] == pytest.approx((1.0, 1.0), rel=1e-3)
    assert found.cluster.factors["reduce_scatter"] == pytest.approx((4.0, 2.0), rel=1e-3)
    assert found.cluster.device.startup == pytest.approx(1.1 * 2e-5, rel=0.02)
    assert found.cluster.device.gemm_efficiency == pytest.approx(0.6 / 1.1, rel=0.01)
    assert "in training steps: GEMM efficiency 54." in found.describe()
    assert tv.Cluster.from_json(found.cluster.to_json()) == found.cluster


@pytest.mark.parametrize("seconds", [[1.0] * 3, [1.0, 1.0, 0.0, 1.0]])
def test_steps_that_cannot_be_fitted(seconds):
    with pytest.raises(ValueError, match="four or more times above 0"):
        fit_kernels([([(1, 1.0, 1.0)], taken) for taken in seconds])


def test_a_file_of_an_earlier_calibration_loads():
    old = json.loads(calibration_of(made_up()).cluster.to_json())
    for name in ("factors", "cores", "core_share", "overhead", "queued"):
        del old[name]
    found = tv.Cluster.from_json(json.dumps(old))
    assert (found.factors, found.cores, found.core_share, found.queued) == ({}, 0, 0.0, 1.0)
