"""A trace of a million events: views, analyses, Chrome export and import, beside their bounds.

CPU seconds, so that they hold on a busy machine too; memory is the peak above the trace's own.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from harness import report, row

import tpviz as tv
from tpviz.core.trace import Trace
from tpviz.views.figures.page import page
from tpviz.views.figures.timeline import timeline_levels

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "views"))
EVENTS = 1_000_000
BOUNDS = {"scene": 1.0, "to_chrome": 10.0}  # CPU seconds
SCENE_MB, EXPORT_GB = 5.0, 0.5


def memory(name):
    """A figure of this process's memory by its name in the kernel, in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) * 1024


def main():
    from synthetic import large_trace

    trace = large_trace(EVENTS)
    scene, bars = timeline_levels(trace)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json.gz"
        acts = {
            "scene": lambda: timeline_levels(trace),
            "detail of a window": lambda: bars.level(1.0, 1.5),
            "page": lambda: page(trace),
            "to_chrome": lambda: trace.to_chrome(path),
            "load_trace": lambda: tv.load_trace(path),
            "to_hta": lambda: trace.to_hta(Path(folder) / "hta"),
            "ledger": trace.ledger,
            "overlap": trace.overlap,
            "exposed communication": trace.exposed_communication,
            "bubble": trace.bubble,
            "critical path": trace.critical_path,
            "merge of ranks": lambda: Trace.merge([trace.select(rank=r) for r in trace.ranks]),
        }
        taken, grown = {}, {}
        for name, act in acts.items():
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            before, start = memory("VmRSS"), time.process_time()
            act()
            taken[name], grown[name] = time.process_time() - start, memory("VmHWM") - before
    size = len(json.dumps(scene)) / 1e6
    rows = [
        row("events", len(trace)),
        row("bars drawn", len(scene["bars"]["id"])),
        row(f"scene as JSON (at most {SCENE_MB:g})", size, "MB"),
    ]
    for name, value in taken.items():
        bound = f" (at most {BOUNDS[name]:g})" if name in BOUNDS else ""
        rows += [row(name + bound, value, "s"), row(f"{name}: memory", grown[name] / 1e9, "GB")]
    report("large_trace", f"A trace of {len(trace)} events", rows, cpu_s=taken, bytes=grown)
    within = all(taken[name] <= bound for name, bound in BOUNDS.items())
    return int(not (within and size <= SCENE_MB and grown["to_chrome"] <= EXPORT_GB * 1e9))


if __name__ == "__main__":
    sys.exit(main())
