"""Profiles of GPUs as other people's jobs leave them: what they do not tell stays unknown, and the
rest is right. Times are in microseconds."""

import json

import pytest
from kineto_samples import collective_args, complete

import tpviz as tv
from tpviz.core.trace.analyses import breakdown
from tpviz.files.names import COMM_KERNELS, communication
from tpviz.views.figures.timeline import describe, timeline_scene

US = 1e-6
ALL_REDUCE = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWork*)"
SEND_RECV = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWork*)"


def kernel(name, ts, dur, stream=7, **args):
    return complete("kernel", name, ts, dur, tid=stream, stream=stream, **{"device": 0, **args})


def launched(name, call, ts, dur, number, stream=7):
    """A kernel and the call that launches it."""
    runtime = complete("cuda_runtime", "cudaLaunchKernel", call, 1, tid=1, correlation=number)
    return [runtime, kernel(name, ts, dur, stream, correlation=number)]


def mark(name, ts, dur):
    return complete("user_annotation", name, ts, dur, tid=1)


def load(tmp_path, events, name="rank0.json", **head):
    info = {"backend": "nccl", "rank": 0, "world_size": 8}
    path = tmp_path / name
    path.write_text(json.dumps({"distributedInfo": info, **head, "traceEvents": events}))
    return tv.load_trace(path)


def notes(trace):
    return "; ".join(trace.meta["notes"])


def test_an_unknown_group_is_unknown_and_no_group_of_one(tmp_path):
    events = [
        kernel("gemm", 0, 10),
        kernel(ALL_REDUCE, 10, 30, 20),
        kernel(ALL_REDUCE, 50, 30, 20),
    ]
    trace = load(tmp_path, events)
    (row,) = trace.ledger()
    assert row[:4] == ("unknown", "all_reduce", "", 2)
    assert trace.ledger().to_table()[1][4:] == ["unknown", "unknown"]
    assert trace.ledger() == trace.ledger() == trace.ledger() + tv.Ledger()
    assert trace.ledger().diff(tv.Ledger.of([("unknown", "all_reduce", "", 2, 4, 2)])) == [
        "unknown/all_reduce/: this has 2 x, unknown payload bytes, unknown on the wire, "
        "other has 2 x, 8 payload bytes, 8 on the wire"
    ]
    assert "group unknown: 2 collectives" in notes(trace)
    scene = timeline_scene(trace)
    assert [lane["axis"] for lane in scene["lanes"]] == ["", "unknown"]
    assert "Communication on axis unknown." in describe(scene)
    assert scene["exposed"]["start"] == pytest.approx([10 * US, 50 * US])
    assert scene["exposed"]["end"] == pytest.approx([40 * US, 80 * US])
    assert "unknown" in [row[5] for row in tv.Timeline(trace).to_table()]


@pytest.mark.parametrize(
    ("groups", "axis", "members"),
    [
        (["default_pg"], "world", "0,1"),
        (["default_pg", "mesh_tp"], "tp", "0,1"),
        (["default_pg", "mesh_tp", "mesh_ep"], "unknown", "0,1"),  # one set of ranks, two axes
    ],
)
def test_a_group_that_is_the_only_one_is_known(tmp_path, groups, axis, members):
    config = [{"pg_name": str(i), "pg_desc": d, "ranks": [0, 1]} for i, d in enumerate(groups)]
    config.append({"pg_name": "9", "pg_desc": "alone", "ranks": [0]})
    info = {"backend": "nccl", "rank": 0, "pg_config": config}
    trace = load(tmp_path, [kernel(ALL_REDUCE, 10, 30, 20)], distributedInfo=info)
    assert [(e.axis, e.members, e.seq) for e in trace] == [(axis, members, 0)]


def test_known_and_unknown_bytes_have_no_sum():
    ledger = tv.Ledger.of([("tp", "all_reduce", "", 1, 4, 2), ("tp", "all_reduce", "", 1, -1, 2)])
    assert ledger.to_table()[1] == ["tp", "all_reduce", "", "2", "unknown", "unknown"]
    known = tv.Ledger.of([("tp", "all_reduce", "", 1, 4, 0)])
    assert known.to_table()[1] == ["tp", "all_reduce", "", "1", "4", "unknown"]
    assert (ledger + known).to_table()[1][3:] == ["3", "unknown", "unknown"]


