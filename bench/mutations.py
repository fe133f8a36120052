"""Mutations of the package: does a test fail for each?

    python bench/mutations.py [number ...]

Each changes one line in a copy of the tree and runs the tests named for it, which must fail. Prints
what happened to each; exits with 1 where one survives.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Mutation(NamedTuple):
    """``old`` becomes ``new`` in a file of the package; ``tests`` must notice."""

    file: str
    old: str
    new: str
    tests: str


MUTATIONS = [
    # runtime
    Mutation(
        "ranks/operations.py",
        "return size * _bytes(outputs)",
        "return _bytes(outputs)",
        "tests/views/test_microscope.py tests/zoo",
    ),
    Mutation(
        "ranks/pacing.py",
        "hops * link.latency * factor",
        "hops * link.latency",
        "tests/ranks/test_pacing.py",
    ),
    Mutation(
        "ranks/pacing.py",
        "flight.end = end = real",
        "end = real",
        "tests/ranks/test_pacing.py",
    ),
    Mutation(
        "ranks/state.py",
        "torch.set_rng_state(self._random[2])",
        "pass",
        "tests/ranks/test_state.py",
    ),
    # the step, its clock and its ledger
    Mutation("core/step.py", "each * repeats, payload", "each, payload", "tests/test_cost.py"),
    Mutation(
        "cluster/clock/queues.py",
        "begin, alone = self.end, self.end <= now",
        "begin, alone = now, self.end <= now",
        "tests/test_cost.py",
    ),
    Mutation(
        "cluster/clock/queues.py",
        "if not waited and self.grows(before):",
        "if self.grows(before):",
        "tests/test_cost.py",
    ),
    Mutation(
        "cluster/clock/queues.py",
        "(begin - now, end - now, hops) for",
        "(end - now, end - now, 0.0) for",
        "tests/test_cost.py",
    ),
    Mutation(
        "cluster/clock/cost.py",
        "return Transfer(axis, latency + sending, latency, cluster.queued)",
        "return Transfer(axis, latency + sending, 0.0, cluster.queued)",
        "tests/schemes/test_scheme_costs.py",
    ),
    # schemes
    Mutation(
        "schemes/grid/operators.py",
        "        found = of_weight()\n        return finish(), found",
        "        found = of_weight()\n        return grad_x, found",
        "tests/schemes/test_megatron.py",
    ),
    Mutation(
        "schemes/zero/step.py",
        "if self.zero >= 2 or",
        "if self.zero > 2 or",
        "tests/schemes/test_data.py -k stage_two",
    ),
    Mutation(
        "schemes/zero/flat_param.py",
        "self._others() if last or self.outer else []",
        "self._others()",
        "tests/schemes/test_data.py",
    ),
    Mutation(
        "schemes/diloco/program.py",
        "nesterov=momentum > 0",
        "nesterov=False",
        "tests/schemes/test_diloco.py -k one_process",
    ),
    Mutation(
        "schemes/zero/exchange.py",
        "bucket.complete(self.phase)",
        "pass",
        "tests/schemes/test_two_levels.py",
    ),
    Mutation(
        "schemes/zero/few_bits.py",
        "most = 2 ** (bits - 1) - 1\n    blocks",
        "most = 2 ** (bits - 1)\n    blocks",
        "tests/schemes/test_few_bits.py",
    ),
    Mutation(
        "schemes/zero/exchange.py",
        'self.reshard or phase != "backward"',
        "True",
        "tests/schemes/test_data.py",
    ),
    Mutation(
        "schemes/zero/flat_param.py",
        "if self.zero >= 2:",
        "if self.zero > 2:",
        "tests/schemes/test_data.py",
    ),
    Mutation(
        "schemes/atp/strategy.py",
        'self.norm == "L2" and s > 1',
        "False",
        "tests/schemes/test_atp.py",
    ),
    Mutation(
        "schemes/axonn/weights.py",
        "            work.wait()\n            weight.add",
        "            weight.add",
        "tests/schemes/test_axonn_overlap.py tests/schemes/test_axonn.py",
    ),
    Mutation(
        "schemes/axonn/clip.py",
        ".square() / share",
        ".square()",
        "tests/schemes/test_axonn_clip.py",
    ),
    Mutation(
        "schemes/pipeline/tied_weights.py",
        "(total,) = sum_together([total], group)",
        "sum_together([total.clone()], group)",
        "tests/schemes/test_merak.py",
    ),
    Mutation(
        "schemes/t3/tracker.py",
        "if count + 1 < updates:",
        "if count < updates:",
        "tests/schemes/test_t3.py",
    ),
    Mutation(
        "core/schedules/clock.py",
        "comes = arrives[needs] + latency if",
        "comes = arrives[needs] if",
        "tests/schemes/test_merak_timing.py tests/schemes/test_merak_schedule_paths.py",
    ),
    Mutation(
        "modules/partition/division.py",
        "load**2, np.inf",
        "-load, np.inf",
        "tests/schemes/test_merak_partition.py tests/schemes/test_merak_partition_shards.py",
    ),
    # trace
    Mutation("core/trace/ledger.py", '"all_reduce": 2, ', "", "tests/core"),
    Mutation(
        "core/trace/steps.py", "np.maximum.at(end, which", "np.minimum.at(end, which", "tests/core"
    ),
    Mutation("core/trace/critical.py", "row = walk.before(row)", "row = None", "tests/core"),
]


def survives(mutation, tree):
    """Whether its tests pass all the same."""
    path = tree / "tpviz" / mutation.file
    text = path.read_text()
    if text.count(mutation.old) != 1:
        raise ValueError(
            f"{mutation.file} has {mutation.old!r} {text.count(mutation.old)} times, not once"
        )
    path.write_text(text.replace(mutation.old, mutation.new))
    try:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "", *mutation.tests.split()]
        env = {**os.environ, "PYTHONPATH": str(tree)}  # not the tree that is installed
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
    finally:
        path.write_text(text)
    last = done.stdout.strip().splitlines()[-1:] or [done.stderr.strip()[-200:]]
    print(f"{mutation.file}: {' '.join(mutation.new.split())[:60]!r}: {last[0]}", flush=True)
    if done.returncode not in (0, 1):  # 1: a test failed; others: none ran
        raise RuntimeError(f"pytest could not run {mutation.tests}: {last[0]}")
    return done.returncode == 0


def main(*numbers):
    """All of them, or those with these numbers."""
    chosen = [MUTATIONS[int(n)] for n in numbers] or MUTATIONS
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        ignored = shutil.ignore_patterns(".git", ".venv", ".versions", "out", "__pycache__")
        shutil.copytree(ROOT, tree, ignore=ignored)
        alive = [mutation for mutation in chosen if survives(mutation, tree)]
    print(f"{len(chosen)} mutations, {len(alive)} not noticed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
