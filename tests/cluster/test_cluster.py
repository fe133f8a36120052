"""The description: checks that name the numbers, JSON, scale models, what a device takes."""

import json
import pickle
from dataclasses import FrozenInstanceError, replace
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tpviz as tv
from tpviz import Cluster, Device, Dimension, Level, Mesh

DEVICE = Device({"float32": 1e12, "bfloat16": 4e12}, 16e9, 1e12, "test chip")
NODES = (Level("inside", 4, 100e9), Level("network", 2, 10e9, nics=2, latency=1e-5))


def cluster(**more):
    return Cluster("two nodes", DEVICE, NODES, **more)


# -- devices ----
def test_a_kernel_takes_its_flops_or_its_bytes():
    assert DEVICE.time(2e12, 1e9, "float32") == 2.0
    assert DEVICE.time(2e12, 3e12, "float32") == 3.0
    assert DEVICE.time(2e12, 0, "bfloat16") == 0.5
    assert DEVICE.time(2e12, 0, "float64") == 2.0  # not listed: the slowest that is


@pytest.mark.parametrize(
    "flops, message",
    [
        ({}, "give FLOP/s by dtype"),
        (1e12, "give FLOP/s by dtype"),
        ({"float32": -1}, r"flops\['float32'\]=-1 must be a number above 0"),
        ({"float32": nan}, "=nan must be a number above 0"),
        ({"float32": inf}, "must be finite"),
        ({"float32": True}, "=True must be a number above 0"),
        ({"bf16": 1e12}, "'bf16', which is no dtype's name: write 'bfloat16'"),
        ({"torch.float32": 1e12}, "write 'float32'"),
        ({"fast": 1e12}, "use float64, float32"),
    ],
)
def test_rates_that_cannot_be(flops, message):
    with pytest.raises(ValueError, match=message):
        Device(flops, 1e9, 1e9)


def test_a_device_keeps_its_own_rates():
    rates = {"float32": 1e12}
    device = Device(rates, 1e9, 1e9)
    rates["float32"] = 1.0
    assert device.time(1e12) == 1.0
    with pytest.raises(FrozenInstanceError):
        device.memory = 1


LOSSES = {
    "gemm_efficiency": 0.8,
    "memory_efficiency": 0.5,
    "attention_efficiency": 0.5,
    "unhidden": 0.25,
    "startup": 1e-3,
    "launch": 1e-2,
}


def test_a_device_that_is_not_ideal():
    real = replace(DEVICE, **LOSSES)
    assert real.time(8e11, 1e11) == pytest.approx(1.0 + 0.25 * 0.2 + 1e-3)
    assert real.time(8e9, 1e12) == pytest.approx(2.0 + 1e-3)  # its traffic takes longest
    assert real.time(1, 1) == 1e-2 and real.time(0, 0) == 0.0
    assert real != DEVICE and hash(real) != hash(DEVICE)
    for changed in LOSSES:
        ideal = replace(real, **{changed: getattr(DEVICE, changed)})
        assert ideal.losses and ideal.losses != real.losses and hash(ideal) != hash(real)
    assert DEVICE.losses == ""


@pytest.mark.parametrize("flops, bytes", [(1e12, 1e9), (1e12, 1e11), (1e9, 1e8)])
def test_efficiency_is_that_of_half_performance_by_intensity_and_by_size(flops, bytes):
    real = replace(DEVICE, unhidden=1.0, startup=1e-3)
    rate, f_half, F_half = 1e12, 1e12 / 1e12, 1e-3 * 1e12
    reached = 1 / (1 + f_half / (flops / bytes) + F_half / flops)
    assert flops / real.time(flops, bytes) == pytest.approx(reached * rate)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"gemm_efficiency": 1.2}, "gemm_efficiency=1.2 is a share: use a number above 0, up to 1"),
        ({"gemm_efficiency": 0}, "gemm_efficiency=0 must be a number above 0"),
        ({"memory_efficiency": "all"}, "memory_efficiency='all' must be a number above 0"),
        ({"unhidden": 2}, "unhidden=2 is a share: use 0 to 1"),
        ({"unhidden": -1}, "unhidden=-1 must be a number of 0 or more"),
        ({"startup": inf}, "startup=inf must be a number of 0 or more"),
        ({"launch": None}, "launch=None must be a number of 0 or more"),
    ],
)
def test_losses_that_cannot_be(change, message):
    with pytest.raises(ValueError, match=message):
        replace(DEVICE, **change)


