"""``run``: train a workload on real ranks under a strategy, and see what happened as a `Trace`.

trace = tv.run(tv.Megatron(tp=2) * tv.DataParallel(dp=2), tv.GPT(), steps=3)
trace.meta["losses"], trace.ledger(), trace.step_time
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tpviz.cluster.clock.injected_faults import NONE
from tpviz.core.checks import number, one_of, whole_number
from tpviz.core.mesh import Mesh
from tpviz.core.trace import Trace
from tpviz.ranks import offsets
from tpviz.ranks.hosts import check_one_clock
from tpviz.ranks.launch import launch
from tpviz.ranks.launch import progress as report
from tpviz.ranks.recorder import DETAILS, record
from tpviz.schemes.gpt.program import LEARNING_RATE, batch_of, reference_program
from tpviz.schemes.ownership import ownership

from .checks import check_faults, check_fit
from .simulate import as_seen, check_place

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.cluster.clock.injected_faults import Faults
    from tpviz.core.workload import GPT
    from tpviz.schemes.gpt.program import Program
    from tpviz.schemes.strategy import Strategy


def run(
    strategy: "Strategy",
    workload: "GPT",
    cluster: "Cluster | None" = None,
    *,
    steps: int = 3,
    warmup: int = 1,
    lr: float = LEARNING_RATE,
    device: str | None = None,
    memory: bool = True,
    detail: str = "kernels",
    faults: "Faults | None" = None,
    timeout: float | None = 120,
    progress: Callable[[int, int, str], Any] | bool | None = None,
) -> Trace:
    """Train on ``strategy.world_size`` real ranks; returns the steps of all ranks as one `Trace`.

    Parameters
    ----------
    cluster : a `Cluster` to emulate on this machine's ranks: everything really runs, and lasts as
        long as the cluster says (badge "emulated"); None to run at this machine's own speed. A
        warning names events too short to be faithful: use ``cluster.scale_model(slow_motion=...)``.
    faults : `Faults` of the emulated cluster.
    steps, warmup : training steps that are recorded, and steps before them that are not.
    lr : learning rate of AdamW.
    device, timeout (s, of the whole call), progress : as `tpviz.launch` takes them.
    memory : also track allocations, in an extra step, since tracking slows it.
    detail : "kernels" or "all", as `tpviz.record` takes it.

    ``trace.meta`` has ``losses`` (one a training step, warm-up included; the mean over the whole
    batch), ``warmup``, ``mesh`` and ``ownership`` (what `MeshView` draws), ``strategy``,
    ``workload``, ``badge``. Raises ``ValueError`` before any rank starts if sizes do not fit, and
    ``RankError`` before any step where ranks of several hosts are to emulate a cluster.
    """
    steps, warmup = whole_number("steps", steps), whole_number("warmup", warmup, low=0)
    lr, memory = number("lr", lr, 0, 1000), one_of("memory", memory, (True, False))
    detail = one_of("detail", detail, DETAILS)
    check_fit(strategy, workload)
    pace = _check_pace(strategy, workload, cluster, faults)
    results = launch(
        _train,
        strategy,
        workload,
        steps,
        warmup,
        lr,
        memory,
        detail,
        pace,
        device=device,
        world_size=strategy.world_size,
        timeout=timeout,
        progress=progress,
    )
    traces, losses = zip(*results)
    return Trace.merge(
        traces,
        strategy=repr(strategy),
        workload=repr(workload),
        title=strategy.title(workload),
        mesh={"axes": strategy.axes},
        ownership=ownership(strategy, workload),
        losses=mean_losses(losses),
        warmup=warmup,
    )


def _check_pace(
    strategy: "Strategy", workload: "GPT", cluster: "Cluster | None", faults: "Faults | None"
) -> dict[str, Any]:
    """{"cluster", "faults"} as `tpviz.record` takes them, checked."""
    faults = check_faults(faults)
    if cluster is None:
        if faults is not NONE:
            raise ValueError("faults are those of an emulated cluster: give a cluster too")
        return {}
    check_place(strategy, workload, cluster)
    strategy.device(workload, cluster)  # raises where its memory-bound kernels are not known
    faults.check(strategy.world_size)
    return {"cluster": cluster, "faults": faults}


def train_reference(
    workload: "GPT", steps: int, *, lr: float = LEARNING_RATE, device: str = "cpu"
) -> list[float]:
    """The losses of the same training in this one process: those of `run`, up to rounding."""
    program = reference_program(workload, device=device, lr=lr)
    return [float(train_step(program, workload, step, device)) for step in range(steps)]  # pyright: ignore[reportArgumentType]


def _train(
    strategy: "Strategy",
    workload: "GPT",
    steps: int,
    warmup: int,
    lr: float,
    memory: bool,
    detail: str,
    pace: dict[str, Any],
):
    """One rank's training: (its `Trace`, its losses)."""
    if pace:
        check_one_clock()  # now, rather than after training
    program, device = program_here(strategy, workload, lr=lr)
    losses, total = [], warmup + steps + memory

    def train():
        loss = train_step(program, workload, len(losses), device)
        losses.append(loss)
        return loss

    def say():
        loss = number_of(losses[-1])
        report(len(losses), total, "training" if loss is None else f"loss {loss:.4f}")

    for _ in range(warmup):
        train()
        say()
    if pace:
        cluster = as_seen(pace["cluster"], detail)
        mine = strategy.device(workload, cluster, dist.get_rank())
        pace = {**pace, "cluster": replace(cluster, device=mine)}
    offsets.compare()
    dist.barrier()  # so that no rank's first recorded step begins with waiting for a slower start
    with record(detail=detail, **pace) as recorder:
        for _ in range(steps):
            with recorder.step():
                train()
            say()
    offsets.end()
    trace = recorder.trace
    if memory:
        with record(memory=True) as allocations, allocations.step():
            train()
        trace = Trace(trace.columns, {**trace.meta, "memory": allocations.trace.meta["memory"]})
        report(total, total, "memory seen")
    return trace, [number_of(loss) for loss in losses[: warmup + steps]]


# -- what is done on a rank: the program built on its device, and trained step by step -------------
def program_here(strategy: "Strategy", workload: "GPT", **options: Any) -> "tuple[Program, str]":
    """(this rank's program, its device) for a strategy, on the mesh it asks for."""
    device = os.environ.get("TPVIZ_DEVICE", "cpu")
    mesh = Mesh(strategy.axes).device_mesh(device)
    return strategy.build(workload, mesh, getattr(torch, workload.dtype), device, **options), device


def train_step(program: "Program", workload: "GPT", step: int, device: str) -> torch.Tensor | None:
    """One whole step, update included; its loss, a tensor: the mean over what this rank saw, or
    None where another stage of a pipeline has it."""
    loss = program.step(batch_of(workload, step, device))
    program.optimizer_step()
    return loss


def number_of(loss: torch.Tensor | None) -> float | None:
    """A step's loss as a number, None where this rank has none."""
    return None if loss is None else float(loss)


def mean_losses(losses_by_rank: Iterable[Sequence[float | None]]) -> list[float]:
    """The loss of the batch at each step: every rank that has one saw equally many tokens of it."""
    known = [losses for losses in losses_by_rank if None not in losses]
    return [sum(losses) / len(losses) for losses in zip(*known)]
