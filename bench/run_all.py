"""Run the benchmarks, each in a process of its own: ``python bench/run_all.py [start record ...]``.

Exits with 1 when one fails. A figure above its bound is printed as ABOVE; on a busy machine it
proves nothing, so most benchmarks do not fail by it (Merak's and T3's emulated runs do).
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main():
    every = sorted(p.stem.removeprefix("bench_") for p in HERE.glob("bench_*.py"))
    chosen = sys.argv[1:] or every
    unknown = sorted(set(chosen) - set(every))
    if unknown:
        sys.exit(f"no benchmark {', '.join(unknown)}; there are {', '.join(every)}")
    failed = [
        name
        for name in chosen
        if subprocess.run([sys.executable, HERE / f"bench_{name}.py"]).returncode
    ]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    print("\nkept in out/bench")


if __name__ == "__main__":
    main()
