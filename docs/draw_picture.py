"""Draw the README's picture from a real run on four ranks: ``make picture``."""

from pathlib import Path

import tpviz as tv


def main() -> None:
    """Two data-parallel halves, each of two tensor-parallel ranks; one step, after a warm-up."""
    workload = tv.GPT(layers=1, hidden=256, heads=4, seq=128, batch=8)
    strategy = tv.Megatron(tp=2) * tv.DataParallel(dp=2, bucket_mb=1.0)
    trace = tv.run(strategy, workload, steps=1, warmup=3, memory=False)
    trace.meta["workload"] = repr(workload).partition(", vocab")[0] + ")"  # fits the width
    path = Path(__file__).parent / "img" / "first_run.svg"
    path.parent.mkdir(exist_ok=True)
    path.write_text(tv.Timeline(trace).to_svg(theme="light", width=1100))
    tv.shutdown()
    print(f"{path.relative_to(Path.cwd())}: {len(trace)} events")


if __name__ == "__main__":
    main()
