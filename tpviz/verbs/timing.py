"""What `calibrate` does on each rank: time collectives, messages, GEMMs, copies and training steps
of small models, all ranks at once.

What a processor computes is timed by its own clock, which stands still while a process waits for a
core: ranks may be more than cores. Where they are not, training steps are timed by the host's.
"""

import os
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tpviz.cluster.routes import family
from tpviz.core.workload import GPT
from tpviz.ranks import offsets
from tpviz.ranks.devices import badge, inner_kind
from tpviz.ranks.hosts import host
from tpviz.ranks.launch import progress as report
from tpviz.ranks.recorder import record
from tpviz.schemes.collectives import gather_first, scatter_first
from tpviz.schemes.gpt.model import ReferenceGPT
from tpviz.schemes.gpt.program import Program, reference_program

from .run import train_step

if TYPE_CHECKING:
    from tpviz.cluster import Cluster

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
WARMUP = 2
COPY_BYTES = {"cpu": 2**25, "cuda": 2**28}
MODELS = (
    GPT(layers=2, hidden=32, heads=2, seq=16, batch=1, vocab=64),
    GPT(layers=2, hidden=64, heads=4, seq=32, batch=4, vocab=256),
    GPT(layers=2, hidden=128, heads=4, seq=64, batch=4, vocab=256),
    GPT(layers=1, hidden=128, heads=8, seq=256, batch=4, vocab=1024),
    GPT(layers=1, hidden=256, heads=8, seq=64, batch=4, vocab=512),
    GPT(layers=1, hidden=256, heads=4, seq=128, batch=8, vocab=256),
    GPT(layers=1, hidden=512, heads=8, seq=32, batch=1, vocab=256),
    GPT(layers=1, hidden=512, heads=8, seq=64, batch=4, vocab=256),
)
"""What training steps are timed of, each whole and in one process: from those that launch kernels
and little else to those that compute; narrow and wide GEMMs, many tokens and few."""
_LLAMA = {"ffn": 11008, "gated": True, "norm": "rms", "rotary": True, "bias": False, "tied": False}
GPU_MODELS = (
    GPT(layers=2, hidden=256, heads=4, seq=128, batch=1, vocab=1024),
    GPT(layers=4, hidden=1024, heads=16, seq=1024, batch=8, vocab=32768),
    GPT(layers=4, hidden=2048, heads=16, seq=2048, batch=4, vocab=32768),
    GPT(layers=2, hidden=4096, heads=32, seq=2048, batch=1, vocab=32768),
    GPT(layers=2, hidden=4096, heads=32, seq=4096, batch=1, vocab=32000, **_LLAMA),
)
"""The same for a GPU: the first launches kernels and little else. Up to 7 GB; those that a GPU has
no room for are left out."""
INTERRUPTED = {
    "cpu": (*MODELS[:5], MODELS[6]),
    "cuda": (
        replace(GPU_MODELS[0], dtype="bfloat16"),
        GPT(layers=2, hidden=512, heads=8, seq=512, batch=16, vocab=8192, dtype="bfloat16"),
        GPT(layers=2, hidden=1024, heads=16, seq=1024, batch=2, vocab=8192, dtype="bfloat16"),
        GPT(layers=2, hidden=1024, heads=16, seq=1024, batch=8, vocab=8192, dtype="bfloat16"),
    ),
}
"""Those that all-reduces are put into, from 1 to some 10 ms of work between two of them."""
STEP_REPEATS = 7
SMALL, LARGE = 2**12, 2**20
"""Bytes of the all-reduces between layers: of the one latency counts, of the other the bytes."""
BURST, BURST_SIZES = 8, (2**20, 2**22)
"""How many collectives of so many bytes are issued at once: as the buckets of a step."""
LEAST_LARGE = 2**16
"""Those of both kinds are no larger than the largest message that is asked for, as over slow links,
or than this."""


