"""Merak on emulated clusters: do real ranks take the time that `simulate` and the formulas say?

Every schedule on four equal stages and eight microbatches, in slow motion: the step beside
`simulate`; the makespan and the idle share of every rank beside the closed forms, where they have a
say; microbatches in flight, and bytes of activations, beside what is derived. Plain schedules
recompute everything, those with a split backward nothing. Then sub-pipelined tensor parallelism on
two nodes behind one NIC each: what every level hides of the sums over tp, and what it gains.

The paper gives 1.39 to 1.61 times for the whole system on 64 GPUs (abstract); everything measured
here is emulated, and only parts of it. A run in which something disturbed this machine is repeated
once. Exits with 1 where a figure is above its bound.

    python bench/bench_merak_emulated.py [steps] [schedules] [halves]
"""

import sys
import warnings

from harness import report, row

import tpviz as tv
from tpviz.core.charts import words_of
from tpviz.evidence import merak
from tpviz.evidence.merak.claims import told
from tpviz.schemes.merak.paper import makespan_saved

STEPS = 3
# Both ends are next to nothing beside a block, so that stages are equal, as closed forms have them.
W = tv.GPT(layers=8, hidden=96, heads=4, seq=32, batch=16, vocab=16)
WIDE = tv.GPT(layers=4, hidden=96, heads=4, seq=64, batch=16, vocab=64)
SPLIT = ("zb_h1", "zb_v", "dualpipe_v")
PP, MICROBATCHES = 4, 8


def schedules(steps):
    """Rows of the race of schedules, all emulated."""
    cluster = tv.clusters.nvswitch(PP).scale_model(hidden=64, slow_motion=32)
    plain = [name for name in merak.scheduling.SCHEDULES if name not in SPLIT]
    for names, recompute in ((plain, "full"), (SPLIT, "none")):
        found = merak.schedules(
            W,
            cluster,
            names,
            PP,
            MICROBATCHES,
            recompute=recompute,
            run=len(names),
            steps=steps,
            simulate=True,
        )
        late = [line.name for line in found.rows if not line.times["measured"].faithful]
        if late:
            again = merak.schedules(
                W, cluster, late, PP, MICROBATCHES, recompute=recompute, run=len(late), steps=steps
            )
            for name in late:
                found.at(name).times["measured"] = again.at(name).times["measured"]
        yield row(
            f"recompute {recompute}: runs repeated, events were too short for this machine",
            len(late),
        )
        print(found.describe(), flush=True)
        for line in found.rows:
            yield from one_schedule(line, recompute)
        if recompute == "full":
            yield from shifted(found)


def one_schedule(line, recompute):
    """Rows of one schedule."""
    predicted, simulated, measured = (
        line.times[source] for source in ("predicted", "simulated", "measured")
    )
    yield row(
        f"{line.name}, recompute {recompute}: step, emulated; not as simulated by",
        100 * abs(measured.step / simulated.step - 1),
        "%",
        5,
    )
    if line.form:
        yield row(
            f"  makespan, not as the closed form's (stages unequal by {line.uneven:.3f})",
            100 * abs(measured.makespan / line.form - 1),
            "%",
            5,
        )
    yield row(
        "  idle share of a rank, furthest from the "
        + ("closed form's" if line.idle else "clock's: no closed form here"),
        100 * _furthest(measured.bubbles, line.idle or predicted.bubbles),
        "pts",
        2,
    )
    flight = " ".join(map(str, measured.flight))
    yield row(
        f"  microbatches in flight, {flight}: ranks with others than derived",
        sum(a != b for a, b in zip(measured.flight, predicted.flight)),
        "",
        0,
    )
    ratios = [a / b for a, b in zip(measured.activations, predicted.activations)]
    yield row(
        "  activations of a rank, tracked, furthest from derived",
        100 * _furthest(ratios, (1,) * len(ratios)),
        "%",
        12,
    )
    yield row("  events too short for this machine", not measured.faithful, "", 0)


def _furthest(these, those):
    return max(abs(a - b) for a, b in zip(these, those))


def shifted(found):
    """Rows of what the shifted critical path gains, beside what can be expected."""
    for over in ("1f1b", "early_recompute"):
        for source in ("simulated", "measured"):
            yield row(
                f"shifted critical path over {over}: gain, {words_of(source)}",
                100 * found.gain("shifted_critical_path", over, source),
                "%",
            )
    saved = makespan_saved(PP, MICROBATCHES)
    assert saved is not None
    yield row("  over early_recompute: gain expected (derived)", 100 * saved / (1 - saved), "%")


def halves(steps):
    """Rows of the levels of sub-pipelining, all emulated."""
    cluster = tv.clusters.nvswitch_nodes(2, gpus=2, nics=1).scale_model(hidden=64, slow_motion=100)
    found = merak.halves(WIDE, cluster, tp=4, run=4, steps=steps)
    print(found.describe(), flush=True)
    for line in found.rows:
        for source, times in line.times.items():
            badge, bounded = words_of(source), (line.level, source) == (2, "measured")
            yield row(
                f"level {line.level}: part of the sums over tp that kernels wait for, {badge}",
                100 * (1 - times.hidden),
                "%",
                50 if bounded else None,
            )
            if line.level:
                yield row(
                    f"  gain over level 0, {badge}", 100 * found.gain(line.level, source), "%"
                )
        yield row("  events too short for this machine", not line.times["measured"].faithful, "", 0)


def main():
    warnings.simplefilter("ignore")  # what a run warns of is a row here
    asked = sys.argv[1:]
    steps = next((int(word) for word in asked if word.isdigit()), STEPS)
    parts = [part for part in (schedules, halves) if part.__name__ in asked] or [schedules, halves]
    rows = [line for part in parts for line in part(steps)]
    report("merak_emulated", "Merak on emulated clusters, real ranks in slow motion", rows)
    print(*told(), sep="\n")
    tv.shutdown()
    return any(not line["ok"] for line in rows)


if __name__ == "__main__":
    sys.exit(main())
