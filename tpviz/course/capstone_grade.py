"""Grades of the capstone: every number of a submission recomputed, and the best plan looked for."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import nan
from types import MappingProxyType
from typing import Any

import numpy as np

from tpviz.cluster import Cluster
from tpviz.cluster.clusters import nvswitch_nodes
from tpviz.core.checks import whole_number
from tpviz.core.tables import show_bytes, show_seconds
from tpviz.core.workload import GPT
from tpviz.evidence.layouts import Layouts, Turn, measured, parts
from tpviz.evidence.layouts.why import EXPOSED
from tpviz.schemes.strategy import Strategy
from tpviz.schemes.zero.strategy import DataParallel
from tpviz.verbs.compare import Comparison
from tpviz.verbs.predict import predict
from tpviz.verbs.ranking import Row
from tpviz.verbs.room import check_memory
from tpviz.verbs.search import search
from tpviz.verbs.simulate import simulate

from .marks import AskedNumber, Mark, Marks, mark_sent, of_plan, share

SHAPES = (2, 4), (4, 2), (2, 8), (4, 4)
"""(nodes, devices of a node) of the described clusters, by seed."""
SCHEMES = "Megatron", "DataParallel", "Merak"
"""What the best plan is looked for among, with their products: the schemes of the course."""
GROUPS = ("llama-1B", 512), ("llama-1B", 256), ("llama-3B", 256), ("llama-1B", 128)
"""(published model, GPUs), by seed; no coefficient was fitted on the first and the third. Each has
several layouts that pass."""
WAITS = "bandwidth wait", "latency wait"
MILLI = "That is in ms: times are asked for in seconds."
PER_CENT = "That is in per cent: a share of 1 is asked for."
MEGA = "That is in MB: sizes are asked for in bytes."


def described(seed: int = 0) -> tuple[GPT, Cluster]:
    """(workload, cluster) of `capstone_cluster`: nodes of H100s with one NIC each, 8 or 16 devices
    in all, as a scale model in which data parallelism alone does not fit into memory."""
    rng, (nodes, gpus) = np.random.default_rng(seed), SHAPES[seed % len(SHAPES)]
    hidden, batch = rng.choice([12, 16, 24]).item(), rng.choice([16, 32]).item()
    workload = GPT(layers=4, hidden=64, heads=8, seq=64, batch=batch)
    cluster = nvswitch_nodes(nodes, gpus, nics=1).scale_model(hidden=hidden)
    most = DataParallel(dp=cluster.size).memory(workload).total
    memory = round(rng.uniform(0.65, 0.75) * most, -5)
    return workload, replace(cluster, device=replace(cluster.device, memory=memory))


@lru_cache
def best_plan(seed: int) -> Row:
    """The fastest plan of `SCHEMES` on a described cluster, as `tpviz.search` finds it."""
    return search(*described(seed), SCHEMES, top=3, seconds=None).rows[0]


# --- capstone_cluster ---
def mark_cluster(answer: Mapping[str, Any], seed: int) -> Marks:
    """The `Marks` of a plan for a described cluster and of the numbers that explain it."""
    workload, cluster = described(seed)
    plan, best = answer.get("plan"), best_plan(seed)
    if not isinstance(plan, Strategy):
        words = "Give a strategy, such as tv.DataParallel(dp=8, zero=3), not"
        return Marks((Mark("plan", 0.0, 100.0, f"{words} a {type(plan).__name__}."),))
    try:
        step = simulate(plan, workload, cluster).step_time
    except Exception as error:  # of the learner's own code too, where the plan is a tv.Custom
        return Marks((Mark("plan", 0.0, 100.0, f"It cannot be simulated: {error}"),), plan.short)
    try:
        foreseen = predict(plan, workload, cluster)
        problem = _too_large(plan, workload, cluster)
    except NotImplementedError:
        foreseen, problem = None, ""
    marks = [Mark("plan", 0.0, 30.0, problem)]
    if not problem:
        marks = [of_plan("plan", best.step_time, step, 30.0)]
    ran = _run(answer.get("run"), plan, workload, cluster)
    slow = ran.cluster.slow_motion / cluster.slow_motion if isinstance(ran, Comparison) else 1.0
    numbers = _numbers(foreseen, slow) if foreseen else []
    numbers.append(AskedNumber("simulated", step, show_seconds, _times(step, slow)))
    if isinstance(ran, Comparison):
        numbers.append(_residual(ran, slow))
    marks += [number.mark(answer, 10.0) for number in numbers]
    if foreseen:
        wire, payload = _by_axis(foreseen.ledger())
        marks.append(mark_sent(answer.get("sent"), wire, payload, 10.0))
    if isinstance(ran, Comparison):
        marks.append(Mark("run", 10.0, 10.0))
    else:
        marks += [Mark("run", 0.0, 10.0, ran), Mark("residual", 0.0, 10.0, "It needs the run.")]
    regret = None if problem else max(0.0, step / best.step_time - 1)
    return Marks(tuple(marks), plan.short, regret, {n.name: n.value for n in numbers})


def _too_large(plan, workload, cluster):
    try:
        check_memory(plan, workload, cluster)
    except ValueError as error:
        return f"It does not fit: {error}."
    return ""


def _times(seconds, slow):
    slower = {"That is in slow motion: divide it by the factor.": seconds * slow}
    return {MILLI: 1e3 * seconds, **(slower if slow != 1 else {})}


def _numbers(foreseen, slow):
    """What formulas say of a plan, as numbers that are asked for."""
    step, memory = foreseen.step_time, foreseen.memory()
    waiting = sum(foreseen.parts[name] for name in WAITS)
    ranks = foreseen.strategy.world_size
    bandwidth = {
        "That is the bandwidth's share: the wait for latency is exposed too.": (
            foreseen.parts["bandwidth wait"] / step
        )
    }
    hidden = "That is the hidden share of communication: which share of the step is exposed?"
    more = bandwidth, {hidden: foreseen.overlap}
    kinds = {MEGA: memory.total / 1e6, "That is of all ranks.": ranks * memory.total}
    return [
        AskedNumber("predicted", step, show_seconds, _times(step, slow)),
        _exposed(waiting, step, foreseen.parts["compute"], *more),
        _memory(memory, kinds),
    ]


def _exposed(waiting, step, busy, first, last: Mapping[str, float] = MappingProxyType({})):
    """The share of a step that is exposed communication; first, last : other mistakes."""
    mistakes = {
        PER_CENT: 100 * waiting / step,
        "That is in seconds: divide by the step.": waiting,
        **first,
        "The bubble is no communication: leave it out.": 1 - busy / step,
        **last,
    }
    return AskedNumber("exposed", waiting / step, share, mistakes)


def _memory(kinds, more, hint=""):
    """The sum of {kind: bytes}; more : mistakes beside its parts. hint : after what is counted."""
    mistakes = more | _parts_of(kinds)
    hint = f"{_counted(kinds)} {hint}".rstrip()
    return AskedNumber("memory", sum(kinds.values()), show_bytes, mistakes, hint=hint)


def _parts_of(memory):
    """What of {kind: bytes} may be given for its sum, as mistakes."""
    alone = {f"That is its {kind} alone; add up all kinds.": n for kind, n in memory.items()}
    states = sum(memory.values()) - memory["activations"]
    return {"That is without activations; add up all kinds.": states, **alone}


def _counted(memory):
    """What {kind: bytes} counts, in words."""
    return f"Counted are {', '.join(f'{k} {show_bytes(n)}' for k, n in memory.items() if n)}."


def _by_axis(ledger):
    """({axis: bytes on the wire}, {axis: payload}) of the axes on which a rank sends."""
    wire, payload = {}, {}
    for row in ledger:
        wire[row.axis] = wire.get(row.axis, 0.0) + row.wire_bytes
        payload[row.axis] = payload.get(row.axis, 0.0) + row.payload_bytes
    return {axis: size for axis, size in wire.items() if size}, payload


def _run(run, plan, workload, cluster):
    """The `Comparison`, or what is wrong with it as evidence of an emulated run."""
    make = "tv.compare(plan, workload, tv.in_slow_motion(plan, workload, cluster))"
    if run is None:
        return f"Not given: {make}."
    if not isinstance(run, Comparison):
        return f"A comparison is asked for, not a {type(run).__name__}: {make}."
    if run.strategy != plan or run.workload != workload:
        return f"It is of {run.strategy.short} on {run.workload.short}, and not of your plan."
    slow = run.cluster.slow_motion / cluster.slow_motion
    if run.cluster not in (cluster, cluster.scale_model(slow_motion=slow)):
        return f"It is on another cluster, {run.cluster.caption}: {make}."
    if run.measured is None or "emulated" not in run.measured.badge:
        return "It has no emulated run: use run=True and emulate=True, their defaults."
    return run


def _residual(run, slow):
    """Seconds that the measured step takes longer than the simulated one, at full speed. No two
    runs have the same, so it is asked for within a tenth of itself: 0 is no answer."""
    longer = run.measured.step_time - run.simulated.step_time
    return AskedNumber(
        "residual",
        longer / slow,
        show_seconds,
        {
            "That is in slow motion: divide it by the factor.": longer,
            "Each run has its own residual: read it from the one that you hand in, as "
            "`(run.residual.measured - run.residual.simulated) / slow motion`.": 0.0,
            "The sign: it is what the measured step takes longer.": -longer / slow,
            "That is a ratio: the difference is asked for.": run.measured.step_time
            / run.simulated.step_time,
            "That is the measured step: subtract the simulated one.": run.measured.step_time / slow,
            MILLI: 1e3 * longer / slow,
        },
        room=abs(longer / slow) / 10,
        hint="Read it from the run that you hand in, `run.residual.measured - "
        "run.residual.simulated`, and divide by the slow motion.",
    )


# --- capstone_published ---
@lru_cache
def group_of(seed: int) -> Layouts:
    """The measured layouts of `capstone_published`."""
    model, gpus = GROUPS[seed % len(GROUPS)]
    return measured(model, gpus)


def mark_published(answer: Mapping[str, Any], seed: int) -> Marks:
    """The `Marks` of a layout that others measured, and of what is predicted of it."""
    group, layout = group_of(seed), answer.get("layout")
    try:
        points = _points(group, layout)
    except ValueError as error:
        return Marks((Mark("layout", 0.0, 100.0, str(error)),))
    turn, own = Turn(group, points, covered=True), sum(p.measured for p in points) / len(points)
    split, kinds = parts(points[0]), turn.memory()
    plan, step = points[0].plan, sum(split.values())
    exposed = sum(s for name, s in split.items() if name.startswith(EXPOSED))
    busy, idle = split["compute"], split["bubble"]
    one_type = sum(plan.strategy.memory(plan.workload).values())
    types = "That is `strategy.memory`, which has one type for all; mixed precision has several."
    alone = {"That is in GB.": sum(kinds.values()) / 1e9, f"{types} {_counted(kinds)}": one_type}
    bubble = {PER_CENT: 100 * idle / step, "That is in seconds.": idle}
    numbers = [
        AskedNumber("predicted", step, show_seconds, {MILLI: 1e3 * step, "That is measured.": own}),
        _exposed(exposed, step, busy, {"Compute is the rest: you have its share.": busy / step}),
        AskedNumber("bubble", idle / step, share, bubble, room=1e-6),
        _memory(kinds, alone, "It is the GPU that needs most, in mixed precision."),
    ]
    sent = turn.sent()
    payload = _by_axis(plan.strategy.ledger(plan.workload))[1]
    of_layout = of_plan("layout", group.fastest.measured, own, 50.0)
    if own > group.fastest.measured and points[0].predicted <= min(
        point.predicted for point in group.points
    ):
        words = "It is the layout that is predicted fastest: you trust the prediction, which here"
        of_layout = of_layout._replace(
            words=f"{of_layout.words} {words} leaves out what costs most. Look at what that is."
        )
    if own > 2 * group.fastest.measured:
        most = f"{of_layout.points + 50:.3g} of 100"
        words = f"{of_layout.words} The layout's regret is what costs: with all numbers right it "
        of_layout = of_layout._replace(words=f"{words}has {most} points, too few to pass.")
    marks = [
        of_layout,
        *(number.mark(answer, 10.0) for number in numbers),
        mark_sent(answer.get("sent"), sent, {a: payload.get(a, nan) for a in sent}, 10.0),
    ]
    figures = {n.name: n.value for n in numbers} | {"measured": own, "residual": own - step}
    return Marks(tuple(marks), turn.layout, group.regret(points), figures)


def _points(group, layout):
    """The runs of one layout. Raises ``ValueError`` where there is none, or several layouts."""
    knobs = ", ".join(group.knobs)
    if not isinstance(layout, Mapping):
        raise ValueError(f"Give a dict of {knobs}, not a {type(layout).__name__}.")
    if wrong := [name for name in layout if name not in group.knobs]:
        raise ValueError(f"{wrong[0]!r:.40} is no part of a layout: give a dict of {knobs}.")
    if missing := [name for name in group.knobs if name not in layout]:
        raise ValueError(f"It lacks {', '.join(missing)}.")
    whole = {name: whole_number(name, value, 0) for name, value in layout.items()}
    return tuple(group.at(**whole))
