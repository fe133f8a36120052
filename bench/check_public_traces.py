"""Figures of public GPU profiles by `tv.load_trace`, against a count of the raw JSON.

    python bench/check_public_traces.py FOLDER_OR_FILES...

The count is of its own: it reads the JSON, tells kernels that communicate by a list of its own and
sums the time between every two moments at which something begins or ends, without tpviz.core.trace.
Of each file: seconds of communication, of exposed communication (with no computation under it), the
overlap, and the steps: their numbers, their median period, the exposed communication of each. Exits
with 1 where one differs by more than a tenth of a nanosecond.

The files are not part of this repository. Those that it was run on:

    facebookresearch/HolisticTraceAnalysis, tests/data:
        df_index_resolver/df_index_resolver.json.gz           V100, DDP, rank 1 of 2
        nccl_parser_config/nccl_data.json.gz                  A100, DDP, rank 0 of 2
        negative_queue_length_values_check/rank0.json.gz      A100, DLRM, rank 0 of 16
        ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz   V100, 1 rank
        trace_diff/control/control.json.gz                    V100, DLRM, rank 1 of 2
        trace_diff/test/test.json.gz                          V100, DLRM, rank 1 of 2
        trace_filter/sampled_rank-0.json.gz                   rank 0 of 128
        trace_filter/sampled_rank-1.json.gz                   rank 1 of 128
    AMD-AGI/TraceLens, tests/traces:
        b200/eager_trace.json.gz                              B200, inference, rank 0 of 8
        mi300/resnet_act_checkpoint.json.gz                   MI300X, DDP, rank 0 of 8
        inference/xdit_flux.1_aiter_sage/profile_trace_rank_0.json.gz      MI300X, 1 rank
"""

import gzip
import json
import re
import sys
from collections import Counter
from pathlib import Path

import tpviz as tv

COMM = re.compile(
    "nccl|multimem|allreduce|all_reduce|allgather|all_gather|reducescatter|reduce_scatter|"
    "alltoall|all_to_all|cross_device_reduce|deep_ep.*(dispatch|combine)|nvshmem",
    re.IGNORECASE,
)
CLOSE = 1e-10  # s: sums of thousands of floating-point numbers; files have nanoseconds


def raw_events(path):
    """The complete events of a file, times in us since the first one's start."""
    data = Path(path).read_bytes()
    data = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    events = [e for e in data["traceEvents"] if e.get("ph") == "X"]
    begin = min(e["ts"] for e in events)
    for e in events:
        e["from"], e["to"] = e["ts"] - begin, e["ts"] - begin + e["dur"]
    return events


def name_of(kernel):
    """The name without template arguments and parameters."""
    name = re.sub(r"^void |\(anonymous namespace\)::", "", kernel["name"])
    return name.split("<")[0].split("(")[0]


def count(works):
    """(us of communication, us of it without computation) of kernels, by a sweep."""
    moments = []
    for e in works:
        what = int(bool(COMM.search(name_of(e))))
        moments += [(e["from"], what, 1), (e["to"], what, -1)]
    running, last, total, bare = [0, 0], 0.0, 0.0, 0.0
    for at, what, change in sorted(moments):
        if running[1]:
            total += at - last
            bare += (at - last) * (not running[0])
        running[what] += change
        last = at
    return total, bare


