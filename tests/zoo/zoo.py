"""The list of foreign programs, and how one of them is run: plainly, or recorded.

A program is a function that takes nothing, runs inside a rank, and returns (step, results): the
training step or exchange, which returns its loss, and a function that gives tensors to compare.
Its ledger, {(axis, collective): (count, payload bytes)} of one step, is worked out by hand from
shapes; where ranks differ it is a function of the rank. The bytes of what torch pickles are None:
they are no consequence of any shape.
"""

from typing import NamedTuple

import torch
import torch.distributed as dist

import tpviz as tv

RANKS = 4
READS = "cannot be captured: it reads the numbers in its tensors"
PICKLES = "cannot be captured: it exchanges Python objects"
ITEM = 8  # bytes of a float64, in which programs compute unless they say otherwise
PROGRAMS = {}


class Entry(NamedTuple):
    """A program; what to compare it with, how closely, and what refuses to emulate it."""

    build: object
    ledger: object
    emulated_tolerance: float
    refused: str
    uncaptured: str


def program(ledger, emulated_tolerance=0.0, refused="", uncaptured=""):
    """Put the decorated function into `PROGRAMS`.

    emulated_tolerance: relative; an emulated reduce-scatter adds the ranks' parts in another order
    than gloo does. refused, uncaptured: what the error says where the program cannot be emulated,
    or captured.
    """

    def add(build):
        PROGRAMS[build.__name__] = Entry(build, ledger, emulated_tolerance, refused, uncaptured)
        return build

    return add


def numbers(tensors):
    """Plain copies of tensors, DTensors made whole."""
    whole = [t.full_tensor() if hasattr(t, "full_tensor") else t for t in tensors]
    return [torch.as_tensor(t).detach().clone() for t in whole]


def gradients(*modules):
    """The gradients of modules, for a program's results."""
    return [p.grad for m in modules for p in m.parameters() if p.grad is not None]


def data(seed, *shape, dtype=torch.float64):
    """The same numbers for the same seed."""
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def on_own_data():
    """A seed of this rank's own."""
    return 100 + dist.get_rank()


def plainly(build):
    """Three steps: loss and results."""
    step, results = build()
    losses = [step() for _ in range(3)]
    return numbers([losses[-1], *results()])


def recorded(build, cluster=None):
    """The same, the third step recorded: loss and results, and the trace."""
    step, results = build()
    step(), step()
    with tv.record(cluster=cluster) as rec, rec.step():
        loss = step()
    return numbers([loss, *results()]), rec.trace


def in_turn(run, builds, *args):
    """{name: what ``run`` gives} of programs one after another on a rank; as between two jobs, none
    sees the groups of those before it."""
    from tpviz.ranks import worker

    results = {}
    for name, build in builds.items():
        results[name] = run(build, *args)
        dist.barrier()
        worker._leave_groups()
    return results


def by_axis(ledger):
    """{(axis, collective): (count, payload bytes)}, phases together."""
    pairs = {(row.axis, row.collective) for row in ledger}
    return {pair: ledger.total(axis=pair[0], collective=pair[1])[:2] for pair in pairs}
