"""Draw the README's first picture from a run on an emulated cluster: ``make picture``."""

from pathlib import Path

import tpviz as tv
from tpviz.views import gallery


def main() -> None:
    """Two data-parallel halves, each of two tensor-parallel ranks; one step, after a warm-up."""
    strategy = next(iter(gallery.PARALLELISM.values()))
    trace = tv.run(strategy, gallery.WORKLOAD, gallery.box(), steps=1)
    path = Path(__file__).parent / "img" / "first_run.svg"
    path.parent.mkdir(exist_ok=True)
    path.write_text(tv.Timeline(trace).to_svg(width=840))
    tv.shutdown()
    print(f"{path.relative_to(Path.cwd())}: {len(trace)} events, {trace.badge}")


if __name__ == "__main__":
    main()
