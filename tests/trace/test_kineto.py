"""Import of torch.profiler's files: one recorded here with gloo, and NCCL ones in Kineto's layout."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from gloo_profile import STEPS

import tpviz as tv
from tpviz.trace import kineto_names as names


@pytest.fixture(scope="module")
def gloo(tmp_path_factory):
    """The folder of a gloo program profiled on two ranks."""
    folder = tmp_path_factory.mktemp("gloo")
    script = str(Path(__file__).with_name("gloo_profile.py"))
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], said
    return folder / "profiles"


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
        assert all(a.end <= b.start + 1e-9 for a, b in zip(compute, compute[1:]))
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


# -- NCCL, as Kineto writes it -----------------------------------------------------------------------

GROUPS = [
    {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4, "ranks": [0, 1, 2, 3]},
    {"pg_name": "1", "pg_desc": "mesh_tp", "pg_size": 2, "ranks": [0, 1]},
    {"pg_name": "2", "pg_desc": "mesh_dp", "pg_size": 2, "ranks": [0, 2]},
]


def _x(cat, name, ts, dur, tid=7, **args):
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 0,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def _nccl(name, elements, dtype, group, ranks, **more):
    return {
        "Collective name": name,
        "In msg nelems": elements[0],
        "Out msg nelems": elements[1],
        "Group size": len(ranks),
        "dtype": dtype,
        "Process Group Name": group,
        "Process Group Description": next(g["pg_desc"] for g in GROUPS if g["pg_name"] == group),
        "Process Group Ranks": str(ranks),
        **more,
    }


def _new_profile():
    """torch 2.4 and later: arguments on the kernel, "ncclDevKernel" names, times relative to a base."""
    return [
        _x("user_annotation", "ProfilerStep#3", 100, 400, tid=1),
        _x("user_annotation", "forward", 100, 100, tid=1),
        _x("cpu_op", "aten::mm", 101, 5, tid=1),
        _x("cuda_runtime", "cudaLaunchKernel", 102, 3, tid=1, correlation=1),
        _x("kernel", "ampere_sgemm_128x64_nn", 110, 50, stream=7, correlation=1),
        _x("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 300, 90, tid=2),
        _x("cuda_runtime", "cudaLaunchKernel", 310, 3, tid=2, correlation=2),
        _x("kernel", "ampere_sgemm_128x64_nt", 320, 40, stream=7, correlation=2),
        _x("kernel", "elementwise_kernel", 330, 10, tid=9, stream=9, correlation=8),
        _x("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 100, 8, stream=7),
        _x(
            "kernel",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            150,
            20,
            tid=20,
            stream=20,
            correlation=3,
            **_nccl("allreduce", (1024, 1024), "Float", "1", [0, 1]),
        ),
        _x(
            "kernel",
            "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            200,
            30,
            tid=24,
            stream=24,
            correlation=4,
            **_nccl("_allgather_base", (256, 512), "BFloat16", "2", [0, 2]),
        ),
        _x(
            "kernel",
            "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            240,
            30,
            tid=24,
            stream=24,
            correlation=5,
            **_nccl("_reduce_scatter_base", (512, 256), "BFloat16", "2", [0, 2]),
        ),
        _x(
            "kernel",
            "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
            280,
            5,
            tid=20,
            stream=20,
            correlation=6,
            **_nccl("recv", (64, 64), "Half", "1", [0, 1]),
        ),
        _x(
            "kernel",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            345,
            20,
            tid=20,
            stream=20,
            correlation=7,
            **_nccl("allreduce", (8, 8), "Double", "0", [0, 1, 2, 3], Seq=41),
        ),
    ]


def _profile(folder, rank, events, base=1_700_000_000_000_000_000, suffix="json"):
    data = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 4, "pg_config": GROUPS},
        "baseTimeNanoseconds": base,
        "traceEvents": events,
    }
    path = folder / f"host_{rank}.pt.trace.{suffix}"
    path.write_text(json.dumps(data))
    return path


def test_nccl_kernels_become_communication_with_axis_members_and_bytes(tmp_path):
    trace = tv.load_trace(_profile(tmp_path, 0, _new_profile()))
    found = [(e.name, e.axis, e.members, e.bytes, e.seq) for e in trace.select(kind="comm")]
    assert found == [
        ("all_reduce", "tp", "0,1", 4096, 0),
        ("all_gather", "dp", "0,2", 1024, 0),
        ("reduce_scatter", "dp", "0,2", 1024, 1),
        ("recv", "tp", "1,0", 128, 0),
        ("all_reduce", "world", "0,1,2,3", 64, 41),
    ]
    assert trace.lanes == ["compute", "comm/dp", "comm/tp", "comm/world", "compute/stream 9"]
    assert trace.ledger(step=3).total(axis="dp") == (2, 2048, 1024)


def test_nccl_computations_phases_steps_and_what_is_left_out(tmp_path):
    trace = tv.load_trace(_profile(tmp_path, 0, _new_profile()))
    compute = [(e.name, e.phase, e.step) for e in trace.select(kind="compute")]
    assert compute == [
        ("ampere_sgemm_128x64_nn", "forward", 3),
        ("ampere_sgemm_128x64_nt", "backward", 3),
        ("elementwise_kernel", "", 3),
    ]
    assert trace.steps == [3]
    assert trace.meta["left_out"] == {"gpu_memcpy": 1}
    assert trace.meta["device"] == "NVIDIA H200"
    # 105 us of communication; 150-160 and 345-360 lie under kernels
    assert trace.overlap(0) == pytest.approx(25 / 105)


OLD = [
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWork*)",
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)",
    "ncclSymkDevKernel_AllReduce_LDMC(ncclSymkDevWorkArgs4K)",
]


@pytest.mark.parametrize("kernel", OLD)
def test_older_and_newer_kernel_names(tmp_path, kernel):
    """Older torch gives the arguments to the operator that issues, and counts time from 1970."""
    events = [
        _x(
            "cpu_op",
            "record_param_comms",
            1.6e15,
            9,
            tid=1,
            **{"External id": 5},
            **_nccl("allreduce", (10, 10), "Float", "1", [0, 1]),
        ),
        _x("kernel", kernel, 1.6e15 + 20, 10, **{"External id": 5}, stream=20),
        _x("kernel", "gemm", 1.6e15 + 25, 10, stream=7),
    ]
    data = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": 2},
        "traceEvents": events,
    }
    path = tmp_path / "old.json"
    path.write_text(json.dumps(data))
    trace = tv.load_trace(path)
    (collective,) = trace.select(kind="comm")
    assert (collective.name, collective.axis, collective.members, collective.bytes) == (
        "all_reduce",
        "tp",
        "0,1",
        40,
    )
    assert trace.ranks == [2]
    assert trace.overlap() == pytest.approx(0.5)


def test_kernels_without_arguments_still_communicate(tmp_path):
    events = [_x("kernel", OLD[0], 0, 10, stream=20), _x("kernel", "gemm", 5, 10, stream=7)]
    trace = tv.load_trace(_profile(tmp_path, 0, events))
    (collective,) = trace.select(kind="comm")
    assert (collective.name, collective.lane, collective.seq) == ("all_reduce", "comm", -1)


def test_long_rank_lists_come_from_the_configuration(tmp_path):
    args = {
        **_nccl("allreduce", (1, 1), "Float", "0", [0, 1]),
        "Process Group Ranks": "[0, 1, ..., 3]",
    }
    trace = tv.load_trace(_profile(tmp_path, 0, [_x("kernel", OLD[0], 0, 10, stream=20, **args)]))
    assert trace["members"].tolist() == ["0,1,2,3"]
    strided = {
        **args,
        "Process Group Name": "9",
        "Process Group Description": "EXPERT_GROUP",
        "Group size": 3,
        "Global rank start": 1,
        "Global rank stride": 4,
    }
    trace = tv.load_trace(
        _profile(tmp_path, 0, [_x("kernel", OLD[0], 0, 10, stream=20, **strided)])
    )
    assert (trace["members"].tolist(), trace["axis"].tolist()) == (["1,5,9"], ["EXPERT_GROUP"])


def test_ranks_are_put_on_one_clock(tmp_path):
    kernel = OLD[0]
    args = _nccl("allreduce", (1, 1), "Float", "1", [0, 1])
    _profile(tmp_path, 0, [_x("kernel", kernel, 500.25, 10, stream=20, **args)])
    # a base 3 us later and times 1 us earlier: 2 us after rank 0 on the common clock
    _profile(
        tmp_path,
        1,
        [_x("kernel", kernel, 499.25, 10, stream=20, **args)],
        base=1_700_000_000_000_003_000,
    )
    trace = tv.load_trace(tmp_path)
    assert trace["start"].tolist() == pytest.approx([0.0, 2e-6], abs=1e-12)
    assert trace["seq"].tolist() == [0, 0]


def test_gloo_with_a_choice_of_groups_says_none(tmp_path):
    events = [
        _x("cpu_op", "c10d::allreduce_", 0, 5, tid=1),
        _x("user_annotation", "gloo:all_reduce", 2, 20, tid=2),
        _x("cpu_op", "aten::mm", 6, 10, tid=1),
        _x("cpu_op", "aten::copy_", 3, 10, tid=2),
    ]
    trace = tv.load_trace(_profile(tmp_path, 0, events))
    (collective,) = trace.select(kind="comm")
    assert (collective.axis, collective.members, collective.seq, collective.lane) == (
        "",
        "",
        -1,
        "comm",
    )
    # what gloo's own thread copies is part of the collective, not computation
    assert [e.name for e in trace.select(kind="compute")] == ["mm"]
    assert trace.overlap() == pytest.approx(0.5)


def test_gloo_collectives_with_arguments_know_their_group(tmp_path):
    events = [
        _x("cpu_op", "c10d::allreduce_", 0, 6, tid=1),
        _x(
            "cpu_op",
            "record_param_comms",
            1,
            4,
            tid=1,
            **_nccl("all_reduce", (6, 6), "Float", "2", [0, 2]),
        ),
        _x("user_annotation", "gloo:all_reduce", 2, 20, tid=2),
    ]
    (collective,) = tv.load_trace(_profile(tmp_path, 0, events))
    assert (collective.axis, collective.members, collective.bytes) == ("dp", "0,2", 24)


@pytest.mark.parametrize(
    ("spelling", "ours"),
    [
        ("allreduce", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("_reduce_oop", "reduce"),
        ("broadcast", "broadcast"),
        ("recv", "recv"),
        ("c10d::gather_", "gather"),
        ("scatter", "scatter"),
        ("barrier", "barrier"),
        ("wait", None),
    ],
)
def test_spellings_of_collectives(spelling, ours):
    assert names.collective(spelling) == ours