def time_rank(
    axes: list[tuple[int, int]],
    pairs: dict[str, list[tuple[int, int]]],
    sizes: list[int],
    repeats: int,
    dtypes: list[str],
    gemm: int | None,
) -> dict[str, Any]:
    """{"points": {(kind, collective, bytes): [[start, end], ...]}, "gemm": {dtype: FLOP/s}, "copy":
    bytes/s, "to_host": bytes/s, "steps": {workload: s}, "core_share": of a core while bytes move,
    "interrupted": of each model medians of `_interrupted`, "queued": those of `_behind`, ...}.

    axes : (stride, size) keys of `Cluster.table`; a point's kind is such a key, or one of ``pairs``
    for messages from one rank to another. bytes : of the full tensor. Times are seconds on this
    host's clock, which is compared with that of rank 0 (`offsets`) at the end, too.
    """
    device, total = os.environ.get("TPVIZ_DEVICE", "cpu"), WARMUP + repeats + 2
    by_host, asked = _moved_by(device) == "gloo", _models(dtypes, device)
    dtype = getattr(torch, asked[0].dtype) if asked else torch.float32  # of the training steps
    calls = _calls(axes, pairs, sizes, dtype, device)
    timed = [partial(_timed, call, device) for call in calls.values()]
    interrupted = INTERRUPTED[device] if by_host else ()
    most = max(*sizes, LEAST_LARGE)
    large, burst_sizes = min(LARGE, most), sorted({min(size, most) for size in BURST_SIZES})
    interrupted = [_interrupted(w, large, dtype, device) for w in interrupted]
    bursts = product(COLLECTIVES, burst_sizes if by_host else ())
    bursts = [_behind(name, size, dtype, device) for name, size in bursts]
    steps = {w: _step(w, device) for w in asked} if device == "cpu" else {}
    taken = iter(_in_turn([*timed, *interrupted, *bursts, *steps.values()], repeats, total))
    found = {"points": dict(zip(calls, taken)), **_machine(device)}
    found["interrupted"] = [tuple(map(median, zip(*of))) for _, of in zip(interrupted, taken)]
    found["queued"] = [median(of) for _, of in zip(bursts, taken)]
    found["steps"] = dict(zip(steps, map(median, taken))) or _alone(asked, repeats, device)
    found["gemm"] = {dtype: _gemm(dtype, gemm, repeats, device) for dtype in dtypes}
    found["copy"] = _copy(repeats, device)
    found["to_host"] = _to_host(repeats) if device == "cuda" else found["copy"] / 2
    report(total - 1, total, "training steps, GEMMs and copies")
    if device == "cpu":
        found["core_share"] = _core_share(max(sizes), repeats)
    report(total, total, "cores")
    offsets.compare()
    return {**found, "large": large, "offset": offsets.offset()}


def time_paced_rank(
    axes: list[tuple[int, int]],
    pairs: dict[str, list[tuple[int, int]]],
    sizes: list[int],
    repeats: int,
    cluster: "Cluster",
) -> dict[str, Any]:
    """{"points": as of `time_rank`, in emulated seconds, "late": how the run overran, "host"}.

    Its device is described, not measured.
    """
    calls = _calls(axes, pairs, sizes, torch.float32, os.environ.get("TPVIZ_DEVICE", "cpu"))
    points = {}
    with record(cluster=cluster) as recorder:
        for done, (key, call) in enumerate(calls.items(), 1):
            points[key] = _steps(recorder, call, repeats)
            report(done, len(calls), "collectives and messages")
    return {"points": points, "late": recorder.trace.meta["late"], "host": host()}


