"""Runs the learner's function on real ranks under the recorder: an `Attempt` per case. A function
of numbers alone is asked on one rank."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tpviz.core.mesh import Mesh
from tpviz.core.trace import Trace
from tpviz.core.trace.members import members_text
from tpviz.ranks.launch import launch
from tpviz.ranks.operations import PEER
from tpviz.ranks.recorder import record

from .answers import answers
from .checks import Attempt, Case, RankProgram
from .formula import Question


def run(
    exercise: RankProgram,
    fn: Callable[..., Any],
    axes: dict[str, int],
    cases: Sequence[Case],
    timeout: float,
) -> tuple[list[Attempt], Trace]:
    """Run ``fn`` once per case on a world laid out as ``axes``; returns (attempts, trace of them
    all)."""
    inputs = [case.inputs for case in cases]
    results = launch(_in_rank, fn, inputs, axes, world_size=Mesh(axes).size, timeout=timeout)
    return attempts_of(exercise, axes, cases, results)


def attempts_of(
    exercise: RankProgram,
    axes: dict[str, int],
    cases: Sequence[Case],
    results: Sequence[tuple[list[tuple[Any, int]], Trace]],
) -> tuple[list[Attempt], Trace]:
    """(attempts, trace) from what the ranks returned."""
    trace = _named(Trace.merge([part for _, part in results], mesh={"axes": axes}), axes)
    steps = trace.steps
    attempts = [
        _attempt(
            exercise, axes, case, [seen[i] for seen, _ in results], trace.select(step=steps[i])
        )
        for i, case in enumerate(cases)
    ]
    return attempts, trace


def _named(trace, axes):
    """The trace with groups that the function made by itself called after the axis that has these
    ranks, or after the ranks; the recorder calls each of them "world"."""
    known = {members_text(group): axis for axis in axes for group in Mesh(axes).groups(axis)}
    known[members_text(range(Mesh(axes).size))] = "world" if len(axes) > 1 else next(iter(axes))
    own = (trace["kind"] == "comm") & ~np.isin(trace["axis"], list(axes))
    own &= ~np.isin(trace["name"], list(PEER))
    names = [
        known.get(members, f"ranks {members}") if there else axis
        for members, axis, there in zip(trace["members"].tolist(), trace["axis"].tolist(), own)
    ]
    return Trace({**trace.columns, "axis": np.array(names, str)}, trace.meta)


def _attempt(exercise, axes, case, seen, trace):
    """The facts of one case from (output, groups made) of each rank and its part of the trace."""
    outputs, groups = zip(*seen)
    ranks = range(len(outputs))
    ledgers = [trace.ledger(rank=rank) for rank in ranks]
    flops = [int(trace.select(rank=rank)["flops"].sum()) for rank in ranks]
    comm = trace.select(kind="comm")
    waited = np.isin(comm["id"], trace["waits_for"])
    busiest = max(ledgers, key=lambda ledger: ledger.total()[::-1])
    return Attempt(
        axes,
        case,
        list(outputs),
        busiest,
        exercise.needed(axes, case),
        flops=max(flops),
        unwaited=tuple(np.unique(comm["name"][~waited]).tolist()),
        groups=groups,
        trace=trace,
    )


def ask(fn: Callable[..., Any], questions: Sequence[Question], timeout: float) -> list[Any]:
    """The answers of ``fn`` to the arguments of each `formula.Question`.

    It runs on a rank, so that an endless function can be stopped.
    """
    arguments = [list(question.arguments.values()) for question in questions]
    return launch(_in_rank_0, fn, arguments, timeout=timeout)[0]


def _in_rank_0(fn, arguments):
    return answers(fn, arguments) if dist.get_rank() == 0 else []


def _in_rank(fn, inputs, axes):
    """Runs on every rank: all cases, one recorded step each."""
    mesh = []
    if list(axes) != ["world"]:
        mesh = [init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))]
    rank, seen, world = dist.get_rank(), [], dist.distributed_c10d._world
    with record() as rec:
        for case in inputs:
            tensors = [torch.from_numpy(array.copy()) for array in case[rank]]
            made = world.group_count  # of groups whose names are numbers: equal on all ranks
            with rec.step():
                output = _plain(fn(*tensors, *mesh))  # waits, if it is what a collective returned
            seen.append((output, world.group_count - made))
    for axis in axes if mesh else ():
        # Ends what was never waited for: its last reference to the group must not be its thread's.
        dist.barrier(mesh[0].get_group(axis))
    return seen, rec.trace


def _plain(value):
    """A tensor as an array; of anything else, a description."""
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    try:
        value = value.detach().cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    except (TypeError, RuntimeError):  # sparse, on no device, ...
        return f"a tensor of {value.dtype}, {value.layout}, on {value.device}"
