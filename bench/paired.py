"""The benchmarks of another checkout and of this one, in turn: the ratio of each figure.

    git worktree add ../before <commit>
    python bench/paired.py ../before [rounds, 3] [start record ...]

Prints, of each figure that both have, here over there: the median of the rounds' ratios, least and
most; exits with 1 where a time (ms, µs, s) is more than 3 % longer in every round. Both run with
this interpreter, and with their own code.
"""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parents[1]
SLOWER, TIMES = 1.03, ("s", "ms", "µs")


def figures(root: Path, name: str) -> dict[str, tuple[float, str]]:
    """{what: (value, unit)} of one run of a benchmark."""
    subprocess.run(
        [sys.executable, root / "bench" / f"bench_{name}.py"],
        cwd=root,
        check=False,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    found = {}
    for file in (root / "out" / "bench").glob("*.json"):
        found |= {r["what"]: (r["value"], r["unit"]) for r in json.loads(file.read_text())["rows"]}
        file.unlink()
    return found


def compare(there: Path, name: str, rounds: int) -> list[str]:
    """Print a benchmark's ratios; the times that are longer here."""
    ratios, units = defaultdict(list), {}
    for turn in range(rounds):
        roots = (there, HERE) if turn % 2 else (HERE, there)
        found = {root: figures(root, name) for root in roots}
        for what in found[HERE].keys() & found[there].keys():
            (now, units[what]), (before, _) = found[HERE][what], found[there][what]
            if before:
                ratios[what].append(now / before)
    longer = []
    for what, each in sorted(ratios.items()):
        slow = units[what] in TIMES and min(each) > SLOWER
        longer += [what] * slow
        print(
            f"{name:12} {what:60} {units[what]:3} {median(each):6.3f} ({min(each):.3f} to "
            f"{max(each):.3f}){'  LONGER' if slow else ''}",
            flush=True,
        )
    return longer


def main(there: str, rounds: int | str = 3, *names: str) -> int:
    """All benchmarks named, or those that both have."""
    root_there = Path(there).resolve()
    both = [
        {p.stem.removeprefix("bench_") for p in (root / "bench").glob("bench_*.py")}
        for root in (HERE, root_there)
    ]
    every = [
        compare(root_there, name, int(rounds)) for name in names or sorted(set.intersection(*both))
    ]
    return 1 if any(every) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
