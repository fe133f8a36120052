"""Runs the learner's function on real ranks under the recorder: an `Attempt` per case. A function
of numbers alone is asked on one rank."""

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from ..runtime.launch import launch
from ..runtime.recorder import record
from ..trace import Trace
from .attempt import Attempt
from .formula import NoAnswer


def run(exercise, fn, axes, cases, timeout):
    """Run ``fn`` once per case on a world laid out as ``axes``; returns (attempts, trace of them
    all)."""
    size = int(np.prod(list(axes.values())))
    inputs = [case.inputs for case in cases]
    results = launch(_in_rank, fn, inputs, axes, world_size=size, timeout=timeout)
    trace = Trace.merge([part for _, part in results], mesh={"axes": axes})
    steps = trace.steps
    return [_attempt(exercise, axes, case, [outputs[i] for outputs, _ in results],
                     trace.select(step=steps[i])) for i, case in enumerate(cases)], trace


def _attempt(exercise, axes, case, outputs, trace):
    """The facts of one case from its outputs and its part of the trace."""
    ranks = range(len(outputs))
    ledgers = [trace.ledger(rank=rank) for rank in ranks]
    flops = [int(trace.select(rank=rank)["flops"].sum()) for rank in ranks]
    comm = trace.select(kind="comm")
    waited = np.isin(comm["id"], trace["waits_for"])
    busiest = max(ledgers, key=lambda ledger: ledger.total()[::-1])
    return Attempt(axes, case, outputs, busiest, exercise.needs(axes, case), flops=max(flops),
                   unwaited=tuple(np.unique(comm["name"][~waited]).tolist()), trace=trace)


def ask(fn, questions, timeout):
    """What ``fn`` answers to the arguments of each `formula.Question`.

    It runs on a rank, so that a function without an end can be stopped.
    """
    arguments = [list(question.arguments.values()) for question in questions]
    return launch(_in_rank_0, fn, arguments, timeout=timeout)[0]


def _in_rank_0(fn, questions):
    answers = []
    for arguments in questions if dist.get_rank() == 0 else ():
        answers.append(_bare(fn(*arguments)))
    return answers


def _bare(value):
    """Numbers, names, and tuples of numbers as they are; of anything else, a `NoAnswer`."""
    array = isinstance(value, (np.ndarray, torch.Tensor)) and np.ndim(value)
    if array or isinstance(value, (tuple, list, range, set)):  # np.ndim refuses unequal parts
        return tuple(map(_bare, value))
    if isinstance(value, (np.generic, torch.Tensor)):
        return value.item()
    known = isinstance(value, (int, float, str)) and not isinstance(value, bool)
    return value if known else NoAnswer(type(value).__name__)


def _in_rank(fn, inputs, axes):
    """Runs on every rank: all cases, one recorded step each."""
    mesh = []
    if list(axes) != ["world"]:
        mesh = [init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))]
    rank, outputs = dist.get_rank(), []
    with record() as rec:
        for case in inputs:
            tensors = [torch.from_numpy(array.copy()) for array in case[rank]]
            with rec.step():
                outputs.append(_plain(fn(*tensors, *mesh)))
    for axis in axes if mesh else ():
        # Ends what was never waited for: its last reference to the group must not be its thread's.
        dist.barrier(mesh[0].get_group(axis))
    return outputs, rec.trace


def _plain(value):
    """A tensor as an array; of anything else, the name of its type."""
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else type(value).__name__
