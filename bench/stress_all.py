"""Everything that has tried to break tpviz from outside: what was tried, and what survived.

    python bench/stress_all.py [folder of programs ...]

Interrupts at random moments, jobs that leave state behind, faults of ranks, foreign programs,
damaged files and calls with values of any kind, each by its own script or tests; then the programs
of the folders named, of which each survives that ends by itself within its time. Takes about an
hour on two cores; exits with 1 where anything did not survive.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPTS = {
    "interrupts": ["stress_interrupts.py", "1000"],
    "files": ["fuzz_files.py", "0", "3000"],
    "calls": ["fuzz_calls.py", "0", "5000"],
}
TESTS = {
    "state left in ranks": "tests/ranks/test_state.py",
    "faults of ranks": "tests/ranks/test_faults.py",
    "what stays behind": "tests/ranks/test_leftovers.py",
    "foreign programs": "tests/zoo",
    "wrong answers": "tests/course/test_misconceptions.py",
}
LIMIT = 600  # seconds for one program of a folder


def of_script(name, script, *arguments):
    """One line with what the script says at its end; whether all survived."""
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / script, *arguments], capture_output=True, text=True
    )
    for line in (done.stdout + done.stderr).splitlines()[-3:]:
        print(f"{name}: {line}", flush=True)
    return done.returncode == 0


def of_tests(name, path):
    """The same for tests: how many were tried, how many passed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "", path],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    count = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    print(f"{name}: {sum(count.values())} tried, {count.get('passed', 0)} survived", flush=True)
    return done.returncode == 0


def of_folder(folder):
    """The same for programs that somebody wrote to show a fault."""
    programs, ended = sorted(Path(folder).rglob("*.py")), []
    for program in programs:
        try:
            done = subprocess.run(
                [sys.executable, program],
                capture_output=True,
                text=True,
                cwd=program.parent,
                timeout=LIMIT,
            )
            last = (done.stdout + done.stderr).strip().splitlines()[-1:] or [""]
            ended += [program] * (done.returncode >= 0)
            print(f"  {program.name}: exit {done.returncode}: {last[0][:120]}", flush=True)
        except subprocess.TimeoutExpired:
            print(f"  {program.name}: no end after {LIMIT} s", flush=True)
    print(f"{folder}: {len(programs)} tried, {len(ended)} ended by themselves", flush=True)
    return len(ended) == len(programs)


def main(*folders):
    """All of it."""
    good = [of_script(name, *words) for name, words in SCRIPTS.items()]
    good += [of_tests(name, path) for name, path in TESTS.items()]
    good += [of_folder(folder) for folder in folders]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