# -- levels ----
CURVE = ((1e3, 0.1), (1e5, 0.5), (1e6, 0.9))


def test_a_curve_says_what_share_of_the_bandwidth_a_size_reaches():
    curved = (NODES[0], replace(NODES[1], curve=CURVE))
    real, ideal = Cluster("two nodes", DEVICE, curved), cluster()
    for size, reached in (*CURVE, (1e4, 0.3), (10, 0.1), (1e9, 0.9)):
        parts = [c.collective_parts("send", size, 2, c.link((0, 4), 8, 4)) for c in (ideal, real)]
        assert parts[1][0] == parts[0][0] and parts[1][1] * reached == pytest.approx(parts[0][1])
    inside = [c.collective_time("all_reduce", 1e4, 4, c.link(range(4), 8)) for c in (ideal, real)]
    assert inside[0] == inside[1]  # that level has no curve


@pytest.mark.parametrize(
    "curve, message",
    [
        (0.5, r"curve of level 'a'=0.5: give points \(bytes, share of the bandwidth\)"),
        ((0.5, 0.7), "give points"),
        (((1e6, 2),), "share in curve of level 'a'=2 is a share"),
        (((0, 0.5),), "bytes in curve of level 'a'=0 must be a number above 0"),
        (
            ((1e6, 0.9), (1e3, 0.5)),
            r"bytes must grow from point to point, not \[1000000.0, 1000.0\]",
        ),
    ],
)
def test_curves_that_cannot_be(curve, message):
    with pytest.raises(ValueError, match=message):
        Level("a", 2, 1e9, curve=curve)


