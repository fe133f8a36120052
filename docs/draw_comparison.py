"""Draw the README's comparison from a real run on an emulated cluster: ``make picture``.

One rank is made a straggler, in the run only; the residual has to find it.
"""

from pathlib import Path

import tpviz as tv

FAULTS = tv.Faults(stragglers={2: 1.4})


def main() -> None:
    """Tensor parallelism inside two NVLink pairs, data parallelism between them over PCIe."""
    workload = tv.GPT(layers=2, hidden=256, heads=8, seq=128, batch=8)
    strategy = tv.Megatron(tp=2) * tv.DataParallel(dp=2, bucket_mb=1.0)
    cluster = tv.clusters.nvlink_pairs(pairs=2).scale_model(hidden=4, slow_motion=300)
    comparison = tv.compare(strategy, workload, cluster, steps=3, faults=FAULTS, timeout=300)
    path = Path(__file__).parent / "img" / "comparison.svg"
    path.parent.mkdir(exist_ok=True)
    path.write_text(comparison.to_svg(theme="light", width=1100))
    tv.shutdown()
    print(comparison.describe())
    print(path.relative_to(Path.cwd()))


if __name__ == "__main__":
    main()
