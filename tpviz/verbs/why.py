"""Why the first of a search is first, and why another is not: differences of predicted parts, what
does not fit, and bounds."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

from tpviz.cluster.profiles import framework_of
from tpviz.core.tables import show_seconds
from tpviz.schemes.strategy import Strategy

from .predict import Prediction, check, predict
from .room import check_memory

if TYPE_CHECKING:
    from tpviz.cluster import Cluster

    from .ranking import Row, Search

WORDS = {
    "sizes": "were rejected because sizes do not divide",
    "memory": "were rejected for want of memory",
    "no formula": "were rejected because they have no formula",
}


def why(found: "Search") -> list[str]:
    """Sentences about the first row: its time, how it beats its `rivals`, and whose kernels it is
    predicted with."""
    rows, others = found.rows, rivals(found.rows)
    best = rows[0]
    p = best.prediction
    how = "predicted" if best.simulated is None else "simulated"
    lines = [
        f"{best.strategy.short} is the fastest of {len(rows):,} strategies: "
        f"{show_seconds(best.step_time)} a step, {how}."
    ]
    lines += filter(None, [by_formula(rows), foreign(best.strategy, found.cluster)])
    if not others:
        shares = ", ".join(f"{show_seconds(s)} {name}" for name, s in p.parts.items() if s)
        seen = found.formulas
        known = "was found in time" if seen and seen.untried else "fits"
        return lines + [f"It spends {shares}; nothing of another kind {known}."]
    return lines + [
        f"Against {row.strategy.short} ({show_seconds(row.step_time)}) "
        f"{because(p, row.prediction)}."
        for row in others
    ]


def by_formula(rows: "Sequence[Row]") -> str:
    """A sentence where formulas put another first, or predict that some which were not simulated
    take less than the first one's simulation says; else ""."""
    best, first = rows[0], min(rows, key=lambda row: row.predicted)
    if best.simulated is None:
        return ""
    if first.predicted < best.predicted * (1 - 1e-9):
        took = "was not simulated"
        if first.simulated is not None:
            took = f"takes {show_seconds(first.simulated)}, simulated"
        return (
            f"By formula {first.strategy.short} is the first, {show_seconds(first.predicted)} "
            f"against {show_seconds(best.predicted)}; it {took}."
        )
    behind = [r for r in rows if r.simulated is None and r.predicted < best.simulated]
    if not behind:
        return ""
    return (
        f"By formula it takes {show_seconds(best.predicted)}; {len(behind):,} that were not "
        f"simulated are predicted to take less than its simulation says, as "
        f"{behind[0].strategy.short}, {show_seconds(behind[0].predicted)}."
    )


def foreign(strategy: Strategy, cluster: "Cluster") -> str:
    """A sentence where gradients or parameters are sharded as FSDP does it and the kernels of
    another framework are assumed, or a plan splits layers or matrices under FSDP's; "" else."""
    framework, dp = framework_of(cluster), getattr(strategy, "dp", 1)
    zero, fsdp = getattr(strategy, "zero", 0), framework == "FSDP"
    if framework and not fsdp and zero > 1 and dp > 1:
        return (
            f"ZeRO-{zero} is predicted with the kernels of {framework}; people run it with FSDP, "
            'whose kernels take longer: framework="FSDP" has them.'
        )
    if fsdp and dp < strategy.world_size:
        return (
            "FSDP alone has no such plan, and its kernels are assumed, PyTorch's own operators: "
            'framework="Megatron-LM" has those of a framework that has.'
        )
    return ""


def left_out(found: "Search") -> list[str]:
    """What was rejected, excluded by the bound, and not looked at, with their numbers."""
    causes = Counter()
    for rejected in found.rejected:
        causes[rejected.cause] += rejected.count
    lines = [f"{n:,} more {WORDS[cause]}." for cause, n in sorted(causes.items())]
    seen = found.formulas
    if seen and seen.excluded:
        lines.append(
            f"{seen.excluded:,} more were excluded by a lower bound of their time, "
            f"{show_seconds(seen.limit)} or longer."
        )
    if seen and seen.untried:
        bound = f"none of them takes less than {show_seconds(seen.least)}, by a lower bound; "
        lines.append(
            f"{seen.untried:,} of {seen.looked_at + seen.untried:,} strategies were not looked at "
            f"in the {found.seconds:g} s allowed: {bound * (seen.least > 0)}a larger seconds=, or "
            "None, looks at all."
        )
    return lines


def why_not(found: "Search", strategy: Strategy) -> str:
    """Implements `Search.why_not`."""
    if not isinstance(strategy, Strategy):
        raise ValueError(f"why_not needs a strategy such as tv.Megatron(tp=2), not {strategy!r}")
    name, best = strategy.short, found.rows[0]
    if strategy == best.strategy:
        return f"{name} is the first: {show_seconds(best.step_time)} a step."
    for place, row in enumerate(found.rows, 1):
        if row.strategy == strategy:
            return (
                f"{name} is number {place} of {len(found.rows)}, {show_seconds(row.step_time)} a "
                f"step: against it {best.strategy.short} takes {show_seconds(best.step_time)}, "
                f"because {because(best.prediction, row.prediction)}."
            )
    try:
        check(strategy, found.workload, found.cluster)
    except ValueError as error:
        return f"{name} was not ranked: {error}."
    try:
        training = found.asked[2] if found.asked else None
        check_memory(strategy, found.workload, found.cluster, training)
        p = predict(strategy, found.workload, found.cluster, training=training)
    except ValueError as error:
        return f"{name} was not ranked for want of memory: {error}."
    except NotImplementedError as error:
        return f"{name} was not ranked: {error}."
    return _by_bound(found, strategy, p)