def test_nics_multiply_what_leaves_a_unit():
    assert Level("net", 2, 10e9).group == 10e9
    assert Level("net", 2, 10e9, nics=4).group == 40e9
    assert Level("net", 2, 10e9, 25e9, nics=4).group == 25e9  # behind a narrow switch
    assert Level("net", 2, 0.1, nics=3).slower(3, 1).group == pytest.approx(0.1)  # rounding is fine


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: Level("net", 2, 50e9, 40e9),
            r"'net': one pair gets p2p=5e\+10.*group=4e\+10.*p2p up to 4e\+10, or group of 5e\+10",
        ),
        (
            lambda: Level("net", 2, 10e9, 45e9, nics=4),
            r"group=4.5e\+10.*more than nics=4 of p2p=1e\+10 carry: "
            r"use group up to 4e\+10, or nics=5",
        ),
        (lambda: Level("net", 2, 10e9, nics=0), "nics of level 'net'=0 is too small"),
        (
            lambda: Level("net", 1, 10e9),
            "units of level 'net'=1 is too small: the least that works is",
        ),
        (lambda: Level("net", 2, -1), "p2p of level 'net'=-1 must be a number above 0"),
        (lambda: Level("net", 2, nan), "p2p of level 'net'=nan"),
        (lambda: Level("net", 2, 1e9, latency=-1e-6), "latency of level 'net'=-1e-06 must be"),
        (lambda: Level("net", 2, 1e9, latency=inf), "latency of level 'net'=inf must be"),
        (lambda: Level("net", 2, 1e9, direct=2), "direct of level 'net'=2 is not possible"),
        (lambda: Level("", 2, 1e9), "a level needs a name"),
        (lambda: Dimension("x", 4, 0), "bandwidth of dimension 'x'=0 must be a number above 0"),
        (lambda: Dimension("x", 1, 1e9), "size of dimension 'x'=1 is too small"),
        (lambda: Dimension("x", 4, 1e9, links=0), "links of dimension 'x'=0 is too small"),
    ],
)
def test_links_that_cannot_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# -- clusters ----
@pytest.mark.parametrize(
    "changes, message",
    [
        ({"torus": (Dimension("x", 8, 1e9),)}, "one of the two: it has 2 levels and 1 torus dim"),
        ({"levels": ()}, "one of the two: it has 0 levels and 0 torus dimensions"),
        ({"levels": (Level("a", 2, 1e9), Level("a", 2, 1e9))}, "two are named 'a'"),
        ({"levels": ("NVLink",)}, "must be tv.Levels, not"),
        ({"levels": None}, "levels of 'two nodes' must be a tuple of tv.Levels, not None"),
        ({"levels": NODES[0]}, r"must be a tuple of tv.Levels, not Level\("),
        (
            {"levels": (), "torus": 8},
            "torus of 'two nodes' must be a tuple of tv.Dimensions, not 8",
        ),
        ({"device": "A100"}, "must be a tv.Device, not 'A100'"),
        ({"name": " "}, "a cluster needs a name"),
        ({"rings": "many"}, "rings='many' is not possible: use 'multi' or 'single'"),
        ({"algorithm": "magic"}, "algorithm='magic' is not possible"),
        ({"table": {(1, 2): -1.0}}, r"table\[\(1, 2\)\]=-1.0 must be a number above 0"),
        ({"table": {(4, 4): 1e9}}, "4 ranks 4 apart do not fit a cluster of 8"),
        ({"table": {(1, 1): 1e9}}, r"group size in table\[\(1, 1\)\]=1 is too small"),
        ({"table": {"tp": 1e9}}, r"the key 'tp' must be \(stride, group size\), as in \(1, 4\)"),
        ({"latencies": {(1, 2): nan}}, r"latencies\[\(1, 2\)\]=nan must be a number of 0 or more"),
        ({"table": None}, r"table=None must be {\(stride, group size\): number}"),
        ({"table": [1]}, r"table=\[1\] must be {\(stride"),
        ({"latencies": 1e-6}, "latencies=1e-06 must be"),
        ({"table": {(1, 2): 10**400}}, r"table\[\(1, 2\)\] is too large"),
        ({"latencies": {(1, 2): 10**400}}, r"latencies\[\(1, 2\)\] is too large"),
        ({"slow_motion": 0}, "slow_motion=0 must be a number above 0"),
    ],
)
def test_descriptions_that_contradict_themselves(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(cluster(), **changes)


@pytest.mark.parametrize(
    "world_size, message",
    [
        ("4", "world_size must be a whole number, not '4'"),
        (4.0, "world_size must be a whole number, not 4.0"),
        (0, "world_size=0 is too small: the least that works is 1"),
        (-3, "world_size=-3 is too small"),
    ],
)
def test_ranks_that_cannot_be(world_size, message):
    with pytest.raises(ValueError, match=message):
        cluster().check_world(world_size)


def test_axes_do_for_a_mesh():
    axes, made = {"dp": 2, "tp": 4}, cluster()
    for axis in axes:
        assert made.bandwidth(axes, axis) == made.bandwidth(Mesh(axes), axis)
        assert made.axis_link(axes, axis) == made.axis_link(Mesh(axes), axis)
    with pytest.raises(ValueError, match="mesh a 16: 16 ranks do not fit the 8 devices"):
        made.check_mesh({"a": 16})
    with pytest.raises(ValueError, match=r"a mesh needs at least one axis, .* not 'tp'"):
        made.bandwidth("tp", "tp")


@pytest.mark.parametrize("shape", [(2, 2, 4), (4, 1, 2), (1, 8, 2), (2, 4, 1)])
@pytest.mark.parametrize("rings", ["single", "multi"])
def test_links_of_rings_are_those_of_all_their_messages(shape, rings):
    mesh = Mesh(dict(zip("abc", shape)))
    for cluster in (tv.clusters.nvlink_pairs(pairs=8), tv.clusters.dgx("A100-SXM-80GB", 16)):
        cluster = replace(cluster, rings=rings)
        for axis in "abc":
            every = {
                cluster.link((a, b), mesh.size, b - a)[:2]
                for ring in mesh.groups(axis)
                for a, b in zip(ring, ring[-1:] + ring)
                if len(ring) > 1
            }
            if every:
                assert {link[:2] for link in cluster.ring_links(mesh, axis)} == every


def test_a_mesh_that_does_not_fit():
    with pytest.raises(
        ValueError,
        match="mesh dp 4 x tp 4: 16 ranks do not fit the 8 devices of "
        "two nodes: use 8 ranks or fewer, or a larger cluster",
    ):
        cluster().axis_link(Mesh({"dp": 4, "tp": 4}), "dp")
    with pytest.raises(ValueError, match="9 ranks do not fit the 8 devices"):
        cluster().link((0, 1), 9)
    with pytest.raises(ValueError, match="no axis 'pp' in this mesh"):
        cluster().axis_link(Mesh({"tp": 4}), "pp")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (((0, 4), 4), "rank=4 is too large: the most that works is 3"),
        (((0, 0), 4), "every rank once"),
        (((), 4), "at least one"),
        (((0, 2), 4, 1), r"a message by shift=1 goes between two ranks, not \(0, 2\)"),
    ],
)
def test_groups_that_cannot_be(arguments, message):
    with pytest.raises(ValueError, match=message):
        cluster().link(*arguments)


