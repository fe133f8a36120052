"""`tv.search` by default: seconds of CPU until the first answer, of the formulas, and of the whole.

python bench/bench_search.py           # 7B on 8 GPUs, 70B on 64, 175B on 512
python bench/bench_search.py 70B
"""

import sys
import time

FIRST, WHOLE = 2.0, 10.0


def cases(tv):
    """{name: (workload, cluster)}."""
    bf16 = {"dtype": "bfloat16"}
    return {
        "7B": (
            tv.GPT(layers=32, hidden=4096, heads=32, seq=2048, batch=64, vocab=32000, **bf16),
            tv.clusters.nvswitch(8),
        ),
        "70B": (
            tv.GPT(layers=80, hidden=8192, heads=64, seq=4096, batch=512, vocab=32000, **bf16),
            tv.clusters.nvswitch_nodes(8),
        ),
        "175B": (
            tv.GPT(layers=96, hidden=12288, heads=96, seq=2048, batch=1536, vocab=51200, **bf16),
            tv.clusters.nvswitch_nodes(64),
        ),
    }


def one(tv, name, workload, cluster):
    """Search; print the figures; whether they are within the bounds."""
    start, seen = time.process_time(), {}

    def show(done, total, text):
        now = time.process_time() - start
        if "best so far" in text:
            seen.setdefault("first", now)
        if text.startswith("simulating"):
            seen.setdefault("formulas", now)

    found = tv.search(workload, cluster, progress=show)
    whole = time.process_time() - start
    good = seen["first"] <= FIRST and whole <= WHOLE
    print(
        f"{name:5} first answer {seen['first']:.2f} s CPU, all {len(found.rows)} of "
        f"{len(found.rows) + len(found.rejected)} by formula {seen['formulas']:.1f} s, whole "
        f"{whole:.1f} s with {sum(r.simulated is not None for r in found.rows)} simulated and "
        f"{len(found.late)} late: {found.best.short}{'' if good else '  TOO LONG'}",
        flush=True,
    )
    return good


def main(names):
    """All cases, or those named."""
    import tpviz as tv

    tv.search(tv.GPT(), tv.clusters.nvlink_pairs(1), top=1)  # torch itself is loaded
    chosen = {name: case for name, case in cases(tv).items() if name in (names or cases(tv))}
    return 0 if all([one(tv, name, *case) for name, case in chosen.items()]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