def by_step(events, kernels, work):
    """{step: (begin, end)} in us and {step: kernels}."""
    hosts = {}
    for e in events:
        match = re.fullmatch(r"ProfilerStep#(\d+)", e["name"])
        if match and e.get("cat") == "user_annotation":
            hosts[int(match[1])] = e["from"], e["to"]
    calls = {}
    for e in events:
        if e.get("cat") in ("cuda_runtime", "cuda_driver", "hip_runtime", "Runtime"):
            calls[e.get("args", {}).get("correlation")] = e["from"]
    of = {}
    for e in work:
        call = calls.get(e["args"].get("correlation")) if calls else e["from"]
        inside = [n for n, (low, high) in hosts.items() if call is not None and low <= call <= high]
        of[id(e)] = max(inside, default=None)
    steps, late = (
        dict(hosts),
        any(of[id(e)] is not None and e["to"] > hosts[of[id(e)]][1] for e in work),
    )
    if late:
        plain = [e for e in kernels if not COMM.search(name_of(e))]
        stream = Counter(e["args"].get("stream") for e in plain).most_common(1)[0][0]
        begin = {}
        for e in sorted(plain, key=lambda e: e["from"], reverse=True):
            if e["args"].get("stream") == stream and of[id(e)] is not None:
                begin[of[id(e)]] = e["from"]
        until = {n: max(e["to"] for e in work if of[id(e)] == n) for n in begin}
        steps = {n: (begin[n], begin.get(n + 1, until[n])) for n in sorted(begin)}
    return steps, {n: [e for e in kernels if of[id(e)] == n] for n in steps}


def counted(path):
    """{figure: value} of a file, times in s, from the JSON."""
    events = raw_events(path)
    kernels = [e for e in events if e.get("cat") in ("kernel", "Kernel")]
    copies = ("gpu_memcpy", "gpu_memset", "Memcpy", "Memset")
    steps, of = by_step(events, kernels, kernels + [e for e in events if e.get("cat") in copies])
    total, bare = count(kernels)
    periods = sorted(high - low for low, high in steps.values())
    return {
        "communication": total / 1e6,
        "exposed": bare / 1e6,
        "overlap": (total - bare) / total if total else 0.0,
        "steps": sorted(steps),
        "step": periods[(len(periods) - 1) // 2] / 1e6 if periods else None,
        "exposed by step": [count(of[n])[1] / 1e6 for n in sorted(steps)],
    }


def loaded(path):
    """The same figures by tpviz."""
    trace = tv.load_trace(path)
    exposed, overlap = trace.exposed_communication(), trace.overlap()
    of_step = [trace.select(step=n).exposed_communication() for n in trace.steps]
    return {
        "communication": communication(trace),
        "exposed": exposed,
        "overlap": overlap,
        "steps": trace.steps,
        "step": trace.step_time if trace.steps else None,
        "exposed by step": of_step,
    }


def communication(trace):
    """Seconds in which the one rank of a trace communicates."""
    comm = trace.select(kind="comm")
    total, until = 0.0, float("-inf")
    for start, end in sorted(zip(comm["start"].tolist(), comm["end"].tolist())):
        total, until = total + max(end - max(start, until), 0.0), max(until, end)
    return total


def equal(a, b):
    """Whether two figures are the same, to `CLOSE`."""
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b or (None not in (a, b) and abs(a - b) <= CLOSE)


def main(paths):
    """Print a row for each file; the number of files that differ."""
    print("| file | communication, ms | exposed, ms | overlap, % | steps | step, ms | equal |")
    print("|---|---|---|---|---|---|---|")
    wrong = 0
    for path in [f for p in map(Path, paths) for f in (sorted(p.glob("*.json*")) or [p])]:
        raw, ours = counted(path), loaded(path)
        odd = [name for name in raw if not equal(raw[name], ours[name])]
        wrong += bool(odd)
        cells = [
            path.name,
            *(f"{1e3 * raw[name]:.3f}" for name in ("communication", "exposed")),
            f"{100 * raw['overlap']:.2f}",
            str(len(raw["steps"])),
            "" if raw["step"] is None else f"{1e3 * raw['step']:.3f}",
            "no: " + ", ".join(odd) if odd else "yes",
        ]
        print(f"| {' | '.join(cells)} |")
        for name in odd:
            print(f"  {name}: counted {raw[name]}, loaded {ours[name]}")
    return wrong


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(min(main(sys.argv[1:]), 1))