def test_the_call_around_the_launch_names_the_collective(tmp_path):
    events = [
        mark("nccl:all_to_all", 0, 20),
        *launched(SEND_RECV, 5, 10, 30, 1, 20),
        mark("nccl:all_to_all", 50, 20),
        *launched(SEND_RECV, 55, 60, 30, 2, 20),
        *launched(SEND_RECV, 80, 100, 5, 3, 20),
    ]
    names = load(tmp_path, events).select(kind="comm")["name"].tolist()
    assert names == ["all_to_all", "all_to_all", "send_recv"]  # the last may be any of three


def test_the_arguments_of_the_call_around_the_launch_count(tmp_path):
    args = collective_args("allreduce", (10, 10), "Float", "1", [0, 1])
    call = complete("cpu_op", "record_param_comms", 0, 20, tid=1, **args)
    (found,) = load(tmp_path, [call, *launched(ALL_REDUCE, 5, 10, 30, 1, 20)])
    assert (found.axis, found.members, found.bytes) == ("tp", "0,1", 40)


def test_what_was_launched_before_the_profile_is_in_no_step(tmp_path):
    events = [
        mark("ProfilerStep#1", 0, 100),
        mark("ProfilerStep#2", 100, 100),
        kernel("ncclDevKernel_Generic(x)", 10, 80, 4),
        *launched("gemm", 20, 95, 20, 1),
        *launched("gemm", 120, 150, 20, 2),
    ]
    trace = load(tmp_path, events)
    assert trace.select(kind="comm")["step"].tolist() == [-1]
    assert trace.select(step=1).exposed_communication() == 0
    assert "launched before the profile, or by a call that is not in it: 1 of 3 kernels" in notes(
        trace
    )


def _behind(period=100, steps=3):
    """A host that is done with each step in 10 µs, and a GPU that takes ``period``."""
    events = []
    for n in range(steps):
        events += [
            mark(f"ProfilerStep#{n}", 10 * n, 10),
            *launched("gemm", 10 * n + 2, 30 + period * n, 60, 2 * n),
            *launched(ALL_REDUCE, 10 * n + 4, 90 + period * n, 40, 2 * n + 1, 4),
        ]
    return events


def test_steps_are_those_of_a_gpu_that_is_behind(tmp_path):
    trace = load(tmp_path, _behind())
    steps = trace.select(kind="step")
    assert trace.step_time == pytest.approx(100 * US)
    assert steps["start"].tolist() == pytest.approx([0, 100 * US, 200 * US])
    assert trace.bubble() == {0: pytest.approx(0, abs=1e-9)}
    assert "steps by the GPUs' own time" in notes(trace)
    scene = timeline_scene(trace)
    low, high = scene["first"]
    assert any(low <= start < high for start in scene["bars"]["start"])


def test_a_copy_ahead_of_its_step_does_not_draw_the_step_out(tmp_path):
    ahead = complete("gpu_memcpy", "Memcpy HtoD", 31, 5, tid=9, stream=9, correlation=99)
    call = complete("cuda_runtime", "cudaMemcpyAsync", 21, 1, tid=1, correlation=99)
    trace = load(tmp_path, [*_behind(), ahead, call])
    assert trace.select(kind="copy")["step"].tolist() == [2]
    assert trace.step_time == pytest.approx(100 * US)


def test_steps_stay_those_of_a_host_that_waits_for_its_gpu(tmp_path):
    events = [mark("ProfilerStep#1", 0, 100), *launched("gemm", 20, 25, 20, 1)]
    trace = load(tmp_path, events)
    assert trace.step_time == pytest.approx(100 * US)
    assert trace.meta["notes"] == []