def _calls(axes, pairs, sizes, dtype, device):
    """{(kind, collective, bytes): a function that runs it} of all kinds and sizes."""
    calls, (part, full) = {}, _buffers(max(sizes), dtype, device)
    for key in axes:
        group = _my_group(*key)
        for name in COLLECTIVES:
            for size in sizes:
                call, payload = _collective(name, group, size, part, full)
                calls[key, name, payload] = call
    for kind, of in pairs.items():
        for size in sizes:
            call, payload = _message(of, full[: -(-size // dtype.itemsize)])
            calls[kind, "send", payload] = call
    return calls


def _in_turn(measures, repeats, total=0):
    """[what each measure gave, ``repeats`` times], all taking turns: a host that is slow for a
    while is slow for all of them. total : of the steps of `report`, 0 to say nothing."""
    found = [[] for _ in measures]
    for number in range(WARMUP + repeats):
        for measure, samples in zip(measures, found):
            dist.barrier()
            samples.append(measure())
        if total:
            report(number + 1, total, "collectives, messages, training steps")
    return [samples[WARMUP:] for samples in found]


def _my_group(stride, size):
    """Make every group of the kind, on every rank; the one this rank is in."""
    mine, here = None, dist.get_rank()
    for members in family(range(0, stride * size, stride), dist.get_world_size()):
        group = dist.new_group(list(members))
        mine = group if here in members else mine
    return mine


def _buffers(size, dtype, device):
    """Two tensors of so many bytes, and what rounding up to equal parts takes."""
    count = size // dtype.itemsize + dist.get_world_size()
    return torch.zeros(2, count, dtype=dtype, device=device)


def _collective(name, group, size, part, full):
    """(a function that runs it, bytes of the full tensor), as `_issue`."""
    issue, payload = _issue(name, group, size, part, full)
    return lambda: issue().wait(), payload


def _issue(name, group, size, part, full):
    """(a function that starts it and gives its handle, bytes of the full tensor): ``size`` rounded
    up to equal parts, of the tensors' beginning."""
    ranks = dist.get_world_size(group)
    part = part[: -(-size // (full.itemsize * ranks))]
    full = full[: ranks * part.numel()]
    calls = {
        "all_reduce": lambda: dist.all_reduce(full, group=group, async_op=True),
        "all_gather": lambda: gather_first(part, group, full)[1],
        "reduce_scatter": lambda: scatter_first(full, group, part)[1],
    }
    return calls[name], full.nbytes


def _message(pairs, data):
    """(a function that sends from the first to the second rank of each pair, bytes); others
    rest."""
    here, call = dist.get_rank(), lambda: None
    for sender, receiver in pairs:
        if here == sender:
            call = partial(dist.send, data, receiver)
        elif here == receiver:
            call = partial(dist.recv, data, sender)
    return call, data.nbytes


def _timed(call, device):
    """[start, end] of a call."""
    _finish(device)
    start = time.perf_counter()
    call()
    _finish(device)
    return [start, time.perf_counter()]


def _steps(recorder, call, repeats):
    """The same on the lane clock of an emulated run, which all ranks begin a step on together."""
    for _ in range(WARMUP + repeats):
        with recorder.step():
            call()
    return [[start, end] for _, start, end in recorder.steps[-repeats:]]


def _seconds(call, device):
    """How long a call takes."""
    start, end = _timed(call, device)
    return end - start


def _finish(device):
    if device == "cuda":
        torch.cuda.synchronize()


def _gemm(dtype, size, repeats, device):
    """FLOP/s of square GEMMs on this rank while all others compute too."""
    size = size or (512 if device == "cpu" else 4096)
    a = torch.randn(size, size, device=device).to(getattr(torch, dtype))
    b, out = a.clone(), torch.empty_like(a)
    return 2 * size**3 / _working(lambda: torch.mm(a, b, out=out), repeats, device)


def _copy(repeats, device):
    """Bytes/s read and written by a copy on this rank while all others copy too."""
    source = torch.zeros(COPY_BYTES[device] // 4, device=device)
    target = torch.empty_like(source)
    return 2 * COPY_BYTES[device] / _working(lambda: target.copy_(source), repeats, device)


def _to_host(repeats):
    """Bytes/s of a copy to pinned memory of the host, while the other ranks copy too."""
    source = torch.zeros(COPY_BYTES["cuda"] // 4, device="cuda")
    target = torch.empty(source.shape, pin_memory=True)
    return COPY_BYTES["cuda"] / _working(lambda: target.copy_(source), repeats, "cuda")


def _models(dtypes, device):
    """`MODELS` or `GPU_MODELS`, in the first of the preferred dtypes that is asked for."""
    models, preferred = MODELS, ("float32", "float64")
    if device != "cpu":
        models, preferred = GPU_MODELS, ("bfloat16", "float32")
    dtype = next((d for d in preferred if d in dtypes), None)
    return [replace(w, dtype=dtype) for w in models] if dtype else []


def _alone(workloads, repeats, device):
    """{workload: median seconds of a step}, one after another, of those that there is room for."""
    found = {}
    for workload in workloads:
        with suppress(torch.OutOfMemoryError):
            (taken,) = _in_turn([_step(workload, device)], min(repeats, STEP_REPEATS))
            found[workload] = median(taken)
    return found


def _step(workload, device):
    """A function that gives the seconds of a whole training step: on a processor as `tpviz.run`
    records it, and without waiting for a core where ranks are more than cores; a GPU's host would
    launch less fast then."""
    train = partial(train_step, _program(workload, device), workload, 0, device)
    has_core = _ranks_here() <= _cores()
    clock = time.perf_counter if has_core else time.process_time

    def of_core() -> float:
        with record() as recorder:
            start = clock()
            with recorder.step():
                train()
            return clock() - start

    return of_core if device == "cpu" else partial(_seconds, train, device)


def _program(workload, device):
    """A whole model. On a processor with the initial values of a run: where logits are large,
    gradients are subnormal numbers, and a processor's GEMMs of those take ten times as long. A GPU
    takes any, and a run's would take long to draw."""
    if device == "cpu":
        return reference_program(workload)
    module = ReferenceGPT(workload, dtype=getattr(torch, workload.dtype), device=device)
    return Program(workload, module)


def _interrupted(workload, large, dtype, device):
    """A function that gives (seconds of a training step for each of the all-reduces between its
    layers, by how many seconds each of `SMALL` bytes lengthens it, and each of ``large``), of a
    step without and two with them.

    It is longer than in a loop: ranks come at different times, whoever waits must be woken up, and
    then finds other caches. No strategy runs here: every rank trains the whole model.
    """
    program, nothing = _program(workload, device), lambda: None
    reduce_small, reduce_large = (
        _collective("all_reduce", None, size, *_buffers(size, dtype, device))[0]
        for size in (SMALL, large)
    )
    between = nothing
    modules = program.module.named_modules()
    layers = [module for name, module in modules if name.endswith((".attention", ".mlp"))]

    def interrupt(*_):
        between()  # its result would replace the layer's

    for layer in layers:
        layer.register_forward_hook(interrupt)
        layer.register_full_backward_hook(interrupt)

    def step() -> torch.Tensor | None:
        if device != "cpu":
            return train_step(program, workload, 0, device)
        with record() as recorder, recorder.step():
            return train_step(program, workload, 0, device)

    def elapsed(call) -> float:
        nonlocal between
        between = call
        dist.barrier()
        return _seconds(step, device) / count

    def three() -> tuple[float, ...]:
        without, *longer = map(elapsed, (nothing, reduce_small, reduce_large))
        return without, *(seconds - without for seconds in longer)

    count = 2 * len(layers)
    return three


def _behind(name, size, dtype, device):
    """A function that gives how many times as long a collective takes behind another as alone:
    several that are issued at once, all of the same zeros, and as many one by one."""
    issue, _ = _issue(name, None, size, *_buffers(size, dtype, device))

    def at_once() -> None:
        for work in [issue() for _ in range(BURST)]:
            work.wait()

    def one_by_one() -> None:
        for _ in range(BURST):
            issue().wait()

    def ratio() -> float:
        alone = _seconds(one_by_one, device) / BURST
        dist.barrier()
        return (_seconds(at_once, device) / alone - 1) / (BURST - 1)

    return ratio


def _core_share(size, repeats):
    """How busy an all-reduce of all ranks keeps a core for each of them, 1.0 one core."""
    data, wall, busy = torch.zeros(-(-size // 4)), 0.0, 0.0
    for _ in range(WARMUP + repeats):
        dist.barrier()
        start, worked = time.perf_counter(), time.process_time()
        dist.all_reduce(data)
        wall, busy = wall + time.perf_counter() - start, busy + time.process_time() - worked
    return busy / wall


def _working(call, repeats, device):
    """The median seconds of a call while all ranks do the same: of a processor, waiting for a core
    not counted; of a GPU, all."""
    if device != "cpu":
        return median(_in_turn([partial(_seconds, call, device)], repeats)[0])
    lasted = []
    dist.barrier()
    for _ in range(WARMUP + repeats):
        start = time.process_time()
        call()
        lasted.append(time.process_time() - start)
    return median(lasted[WARMUP:])


def _moved_by(device):
    """What moves the bytes between the ranks."""
    return "NCCL" if device == "cuda" and inner_kind() == "nccl" else "gloo"


def _ranks_here():
    return int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))


def _cores():
    return len(os.sched_getaffinity(0))


def _machine(device):
    """What this rank runs on: host, device, bytes of memory that are its share, who moves bytes."""
    ranks, cores = _ranks_here(), _cores()
    name, where = f"core (1 of {cores}, {ranks} ranks)", f"{cores} cores"
    memory, share = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), ranks
    if device == "cuda":
        gpus = min(torch.cuda.device_count(), ranks)
        name, where, share = torch.cuda.get_device_name(), f"{gpus} GPUs", -(-ranks // gpus)
        memory = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        name += f", shared by {share} ranks" if share > 1 else ""
    return {
        "host": host(),
        "device": name,
        "memory": memory / share,
        "words": f"{where}, {_moved_by(device)}",
        "cores": cores if device == "cpu" else 0,
        "badge": badge(device),
    }