bandwidths = st.floats(1e3, 1e12) | st.just(inf)
levels = st.lists(
    st.builds(
        lambda i, units, p2p, times, latency, direct: Level(
            f"level {i}", units, p2p, p2p * times, latency, direct=direct
        ),
        st.integers(0, 10**9),
        st.integers(2, 4),
        bandwidths,
        st.integers(1, 8),
        st.floats(0, 1),
        st.booleans(),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda level: level.name,
).map(tuple)
clusters = st.builds(
    Cluster,
    st.just("any"),
    levels=levels,
    rings=st.sampled_from(["multi", "single"]),
    device=st.sampled_from([DEVICE, replace(DEVICE, **LOSSES)]),
    table=st.dictionaries(st.just((1, 2)), bandwidths),
    latencies=st.dictionaries(st.just((1, 2)), st.floats(0, 1)),
)


@given(clusters, st.floats(1, 64), st.floats(1, 1e4))
@settings(max_examples=60, deadline=None)
def test_json_gives_it_back(any_cluster, hidden, slow_motion):
    for made in (any_cluster, any_cluster.scale_model(hidden, slow_motion)):
        text = made.to_json()
        json.loads(text, parse_constant=pytest.fail)  # no NaN, no Infinity: they are no JSON
        assert Cluster.from_json(text) == made


@pytest.mark.parametrize("name, preset", tv.clusters.presets().items())
def test_json_and_pickle_of_presets(name, preset):
    made = preset()
    made.link((0, 1), made.size)
    assert Cluster.from_json(made.to_json()) == made
    copy = pickle.loads(pickle.dumps(made))
    assert copy == made and hash(copy) == hash(made)
    assert "_links" not in vars(copy)  # what it worked out stays behind


def test_json_keeps_a_name_that_means_something():
    """Infinite numbers are written as the word; the word as a name stays a name."""
    free = Level("infinite", 8, inf)
    made = Cluster("infinite", replace(DEVICE, name="infinite"), (free,), source="infinite")
    again = Cluster.from_json(made.to_json())
    assert again == made and again.name == again.source == again.levels[0].name == "infinite"
    assert again.levels[0].p2p == inf


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"device": {"flops": 1}}', "null"])
def test_json_of_something_else(text):
    with pytest.raises(ValueError):
        Cluster.from_json(text)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"colour": "red"}, "describes no cluster.*colour"),
        ({"table": [[1, 2]]}, "must be"),
        ({"levels": [{"name": "a", "units": 2}]}, "describes no cluster.*p2p"),
    ],
)
def test_json_with_a_fault(change, message):
    data = {**json.loads(cluster().to_json()), **change}
    with pytest.raises(ValueError, match=message):
        Cluster.from_json(json.dumps(data))


