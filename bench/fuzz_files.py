"""Trace files, ours and Kineto's, with values, keys, bytes and lengths changed at random.

    python bench/fuzz_files.py [SEED [FILES]]

Each file is loaded; what loads goes through every analysis, view and export. Every call must return
or be refused in words (see fuzzing.py); an error of loading must name the file. Exits with 1
otherwise.
"""

import copy
import gzip
import json
import random
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from fuzzing import main

import tpviz as tv
from tpviz.core.trace import Event, Trace
from tpviz.views.figures.page import page

VALUES = [
    None, True, -1, 0, 1, 10**30, -10**30, 1e308, float("nan"), float("inf"), "", "x", "nan", "1e5",
    "0,1", "0..5:0", "5..0:1", "0..1000000000000:1", "0..100000:1", "a,b", "1,", "..", [], [[]], {},
    {"a": 1}, "\ud800", "\x00\x1b", "x" * 1000, -5.5, 1e-320, "<script>", {"float": "nan"},
    [[[[{"a": [1]}]]]], "9" * 50,
]  # fmt: skip
META = {
    "badge": "this machine, gloo", "world_size": 4, "strategy": "s", "workload": "w",
    "mesh": {"axes": {"dp": 2, "tp": 2}}, "losses": [1.0, float("nan")], "overhead": 0.1,
    "ownership": [{"name": "w", "shape": [4, 4], "notation": "W[F_tp, D]",
                   "splits": [{"dim": 0, "axis": "tp"}]},
                  {"name": "v", "shape": [8], "notation": "b[D]", "splits": [],
                   "flat": {"axis": "dp", "ranges": [[0, 4], [4, 8]]}}],
    "memory": {rank: {"time": [0.0, 1e-3], "parameters": [8, 8], "gradients": [0, 8],
                      "optimizer": [0, 0], "activations": [4, 0]} for rank in range(4)},
    "late": {"seconds": 0.1, "share": 0.1, "share_of_communication": 0.1, "behind": 0.0,
             "events": ["mm"]},
}  # fmt: skip


def sample():
    """Two steps of four ranks: computations, collectives in two axes, waits."""
    events = []
    for rank in range(4):
        for step in range(2):
            zero = step * 1e-2 + rank * 1e-5
            base: dict[str, Any] = {"rank": rank, "step": step}
            for i in range(3):
                at = zero + i * 1e-3
                axis, members = (
                    ("tp", "0,1" if rank < 2 else "2,3")
                    if i % 2
                    else ("dp", "0,2" if rank % 2 == 0 else "1,3")
                )
                more = {"phase": ("forward", "backward", "sync")[i], "layer": f"blocks.{i}", **base}
                comm = len(events) + 1
                events += [
                    Event(
                        id=comm - 1,
                        name="mm",
                        start=at,
                        end=at + 5e-4,
                        flops=1000,
                        dtype="float32",
                        bytes=64,
                        microbatch=i,
                        **more,
                    ),
                    Event(
                        id=comm,
                        kind="comm",
                        lane=f"comm/{axis}",
                        name="all_reduce",
                        axis=axis,
                        members=members,
                        seq=3 * step + i,
                        start=at + 4e-4,
                        end=at + 9e-4,
                        bytes=4096,
                        wire_bytes=4096.0,
                        **more,
                    ),
                    Event(
                        id=comm + 1,
                        kind="wait",
                        name="wait all_reduce",
                        start=at + 5e-4,
                        end=at + 9e-4,
                        waits_for=comm,
                        **more,
                    ),
                ]
            events.append(
                Event(
                    id=len(events),
                    kind="step",
                    lane="step",
                    name=f"step {step}",
                    start=zero,
                    end=zero + 4e-3,
                    **base,
                )
            )
    return Trace.from_events(events, META)


def gloo_profile():
    """A file as torch.profiler writes it on the CPU, with the fields read of it."""

    def event(cat, name, ts, dur, **args):
        return {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": 1,
            "tid": 1,
            "ts": ts,
            "dur": dur,
            "args": args,
        }

    group = {
        "Collective name": "allreduce",
        "In msg nelems": 8,
        "Out msg nelems": 8,
        "Group size": 2,
        "dtype": "Float",
        "Process Group Name": "0",
        "Seq": 3,
        "Process Group Ranks": "[0, 1]",
        "Global rank start": 0,
        "Global rank stride": 1,
    }
    events = [
        event("user_annotation", "ProfilerStep#3", 1, 90),
        event("cpu_op", "aten::mm", 2, 5),
        event("cpu_op", "record_param_comms", 8, 2, **group),
        event(
            "user_annotation",
            "gloo:all_reduce",
            9,
            6,
            **{"Input Dims": [[2, 4], []], "Input type": ["float", ""]},
        ),
        event("cpu_op", "autograd::engine::evaluate_function: Mm", 20, 9),
        event("cpu_op", "aten::mm", 21, 5),
        event("cpu_op", "Optimizer.step#SGD.step", 31, 5),
    ]
    return {
        "schemaVersion": 1,
        "baseTimeNanoseconds": 1700000000000000000,
        "traceEvents": events,
        "deviceProperties": [],
        "distributedInfo": {
            "backend": "gloo",
            "rank": 0,
            "world_size": 2,
            "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}],
        },
    }


