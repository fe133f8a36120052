"""Merak on emulated clusters: do real ranks take the time that `simulate` and the formulas say?

Every schedule on four stages, eight microbatches, in slow motion: the step measured against
`simulate`, the makespan against the closed form where it has a say, the idle share of every rank
against the clock's, in points. Then sub-pipelined tensor parallelism on two nodes behind one NIC
each: how much of the sums over tp every level hides, and what it gains. The paper gives 1.39 to
1.61 times for the whole system on 64 GPUs (abstract); everything here is emulated.

    python bench/bench_merak_emulated.py [steps] [schedules] [halves]
"""

import sys
import warnings

from harness import report, row

import tpviz as tv
from tpviz.labs import merak

STEPS = 3
W = tv.GPT(layers=8, hidden=96, heads=4, seq=32, batch=16, vocab=64)
WIDE = tv.GPT(layers=4, hidden=96, heads=4, seq=64, batch=16, vocab=64)
PAPER = "the paper: 1.39 to 1.61 times for the whole system on 64 GPUs, abstract"


def schedules(steps):
    """Rows of the race of schedules, all emulated."""
    cluster = tv.clusters.nvlink_pairs(pairs=2).scale_model(hidden=64, slow_motion=16)
    found = merak.schedules(W, cluster, run=99, steps=steps, simulate=True)
    for line in found.rows:
        times = line.times
        step = times["measured"].step / times["simulated"].step - 1
        yield row(f"{line.name}: step, measured against simulated", 100 * abs(step), "%", 5)
        if line.form:
            off = times["measured"].makespan / line.form - 1
            yield row(f"{line.name}: makespan against the closed form, stages unequal by "
                      f"{line.uneven:.2f}", 100 * abs(off), "%", 5)
        points = [abs(a - b) for a, b in zip(times["measured"].bubbles,
                                             times["predicted"].bubbles)]
        yield row(f"{line.name}: idle share of a rank, furthest from the clock's",
                  100 * max(points), "pts", 2)
        yield row(f"{line.name}: faithful (1) or events too short (0)",
                  float(times["measured"].faithful))
    for over in ("1f1b", "early_recompute"):
        yield row(f"shifted critical path over {over}: gain, measured",
                  100 * found.gain("shifted_critical_path", over, "measured"), "%")
    print(found.describe())


def halves(steps):
    """Rows of the levels of sub-pipelining, all emulated."""
    cluster = tv.clusters.nvswitch_nodes(2, gpus=2, nics=1).scale_model(hidden=64, slow_motion=60)
    found = merak.halves(WIDE, cluster, tp=4, run=4, steps=steps)
    for line in found.rows:
        for source, times in line.times.items():
            yield row(f"level {line.level}: sums over tp hidden, {source}", 100 * times.hidden, "%")
        if line.level:
            yield row(f"level {line.level}: gain over level 0, measured ({PAPER})",
                      100 * found.gain(line.level, "measured"), "%")
    print(found.describe())


def main():
    warnings.simplefilter("ignore")
    asked = sys.argv[1:]
    steps = next((int(word) for word in asked if word.isdigit()), STEPS)
    parts = [part for part in (schedules, halves) if part.__name__ in asked] or [schedules, halves]
    rows = [line for part in parts for line in part(steps)]
    report("merak_emulated", "Merak on emulated clusters, real ranks in slow motion", rows)
    tv.shutdown()


if __name__ == "__main__":
    main()