CUSTOM = {
    "void vllm::cross_device_reduce_1stage<__half, 2>(x)": "all_reduce",
    "void sglang::cross_device_reduce_2stage<__nv_bfloat16, 8, false>(x)": "all_reduce",
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(x)": "all_reduce",
    "void deep_ep::internode::dispatch<false, 8>(x)": "all_to_all",
    "void deep_ep::intranode::combine<__nv_bfloat16, 8>(x)": "all_to_all",
    "nvshmem_all_reduce_on_stream_kernel(x)": "all_reduce",
    "mscclKernel_Sum_half_LL(x)": "mscclKernel_Sum_half_LL",
    "oneccl_allgather_ring(x)": "all_gather",
    "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)": "ncclDevKernel_Generic_1",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<4>(x)": (
        "all_reduce"
    ),
    "all-reduce.17": "all_reduce",  # XLA's
    "MPI_Bcast": "MPI_Bcast",
}
COMPUTING = [
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(x)",
    "void at::native::_scatter_gather_elementwise_kernel<128, 8, all_reduce>(x)",
    "triton_poi_fused_all_reduce_wait_tensor_3",
    "void cub::DeviceReduceSingleTileKernel<all_gather>(x)",
    "broadcast_add",
    "gather.3",
]


@pytest.mark.parametrize("name", CUSTOM)
def test_kernels_that_communicate_are_told_by_name(name):
    assert communication(name) == CUSTOM[name]


@pytest.mark.parametrize("name", COMPUTING)
def test_kernels_that_compute_are_not(name):
    assert communication(name) is None


def test_what_is_told_by_name_is_said_and_counted(tmp_path):
    names = [*list(CUSTOM)[:1], *list(CUSTOM)[2:4], "nvshmem_all_reduce_on_stream_kernel(x)"]
    events = [kernel(name, 20 + 100 * i, 90, 27) for i, name in enumerate(names)]
    trace = load(tmp_path, [kernel("gemm", 0, 10), *events])
    assert len(trace.select(kind="comm")) == 4
    assert trace.exposed_communication() == pytest.approx(360 * US)
    assert "by name, not NCCL's: 3 all_reduce, 1 all_to_all" in notes(trace)


def test_a_pattern_of_ones_own(tmp_path, monkeypatch):
    events = [kernel("void mine::ring_sum<float>(x)", 0, 10)]
    assert load(tmp_path, events)["kind"].tolist() == ["compute"]
    monkeypatch.setitem(tv.COMM_KERNELS, r"mine::ring", "reduce_scatter")
    assert COMM_KERNELS is tv.COMM_KERNELS
    assert load(tmp_path, events)["name"].tolist() == ["reduce_scatter"]


def test_copies_are_busy_and_no_computation(tmp_path):
    copy = complete("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 10, 80, stream=7, bytes=1000)
    events = [kernel("gemm", 0, 10), copy, kernel("gemm", 90, 10)]
    trace = load(tmp_path, events)
    (part,) = breakdown(trace).values()
    assert (part.copying, part.idle) == pytest.approx((80 * US, 0), abs=1e-12)
    assert trace.bubble() == {0: pytest.approx(0, abs=1e-9)}
    assert trace.select(kind="copy")["bytes"].tolist() == [1000]
    assert [e.name for e in trace.critical_path()] == ["gemm", copy["name"], "gemm"]
    both = load(tmp_path, [*events, kernel(ALL_REDUCE, 20, 40, 20)])
    assert both.exposed_communication() == pytest.approx(40 * US)
    assert breakdown(both)[0].copying == pytest.approx(40 * US)
    again = tv.load_trace(both.to_hta(tmp_path / "hta"))
    assert sorted(again["kind"].tolist()) == sorted(both["kind"].tolist())


def test_devices_of_one_file_are_lanes_of_their_own(tmp_path):
    events = [kernel("gemm", 0, 10), kernel("gemm", 5, 20, device=1), kernel("gemm", 25, 5, 9)]
    events += [kernel(ALL_REDUCE, 10, 20, 20, device=1)]
    trace = load(tmp_path, events)
    assert trace.lanes == [
        *("compute", "comm/unknown of device 1", "compute of device 1", "compute/stream 9")
    ]
    assert "2 devices in one rank" in notes(trace)
    scene = timeline_scene(trace)  # the picture's red is the analysis': under any computation none
    bare = zip(scene["exposed"]["start"], scene["exposed"]["end"])
    assert sum(end - start for start, end in bare) == pytest.approx(trace.exposed_communication())


def _allocation(ts, total, **args):
    args = {"Total Allocated": total, "Device Type": 1, "Device Id": 0, **args}
    return {"ph": "i", "name": "[memory]", "pid": 9, "tid": 1, "ts": ts, "args": args}


def test_samples_of_memory(tmp_path):
    events = [_allocation(ts, 1000 * ts) for ts in (1, 2, 3, 4)]
    events += [_allocation(5, 10**9, **{"Device Type": 0})]  # the host's
    trace = load(tmp_path, [kernel("gemm", 0, 10), *events])
    use = trace.memory()
    assert (use.peak, use.peak_time) == (4000, pytest.approx(4 * US))
    assert list(use.series) == ["allocated"]
    scene = timeline_scene(trace)
    assert [(k["column"], k["label"]) for k in scene["memory_keys"]] == [("allocated",) * 2]
    assert scene["memory"]["0"]["peak"] == max(scene["memory"]["0"]["allocated"]) == 4000


def _skewed(tmp_path, args=None, late=(20, 60), names=((ALL_REDUCE,), (ALL_REDUCE,)), end=100):
    for rank, begin in enumerate(late):
        events = [kernel("gemm", 0, begin)]
        for i, name in enumerate(names[rank]):
            at = begin + 200 * i
            events.append(kernel(name, at, end + 200 * i - at, 20, **(args or {})))
        info = {"backend": "nccl", "rank": rank, "world_size": 2}
        data = {"distributedInfo": info, "traceEvents": events}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(data))
    return tv.load_trace(tmp_path)