def gpu_profile():
    """A GPU's file with what only GPUs have: launches, copies, devices, samples of memory."""

    def event(cat, name, ts, dur, **args):
        tid = args.get("stream", 1)
        place = {"ph": "X", "cat": cat, "pid": 0, "tid": tid, "ts": ts, "dur": dur}
        return {**place, "name": name, "args": args}

    reduce, dispatch = "void vllm::cross_device_reduce_1stage<2>(x)", "deep_ep::dispatch<8>(x)"
    works = [("kernel", "gemm", 7), ("gpu_memcpy", "Memcpy", 7), ("kernel", dispatch, 9)]
    works += [("kernel", reduce, 9), ("kernel", "ncclDevKernel_SendRecv(x)", 20)]
    events = [event("user_annotation", f"ProfilerStep#{n}", 10 * n, 10) for n in range(3)]
    events.append(event("user_annotation", "nccl:all_to_all", 4, 3))
    for n in range(3):
        for i, (cat, name, stream) in enumerate(works):
            number, at = 10 * n + i, 40 + 50 * n + 8 * i
            events.append(event("cuda_runtime", "launch", 10 * n + i, 1, correlation=number))
            args = {"device": n % 2, "stream": stream, "correlation": number, "bytes": 64}
            events.append(event(cat, name, at, 9, **args))
    for i in range(3):
        args = {"Total Allocated": 64 * i, "Device Type": 1, "Device Id": 0}
        events.append({"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": i, "args": args})
    return {"distributedInfo": {"rank": 0, "world_size": 2}, "traceEvents": events}


def other_program():
    """A list of events as other programs write it: names, nested events, begins and ends."""
    places = [{"pid": p, "tid": t} for p in (1, 2) for t in (1, "b")]
    events = [
        {"ph": "M", "name": f"{what}_name", **place, "args": {"name": f"/device:{place['pid']}"}}
        for what in ("process", "thread")
        for place in places
    ]
    for place in places:
        for i, name in enumerate(("step", "matmul", "all-reduce.1")):
            events.append({"ph": "X", "name": name, **place, "ts": 10 * i, "dur": 30 - 8 * i})
        events += [{"ph": ph, "name": "b", **place, "ts": 50 + (ph == "E")} for ph in "BE"]
    return events


class Files:
    """Writes mutated files and calls everything on what loads."""

    def __init__(self, fuzz, seed):
        self.fuzz, self.random, self.path = fuzz, random.Random(seed), Path("mutated.json")
        trace = sample()
        ours = json.loads(trace.to_chrome("ours.json").read_text())
        trace.to_hta("kineto")
        with gzip.open("kineto/rank0.json.gz") as file:
            nccl = json.load(file)
        self.sources = [
            ours,
            {**ours, "traceEvents": ours["traceEvents"][-24:]},
            nccl,
            gloo_profile(),
            gpu_profile(),
            other_program(),
        ]

    def mutated(self):
        """The bytes of a file that is not quite right."""
        data = copy.deepcopy(self.random.choice(self.sources))
        for _ in range(self.random.choice([1, 1, 2, 4])):
            self._change(data)
        raw, how = json.dumps(data).encode(), self.random.random()
        if how < 0.06:
            raw = raw[: self.random.randrange(len(raw))]
        elif how < 0.12:
            changed = bytearray(raw)
            for _ in range(3):
                changed[self.random.randrange(len(raw))] = self.random.randrange(256)
            raw = bytes(changed)
        if self.random.random() < 0.1:
            raw = gzip.compress(raw, compresslevel=1)
            raw = raw[: self.random.randrange(len(raw))] if self.random.random() < 0.4 else raw
        return raw

    def _change(self, inside):
        """Remove, double or replace one thing, as likely near the root as in the events."""
        while inside:
            keys = list(inside) if isinstance(inside, dict) else range(len(inside))
            key = self.random.choice(keys)
            if isinstance(inside[key], (dict, list)) and self.random.random() > 0.25:
                inside = inside[key]
                continue
            how = self.random.random()
            if how < 0.15:
                del inside[key]
            elif how < 0.3 and isinstance(inside, list):
                inside.insert(key, copy.deepcopy(inside[key]))
            else:
                inside[key] = copy.deepcopy(self.random.choice(VALUES))
            return

    def one(self):
        """Write and load one file, and use what it holds."""
        self.path.write_bytes(self.mutated())
        trace = self.fuzz.call("load", _naming(self.path), tv.load_trace, self.path)
        if trace is not None:
            self.use(trace)

    def use(self, trace):
        """Every analysis, view and export."""
        call = self.fuzz.call
        for what in (
            "ledger",
            "overlap",
            "exposed_communication",
            "bubble",
            "critical_path",
            "memory",
            "rebased",
            "__repr__",
        ):
            call(what, getattr(trace, what))
        call("step_time", lambda: trace.step_time)
        call("Timeline", _drawn, trace)
        call("page", page, trace)
        call("to_chrome", _again, trace)
        call("to_hta", trace.to_hta, f"hta{self.fuzz.tried}")
        call("merge", Trace.merge, [trace, trace])


def _naming(path):
    def load(function, file):
        try:
            return function(file)
        except ValueError as error:
            if str(path) not in str(error):
                raise RuntimeError(f"an error that does not name the file: {error}") from error
            raise

    return load


def _drawn(trace):
    view = tv.Timeline(trace, critical=True)
    ElementTree.fromstring(view.to_svg())
    json.dumps(view.scene, allow_nan=False, ensure_ascii=False).encode()
    return view.describe(), view.to_table()


def _again(trace):
    written = trace.to_chrome("again.json")
    again = tv.load_trace(written)
    if any(not np.array_equal(again[name], trace[name]) for name in trace.columns):
        raise RuntimeError("the file read back is another trace")


def run(fuzz, seed):
    """Yields once per file; endless."""
    files = Files(fuzz, seed)
    while True:
        files.one()
        yield


if __name__ == "__main__":
    main("mutated files", run, 3000)
