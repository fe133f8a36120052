"""Pipelines: the schedules of torch.distributed.pipelining, and one by hand.

A stage is one Linear. Each of the 8 microbatches crosses every boundary between stages forward, and
its gradient backward. So what a rank sends and receives follows from where its stages lie.
"""

import torch
import torch.distributed as dist
from torch import nn
from zoo import ITEM, RANKS, READS, data, gradients, program
from zoo_models import WIDTH

MICROBATCHES, ROWS = 8, 2
MESSAGE = ROWS * WIDTH * ITEM


def _ledger(stages_of):
    """Of stages_of(rank): a message for every neighbour of a stage that lies on another rank."""

    def ledger(rank):
        mine = stages_of(rank)
        last = len(mine) * RANKS - 1
        neighbours = [n for s in mine for n in (s - 1, s + 1) if 0 <= n <= last and n not in mine]
        count = MICROBATCHES * len(neighbours)
        return {("world", way): (count, count * MESSAGE) for way in ("send", "recv")}

    return ledger


def _one(rank):
    return [rank]


def _loop(rank):
    return [rank, rank + RANKS]


def _v(rank):
    return [rank, 2 * RANKS - 1 - rank]


def _pipeline(name, stages_of):
    from torch.distributed.pipelining import PipelineStage, schedules

    mine = stages_of(dist.get_rank())
    count, stages, layers = len(mine) * RANKS, [], []
    for index in mine:
        torch.manual_seed(index)
        layers.append(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double())
        stages.append(PipelineStage(layers[-1], index, count, torch.device("cpu")))
    schedule = getattr(schedules, name)(
        stages if len(mine) > 1 else stages[0],
        MICROBATCHES,
        loss_fn=lambda y, target: (y - target).square().mean(),
    )
    x, target = (data(i, MICROBATCHES * ROWS, WIDTH) for i in range(2))
    inputs = (x,) if 0 in mine else ()
    outputs = {"target": target} if count - 1 in mine else {}

    def step():
        for layer in layers:
            layer.zero_grad()
        losses = []
        schedule.step(*inputs, losses=losses, **outputs)
        return torch.stack(losses).mean() if losses else torch.zeros(())

    return step, lambda: gradients(*layers)


@program(_ledger(_one), uncaptured=READS)
def gpipe():
    return _pipeline("ScheduleGPipe", _one)


@program(_ledger(_one), uncaptured=READS)
def one_forward_one_backward():
    return _pipeline("Schedule1F1B", _one)


@program(_ledger(_loop), uncaptured=READS)
def interleaved():
    return _pipeline("ScheduleInterleaved1F1B", _loop)


@program(_ledger(_loop), uncaptured=READS)
def looped_breadth_first():
    return _pipeline("ScheduleLoopedBFS", _loop)


@program(_ledger(_loop), uncaptured=READS)
def interleaved_zero_bubble():
    return _pipeline("ScheduleInterleavedZeroBubble", _loop)


@program(_ledger(_v), uncaptured=READS)
def zero_bubble_v():
    return _pipeline("ScheduleZBVZeroBubble", _v)


@program(_ledger(_v), uncaptured=READS)
def dual_pipe_v():
    return _pipeline("ScheduleDualPipeV", _v)


@program(_ledger(_one))
def pipeline_by_hand():
    """All forwards, then all backwards, with blocking messages that bear the microbatch's tag."""
    rank = dist.get_rank()
    torch.manual_seed(rank)
    layer, x = nn.Linear(WIDTH, WIDTH).double(), data(1, MICROBATCHES, ROWS, WIDTH)

    def received(source, tag):
        message = torch.empty(ROWS, WIDTH, dtype=torch.float64)
        dist.recv(message, source, tag=tag)
        return message

    def step():
        layer.zero_grad()
        ends, total = [], torch.zeros(())
        for tag in range(MICROBATCHES):
            into = (received(rank - 1, tag) if rank else x[tag].clone()).requires_grad_()
            out = layer(into)
            ends.append((into, out))
            if rank < RANKS - 1:
                dist.send(out.detach(), rank + 1, tag=tag)
        for tag, (into, out) in enumerate(ends):
            if rank < RANKS - 1:
                out.backward(received(rank + 1, tag))
            else:
                loss = out.square().mean()
                loss.backward()
                total = total + loss.detach()
            if rank:
                dist.send(into.grad, rank - 1, tag=tag)
        return total

    return step, lambda: gradients(layer)
