"""Import of NCCL profiles, in the layouts of several torch and NCCL releases."""

import json

import pytest
from kineto_samples import collective_args, complete, write_profile

import tpviz as tv
from tpviz.files import names


def _new_profile():
    """torch 2.4 and later: arguments on the kernel, "ncclDevKernel" names, times from a base."""
    return [
        complete("user_annotation", "ProfilerStep#3", 100, 400, tid=1),
        complete("user_annotation", "forward", 100, 100, tid=1),
        complete("cpu_op", "aten::mm", 101, 5, tid=1),
        complete("cuda_runtime", "cudaLaunchKernel", 102, 3, tid=1, correlation=1),
        complete("kernel", "ampere_sgemm_128x64_nn", 110, 50, stream=7, correlation=1),
        complete("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 300, 90, tid=2),
        *(
            complete("cuda_runtime", "cudaLaunchKernel", 120 + n, 1, tid=3, correlation=n)
            for n in range(3, 9)
        ),
        complete("cuda_runtime", "cudaLaunchKernel", 310, 3, tid=2, correlation=2),
        complete("kernel", "ampere_sgemm_128x64_nt", 320, 40, stream=7, correlation=2),
        complete("kernel", "elementwise_kernel", 330, 10, tid=9, stream=9, correlation=8),
        complete("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 100, 8, stream=7),
        complete(
            "kernel",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            150,
            20,
            tid=20,
            stream=20,
            correlation=3,
            **collective_args("allreduce", (1024, 1024), "Float", "1", [0, 1]),
        ),
        complete(
            "kernel",
            "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            200,
            30,
            tid=24,
            stream=24,
            correlation=4,
            **collective_args("_allgather_base", (256, 512), "BFloat16", "2", [0, 2]),
        ),
        complete(
            "kernel",
            "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            240,
            30,
            tid=24,
            stream=24,
            correlation=5,
            **collective_args("_reduce_scatter_base", (512, 256), "BFloat16", "2", [0, 2]),
        ),
        complete(
            "kernel",
            "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
            280,
            5,
            tid=20,
            stream=20,
            correlation=6,
            **collective_args("recv", (64, 64), "Half", "1", [0, 1]),
        ),
        complete(
            "kernel",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            345,
            20,
            tid=20,
            stream=20,
            correlation=7,
            **collective_args("allreduce", (8, 8), "Double", "0", [0, 1, 2, 3], Seq=41),
        ),
    ]


def test_nccl_kernels_become_communication_with_axis_members_and_bytes(tmp_path):
    trace = tv.load_trace(write_profile(tmp_path, 0, _new_profile()))
    found = [(e.name, e.axis, e.members, e.bytes, e.seq) for e in trace.select(kind="comm")]
    assert found == [
        ("all_reduce", "tp", "0,1", 4096, 0),
        ("all_gather", "dp", "0,2", 1024, 0),
        ("reduce_scatter", "dp", "0,2", 1024, 1),
        ("recv", "tp", "1,0", 128, 0),
        ("all_reduce", "world", "0,1,2,3", 64, 41),
    ]
    assert trace.lanes == [
        *("compute", "comm/dp", "comm/tp", "comm/world", "compute/stream 9", "copy")
    ]
    assert trace.ledger(step=3).total(axis="dp") == (2, 2048, 1024)


def test_nccl_computations_copies_phases_and_steps(tmp_path):
    trace = tv.load_trace(write_profile(tmp_path, 0, _new_profile()))
    compute = [(e.name, e.phase, e.step) for e in trace.select(kind="compute")]
    assert compute == [
        ("ampere_sgemm_128x64_nn", "forward", 3),
        ("ampere_sgemm_128x64_nt", "backward", 3),
        ("elementwise_kernel", "", 3),
    ]
    assert trace.steps == [3]
    assert [(e.name[:11], e.bytes, e.step) for e in trace.select(kind="copy")] == [
        ("Memcpy HtoD", -1, -1)  # no call of this profile asked for it
    ]
    assert trace.meta["device"] == "NVIDIA H200"
    # 105 µs of communication; 150-160 and 345-360 lie under kernels
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
        complete(
            "cpu_op",
            "record_param_comms",
            1.6e15,
            9,
            tid=1,
            **{"External id": 5},
            **collective_args("allreduce", (10, 10), "Float", "1", [0, 1]),
        ),
        complete("kernel", kernel, 1.6e15 + 20, 10, **{"External id": 5}, stream=20),
        complete("kernel", "gemm", 1.6e15 + 25, 10, stream=7),
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


def test_categories_before_torch_1_12(tmp_path):
    args = collective_args("allreduce", (10, 10), "Float", "1", [0, 1])
    events = [
        complete("Operator", "record_param_comms", 0, 9, tid=1, **{"External id": 5}, **args),
        complete("Kernel", OLD[1], 20, 10, **{"external id": 5}, stream=20),
        complete("Kernel", "gemm", 20, 5, stream=7),
        complete("Memcpy", "Memcpy DtoD", 26, 5, stream=7),
    ]
    trace = tv.load_trace(write_profile(tmp_path, 0, events))
    assert [(e.name, e.kind, e.bytes) for e in trace] == [
        ("all_reduce", "comm", 40),
        ("gemm", "compute", 0),
        ("Memcpy DtoD", "copy", -1),
    ]


def test_kernels_without_arguments_still_communicate(tmp_path):
    events = [
        complete("kernel", OLD[0], 0, 10, stream=20),
        complete("kernel", "gemm", 5, 10, stream=7),
    ]
    trace = tv.load_trace(write_profile(tmp_path, 0, events))
    (collective,) = trace.select(kind="comm")
    assert (collective.name, collective.axis, collective.lane, collective.seq) == (
        *("all_reduce", "unknown", "comm/unknown"),
        -1,
    )


def test_long_rank_lists_come_from_the_configuration(tmp_path):
    args = {
        **collective_args("allreduce", (1, 1), "Float", "0", [0, 1]),
        "Process Group Ranks": "[0, 1, ..., 3]",
    }
    trace = tv.load_trace(
        write_profile(tmp_path, 0, [complete("kernel", OLD[0], 0, 10, stream=20, **args)])
    )
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
        write_profile(tmp_path, 0, [complete("kernel", OLD[0], 0, 10, stream=20, **strided)])
    )
    assert (trace["members"].tolist(), trace["axis"].tolist()) == (["1,5,9"], ["EXPERT_GROUP"])


def test_ranks_are_put_on_one_clock(tmp_path):
    kernel = OLD[0]
    args = collective_args("allreduce", (1, 1), "Float", "1", [0, 1])
    write_profile(tmp_path, 0, [complete("kernel", kernel, 500.25, 10, stream=20, **args)])
    # a base 3 µs later and times 1 µs earlier: 2 µs after rank 0 on the common clock
    write_profile(
        tmp_path,
        1,
        [complete("kernel", kernel, 499.25, 10, stream=20, **args)],
        base=1_700_000_000_000_003_000,
    )
    trace = tv.load_trace(tmp_path)
    assert trace["start"].tolist() == pytest.approx([0.0, 2e-6], abs=1e-12)
    assert trace["seq"].tolist() == [0, 0]


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
