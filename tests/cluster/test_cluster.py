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


# -- levels ----
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
    st.just(DEVICE),
    levels,
    rings=st.sampled_from(["multi", "single"]),
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


def test_a_scale_model_keeps_every_duration_of_a_gemm_and_an_activation():
    c = cluster(table={(1, 4): 80e9}, latencies={(1, 4): 1e-3})
    mesh = Mesh({"dp": 2, "tp": 4})
    small = c.scale_model(hidden=4, slow_motion=10)
    assert small.device.time(1e12 / 16) == pytest.approx(10 * c.device.time(1e12))
    assert small.device.time(0, 1e9 / 4) == pytest.approx(10 * c.device.time(0, 1e9))
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