@pytest.mark.parametrize("known", [False, True])
def test_a_rank_ahead_waits(tmp_path, known):
    args = collective_args("allreduce", (9, 9), "Float", "0", [0, 1]) if known else {}
    trace = _skewed(tmp_path, args)
    waiting = {rank: part.waiting for rank, part in breakdown(trace).items()}
    assert waiting == pytest.approx({0: 40 * US, 1: 0}, abs=1e-12)
    assert ("matched by their order" in notes(trace)) != known


def test_collectives_are_not_matched_where_that_cannot_be(tmp_path):
    names = [(ALL_REDUCE, ALL_REDUCE), (ALL_REDUCE, ALL_REDUCE.replace("AllReduce", "AllGather"))]
    trace = _skewed(tmp_path, names=names)
    assert "not matched: their sequences differ" in notes(trace)
    assert set(trace["seq"].tolist()) == {-1}
    trace = _skewed(tmp_path, late=(20, 120), end=110, names=[(ALL_REDUCE,), ()])
    assert "sequences differ" in notes(trace)


def test_collectives_that_one_rank_ends_before_another_begins_are_not_matched(tmp_path):
    for rank, begin in enumerate((0, 50)):
        events = [kernel(ALL_REDUCE, begin, 20, 20)]
        data = {"distributedInfo": {"rank": rank}, "traceEvents": events}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(data))
    trace = tv.load_trace(tmp_path)
    assert "one ends before another rank begins it" in notes(trace)
    assert set(trace["seq"].tolist()) == {-1}


def test_room_is_in_proportion_to_the_file(tmp_path):
    """One long name among many events once took room in every row."""
    import tracemalloc

    operators = [complete("cpu_op", "aten::add", i, 1, tid=1) for i in range(1500)]
    path = tmp_path / "rank0.json"
    for events in (
        [kernel("k" * 20_000, 0, 1), *operators],
        [complete("cpu_op", "x::" + "k" * 60_000, 0, 1, tid=2), *operators],
    ):
        path.write_text(json.dumps({"traceEvents": events}))
        tracemalloc.start()
        trace = tv.load_trace(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100 * path.stat().st_size  # 690 and 1,600 times before
    assert "1 name of over" in notes(trace)
    assert len(max(trace["name"].tolist(), key=len)) < 3000


def test_work_of_an_mtia(tmp_path):
    call = complete("mtia_runtime", "runFunction", 0, 2, tid=1, correlation=1)
    events = [
        mark("ProfilerStep#1", 0, 5),
        call,
        complete("cpu_op", "aten::mul", 0, 3, tid=1),
        complete("mtia_ccp_events", "fc-dtype_Float", 10, 20, tid=4, correlation=1),
        complete("mtia_ccp_events", "dma_request", 30, 5, tid=801, size=16),
    ]
    trace = load(tmp_path, events)
    assert [(e.name, e.kind, e.bytes, e.step) for e in trace][:2] == [
        ("fc-dtype_Float", "compute", 0, 1),
        ("dma_request", "copy", 16, -1),
    ]
