"""Import of gloo profiles: one recorded here on two ranks, and small ones by hand."""

import gzip
from itertools import pairwise

import pytest
from gloo_profile import STEPS, profiled
from kineto_samples import collective_args, complete, write_profile

import tpviz as tv


@pytest.fixture(scope="module")
def gloo(tmp_path_factory):
    """The folder of a gloo program profiled on two ranks."""
    folder = tmp_path_factory.mktemp("gloo")
    tv.launch(profiled, folder, world_size=2, backend="gloo", progress=False)
    return folder


def test_gloo_collectives_are_found_with_bytes_members_and_order(gloo):
    trace = tv.load_trace(gloo)
    assert trace.meta["badge"] == "imported"
    assert trace.meta["world_size"] == 2
    assert trace.ranks == [0, 1]
    for rank, message in ((0, "send"), (1, "recv")):
        found = [e for e in trace.select(kind="comm", rank=rank) if e.name != message]
        assert [(e.name, e.bytes, e.seq) for e in sorted(found, key=lambda e: e.seq)][:4] == [
            ("all_reduce", 4000, 0),
            ("all_gather", 4000, 1),
            ("reduce_scatter", 4000, 2),
            ("barrier", 0, 3),
        ]
        assert len(found) == 4 * STEPS
        assert {e.members for e in found} == {"0,1"}
        messages = list(trace.select(name=message, rank=rank))
        assert [(e.bytes, e.members, e.seq) for e in messages] == [
            (2000, "0,1", s) for s in range(STEPS)
        ]


def test_gloo_ranks_share_one_clock(gloo):
    trace = tv.load_trace(gloo)
    for seq in range(4 * STEPS):
        both = [e for e in trace.select(kind="comm", seq=seq) if e.name not in ("send", "recv")]
        assert {e.rank for e in both} == {0, 1}
        # a collective ends on neither rank before it began on both
        assert min(e.end for e in both) > max(e.start for e in both)


def test_gloo_computations_do_not_nest_and_carry_phases(gloo):
    trace = tv.load_trace(gloo)
    assert trace["start"].min() == 0
    for rank in (0, 1):
        compute = sorted(trace.select(kind="compute", rank=rank), key=lambda e: e.start)
        assert all(a.end <= b.start + 1e-9 for a, b in pairwise(compute))
        found = {(e.name, e.phase) for e in compute}
        assert {("matmul", "forward"), ("softmax", ""), ("mm", "backward")} <= found
        assert not {"allreduce_", "MmBackward0", "record_param_comms"} & {e.name for e in compute}
    assert 0 <= trace.overlap() <= 1
    assert trace.steps == list(range(STEPS))


def test_one_file_and_a_gzipped_file(gloo, tmp_path):
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress((gloo / "rank1.json").read_bytes()))
    assert tv.load_trace(gloo / "rank1.json").ranks == tv.load_trace(packed).ranks == [1]
    assert len(tv.load_trace(packed)) == len(tv.load_trace(gloo).select(rank=1))


def test_gloo_with_a_choice_of_groups_says_none(tmp_path):
    events = [
        complete("cpu_op", "c10d::allreduce_", 0, 5, tid=1),
        complete("user_annotation", "gloo:all_reduce", 2, 20, tid=2),
        complete("cpu_op", "aten::mm", 6, 10, tid=1),
        complete("cpu_op", "aten::copy_", 3, 10, tid=2),
    ]
    trace = tv.load_trace(write_profile(tmp_path, 0, events))
    (collective,) = trace.select(kind="comm")
    assert (collective.axis, collective.members, collective.seq, collective.lane) == (
        "unknown",
        "",
        -1,
        "comm/unknown",
    )
    assert collective.bytes == -1
    # what gloo's own thread copies is part of the collective, not computation
    assert [e.name for e in trace.select(kind="compute")] == ["mm"]
    assert trace.overlap() == pytest.approx(0.5)


def test_gloo_collectives_with_arguments_know_their_group(tmp_path):
    events = [
        complete("cpu_op", "c10d::allreduce_", 0, 6, tid=1),
        complete(
            "cpu_op",
            "record_param_comms",
            1,
            4,
            tid=1,
            **collective_args("all_reduce", (6, 6), "Float", "2", [0, 2]),
        ),
        complete("user_annotation", "gloo:all_reduce", 2, 20, tid=2),
    ]
    (collective,) = tv.load_trace(write_profile(tmp_path, 0, events))
    assert (collective.axis, collective.members, collective.bytes) == ("dp", "0,2", 24)


def test_an_operator_that_communicates_is_opened_up(tmp_path):
    """A custom operator with a collective inside is no computation; what it calls is."""
    events = [
        complete("cpu_op", "mylib::linear_and_reduce", 0, 50, tid=1),
        complete("cpu_op", "aten::linear", 1, 10, tid=1),
        complete("cpu_op", "aten::mm", 2, 8, tid=1),
        complete("cpu_op", "c10d::allreduce_", 12, 30, tid=1),
        complete("cpu_op", "aten::view", 13, 2, tid=1),
        complete("user_annotation", "gloo:all_reduce", 15, 20, tid=2),
    ]
    trace = tv.load_trace(write_profile(tmp_path, 0, events))
    assert [e.name for e in trace.select(kind="compute")] == ["linear"]
    assert trace.overlap() == 0.0


def test_gloo_beside_gpu_kernels(tmp_path):
    """Ranks that share a GPU: kernels compute, gloo communicates, operators only launch."""
    events = [
        complete("cpu_op", "aten::mm", 0, 20, tid=1),
        complete("kernel", "gemm", 10, 20, stream=7),
        complete("user_annotation", "gloo:all_reduce", 20, 20, tid=2),
    ]
    trace = tv.load_trace(write_profile(tmp_path, 0, events))
    assert [(e.name, e.kind) for e in trace] == [("gemm", "compute"), ("all_reduce", "comm")]
    assert trace.overlap() == pytest.approx(0.5)
