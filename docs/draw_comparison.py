"""Draw the README's comparison from a real run on an emulated cluster: ``make picture``.

One rank is made a straggler, in the run only; the residual has to find it.
"""

from pathlib import Path

import tpviz as tv
from tpviz.views import gallery

FAULTS = tv.Faults(stragglers={2: 1.4})


def main() -> None:
    """Tensor parallelism inside two NVLink pairs, data parallelism between them over PCIe."""
    strategy = next(iter(gallery.PARALLELISM.values()))
    cluster, asked = gallery.box(), {**gallery.ASKED, "faults": FAULTS}
    comparison = tv.compare(strategy, gallery.WORKLOAD, cluster, **asked)
    path = Path(__file__).parent / "img" / "comparison.svg"
    path.parent.mkdir(exist_ok=True)
    path.write_text(comparison.to_svg(width=840))
    tv.shutdown()
    print(comparison.describe())
    print(path.relative_to(Path.cwd()))


if __name__ == "__main__":
    main()