@pytest.mark.parametrize("losses", [{}, LOSSES])
def test_a_scale_model_keeps_every_duration_of_a_gemm_and_an_activation(losses):
    c = cluster(table={(1, 4): 80e9}, latencies={(1, 4): 1e-3})
    if losses:
        curved = tuple(replace(level, curve=((1e6, 0.1), (1e10, 0.9))) for level in c.levels)
        c = replace(c, device=replace(DEVICE, **losses), levels=curved)
    mesh = Mesh({"dp": 2, "tp": 4})
    small = c.scale_model(hidden=4, slow_motion=10)
    for flops, bytes in ((1e12, 0), (0, 1e9), (1e12, 1e11), (1, 0)):
        full = c.device.time(flops, bytes)
        assert small.device.time(flops / 16, bytes / 4) == pytest.approx(10 * full)
    for axis, size in mesh.axes.items():
        here, there = c.axis_link(mesh, axis), small.axis_link(mesh, axis)
        full = c.collective_time("all_reduce", 1e9, size, here)
        assert small.collective_time("all_reduce", 1e9 / 4, size, there) == pytest.approx(10 * full)
    assert small.device.memory == c.device.memory / 16
    assert small.caption == "two nodes (scale model: hidden sizes 1/4, 10 x slow motion)"
    assert c.caption == "two nodes"
    assert small.scale_model(hidden=2).hidden_scale == 8


def test_float32_can_stand_for_16_bits():
    c, mesh = cluster(), Mesh({"dp": 2, "tp": 4})
    small = c.scale_model(hidden=2, dtype="bfloat16")
    assert small.device.time(1e12 / 4, dtype="float32") == c.device.time(1e12, dtype="bfloat16")
    curved = Level("a", 2, 1e9, curve=CURVE).slower(0.5, 1)
    assert curved.curve == ((2e3, 0.1), (2e5, 0.5), (2e6, 0.9))  # numbers of twice the bytes
    assert small.bandwidth(mesh, "tp") == c.bandwidth(mesh, "tp")  # twice the bytes, half of them
    assert small.device.memory == 2 * c.device.memory / 4
    # half the width in numbers of twice the bytes: the same traffic of the same kernels
    assert small.device.time(0, 1e9) == c.device.time(0, 1e9)
    assert "hidden sizes 1/2, float32 for bfloat16" in small.caption
    assert Cluster.from_json(small.to_json()) == small
    with pytest.raises(ValueError, match="stands for bfloat16 in 'two nodes' already"):
        small.scale_model(dtype="bfloat16")
    with pytest.raises(ValueError, match="has no rate for float16: use dtype='bfloat16'"):
        c.scale_model(dtype="float16")
    with pytest.raises(ValueError, match="dtype='float64' is not possible"):
        c.scale_model(dtype="float64")


@pytest.mark.parametrize(
    "scale",
    [
        {"hidden": 0},
        {"slow_motion": -1},
        {"hidden": inf},
        {"slow_motion": nan},
        {"hidden": "8"},
        {"hidden": 1e200},
        {"hidden": 1e-200},
        {"hidden": 10**400},
        {"slow_motion": 1e300},
    ],
)
def test_scales_that_cannot_be(scale):
    with pytest.raises(ValueError, match=next(iter(scale))):
        cluster().scale_model(**scale)
