"""Faults of ranks, engines, hosts and links at random moments of jobs on two hosts, and the table.

    python bench/stress_hosts.py [how many] [seed] [which ...]

Each has new hosts in namespaces, which needs root (see ``tests/hosts/bed.py``). A fault has to be
named within 10 s, all ranks of all hosts have to have ended within 10 s more, the next launch works
with what is left, and at the end no process, file or port is left. Exits with 1 where that is not
so.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "hosts"))

from faults import draw, suffer


def main(n=30, seed=0, *which):
    """Print a line for each fault; whether all were well."""
    faults, wrong = draw(n, seed), 0
    for number in which or range(n):
        fault = faults[number]
        found = suffer(fault)
        times = [f"{s:.1f}" if s is not None else "-" for s in (found.named, found.ended)]
        cells = [number, fault, *times, _line(found.said), _line(found.next)]
        cells.append("; ".join(found.wrong) or "well")
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
        wrong += bool(found.wrong)
    print(f"{wrong} of {len(which or faults)} were not well")
    return not wrong


def _line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines)[:160]


if __name__ == "__main__":
    sys.exit(0 if main(*map(int, sys.argv[1:])) else 1)