def _by_bound(found, strategy, p):
    """Of one that fits: whether it was in the space, and what its bound was."""
    from .space import cells, usual

    best, seen = found.rows[0], found.formulas
    world_size, given, _ = found.asked or (strategy.world_size, None, None)
    against = (
        f"it is predicted to take {show_seconds(p.step_time)} a step and "
        f"{best.strategy.short} {show_seconds(best.predicted)}, because "
        f"{because(best.prediction, p)}"
    )
    on, by_step = (found.workload, found.cluster), found.objective == "step"
    first = usual(*on, world_size, True, given) if by_step and given else ()
    spaces = chain(first, cells(found.workload, world_size, given, not by_step))
    cell = next((c for c in spaces if c.has(strategy)), None)
    if cell is None or seen is None:
        return f"{strategy.short} was not in the space that was searched; {against}."
    choice = next(c for c in cell.choices if cell.made(c) == strategy)
    bound = max(cell.strategy.least_of_all(*on), cell.strategy.bounds(*on)(choice))
    if bound <= seen.limit:
        return f"There was no time to look at {strategy.short}: {against}."
    return (
        f"{strategy.short} was excluded by the lower bound of its time, {show_seconds(bound)} a "
        f"step, where the first plans take {show_seconds(seen.limit)} at most: {against}."
    )


def least(rows: "Sequence[Row]") -> list[str]:
    """As `why`, for the objective "communication": the first, the next, the fastest step."""
    best = rows[0]
    lines = [
        "Ranked by communication alone, the schemes' own formulas: "
        f"{best.strategy.short} is the first of {len(rows)} strategies, "
        f"{show_seconds(best.communication)} a step."  # pyright: ignore[reportArgumentType]
    ]
    more = (row for row in rows if row.communication > best.communication * (1 + 1e-9))  # pyright: ignore[reportOptionalOperand]
    lines += [
        f"The next that sends longer is {row.strategy.short}, {show_seconds(row.communication)}."  # pyright: ignore[reportArgumentType]
        for row in islice(more, 1)
    ]
    fastest = min(rows, key=lambda row: row.predicted)
    same = fastest.predicted >= best.predicted * (1 - 1e-9)
    lines.append(
        "Its whole step is predicted to take "
        f"{show_seconds(best.predicted)}, "
        + (
            "the least of all."
            if same
            else f"that of {fastest.strategy.short} {show_seconds(fastest.predicted)}."
        )
    )
    return lines


def kind(strategy: "Strategy") -> tuple[str, ...]:
    """The axes of more than one rank; strategies with the same axes are of one kind."""
    return tuple(axis for axis, size in strategy.axes.items() if size > 1)


def because(mine: "Prediction", other: "Prediction") -> str:
    """ "it spends 3.1 ms less in exposed communication on dp, but 1 ms more in compute".

    Parts are compute, each axis's exposed communication (latency included) and bubble, so the
    differences sum to that of the predicted steps. Those below a tenth of the largest go unsaid.
    """
    gains = sorted(_differences(mine, other).items(), key=lambda item: -abs(item[1]))
    gains = [(name, s) for name, s in gains if abs(s) >= 0.1 * abs(gains[0][1]) and s]
    less = [f"{show_seconds(s)} less in {name}" for name, s in gains if s > 0]
    more = [f"{show_seconds(-s)} more in {name}" for name, s in gains if s < 0]
    if not gains:
        return "the formulas see no difference"
    faster = mine.step_time <= other.step_time
    words = [_join(half) for half in ((less, more) if faster else (more, less)) if half]
    end = "" if faster else ", by formula; the simulation puts it first because links are shared"
    return f"it spends {', but '.join(words)}{end}"


def _differences(mine, other):
    """{part: seconds that ``mine`` spends less}."""
    found = {"compute": other.parts["compute"] - mine.parts["compute"]}
    for axis in dict.fromkeys((*other.exposed, *mine.exposed)):
        found[f"exposed communication on {axis}"] = other.exposed.get(axis, 0.0) - mine.exposed.get(
            axis, 0.0
        )
    return found | {"bubble": other.parts["bubble"] - mine.parts["bubble"]}


def rivals(rows: "Sequence[Row]") -> "list[Row]":
    """The best row whose `kind` differs from the winner's, and the best of each one-axis kind."""
    seen, found = {kind(rows[0].strategy)}, []
    for row in rows:
        this = kind(row.strategy)
        if this not in seen and (not found or len(this) <= 1):
            found.append(row)
        seen.add(this)
    return found


def _join(words):
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
