"""A rank's Merak program: its stages of a GPT, split over tp as Megatron's, in microbatches.

Where the embedding and the head share their weight, first and last stage have a copy each, and
their gradients are added up before those of all replicas are.
"""

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from tpviz.labels import label
from tpviz.mesh import Mesh
from tpviz.schemes.collectives import part_of, sum_together
from tpviz.schemes.gpt.program import LEARNING_RATE, Program, adamw, gather, load_parts
from tpviz.schemes.gpt.vocabulary import ParallelEmbedding, cross_entropy
from tpviz.schemes.megatron.layers import ColumnParallelLinear, RowParallelLinear
from tpviz.schemes.megatron.program import ParallelBlock

from . import subpipeline
from .executor import Executor
from .messages import Messages, Routes
from .split import layers_of, stage_of
from .stage import Runner, Stage

TOKENS, HEAD = "embed.token.weight", "head.weight"


class GPTStage(Stage):
    """Some blocks of a GPT, with the reference's names; the first stage embeds, the last one has
    the loss."""

    def __init__(self, w, number, stages, group, level=0, **kw):
        super().__init__()
        self.number, self.group = number, group
        self.level = level if group.size() > 1 else 0
        self.receives = [((w.batch, w.seq, w.hidden), kw["dtype"])] if number else []
        if number == 0:
            self.embed = ParallelEmbedding(w, group, False, **kw)
        halves = 2 if level == 1 and w.batch > 1 else 1
        self.blocks = nn.ModuleDict({str(i): ParallelBlock(w, group, False, halves, **kw)
                                     for i in layers_of(w.layers, stages)[number]})
        for layer in self.blocks.modules():
            if isinstance(layer, ColumnParallelLinear):
                layer.bare, layer.chunks = self.level > 1, halves
            elif isinstance(layer, RowParallelLinear):
                layer.bare = self.level > 1
        if number == stages - 1:
            self.norm = nn.LayerNorm(w.hidden, **kw)
            self.head = ColumnParallelLinear(w.hidden, w.vocab, group, False, bias=False, **kw)

    def begin(self, received, inputs):
        return received if self.number else (self.embed(inputs[0]),)

    def run(self, values, start, stop):
        (x,), blocks = values, list(self.blocks.values())[start:stop]
        if self.level == 3 and blocks:
            return (subpipeline.run(blocks, x),)
        for block in blocks:
            x = subpipeline.run([block], x) if self.level == 2 else block(x)
        return (x,)

    @contextmanager
    def lean(self, layer):
        last = list(self.blocks.values())[layer].mlp.down
        last.unsummed = True
        try:
            yield
        finally:
            last.unsummed = False

    def finish(self, values, inputs):
        if not hasattr(self, "head"):
            return values
        logits = self.head(self.norm(*values))
        if logits.dtype == torch.bfloat16:
            logits = logits.float()
        return (cross_entropy(logits, inputs[1], self.group),)


class MerakProgram(Program):
    """One rank's step: the schedule, then the sums over the two ends and over replicas."""

    def __init__(self, strategy, workload, stages, mesh, lr=LEARNING_RATE):
        self.strategy, self.workload, self.mesh = strategy, workload, mesh
        self.stages, self.splits = stages, strategy.splits(workload)
        self.module = nn.ModuleList(stages.values())
        self.named = {name: p for stage in stages.values() for name, p in stage.named_parameters()}
        self.optimizer, self.watched = adamw(self.named.values(), lr), {}
        self.place = mesh.get_local_rank("pp")
        schedule = strategy.schedule_of(workload)
        self.schedule = schedule
        down = mesh.get_group("pp")
        up = Mesh(strategy.axes).second_group("pp", "pp")
        drops = strategy.drops(workload)
        split = any(action.kind == "W" for action in schedule.of(self.place))
        runners = {s: Runner(stage, drops[s], split, strategy.lean) for s, stage in stages.items()}
        messages = Messages(Routes(schedule, self.place), down, up, self._empty)
        share = 1 / (strategy.microbatches * strategy.dp)
        self.executor = Executor(schedule, self.place, runners, messages, share)

    def _empty(self, message):
        """Tensors to receive a message into: what a stage receives, or the gradient of that."""
        stage = message.stage + (message.phase == "backward")
        local = self.strategy.local(self.workload)
        like = next(iter(self.named.values()))
        return [like.new_empty((local.batch, local.seq, local.hidden)) for _ in range(stage > 0)]

    def step(self, batch):
        self.optimizer.zero_grad()
        self.watched.clear()
        s = self.strategy
        rows = [part_of(whole, self.mesh.get_local_rank("dp"), s.dp) for whole in batch]
        losses = self.executor.step(list(zip(*(r.chunk(s.microbatches) for r in rows))))
        with label(phase="sync"):
            self.synchronise()
        return torch.stack([losses[m] for m in sorted(losses)]).mean() if losses else None

    def synchronise(self):
        self._sum_ends()
        self.sum_gradients("dp", list(self.named.values()))

    # -- the weight that both ends share ----------------------------------------------------------
    def _sum_ends(self):
        ends = [self.named[name] for name in (TOKENS, HEAD) if name in self.named]
        if not self.workload.tied or not ends:
            return
        if len(ends) == 2:
            total = ends[0].grad + ends[1].grad
            ends[0].grad, ends[1].grad = total, total.clone()
        elif self.ends:
            (ends[0].grad,) = sum_together([ends[0].grad], self.ends)

    # -- for checking -----------------------------------------------------------------------------
    def watch(self):
        for stage in self.stages.values():
            for name, layer in (("input", "embed"), ("logits", "head")):
                if hasattr(stage, layer):
                    getattr(stage, layer).register_forward_hook(self._keeper(name))

    def _keeper(self, name):
        watched = self.watched

        def keep(module, args, out):
            if out.requires_grad:
                out.retain_grad()
            watched.setdefault(name, []).append(out)

        return keep

    def outputs(self):
        """The logits (batch, seq, vocab) of the last step, on every rank."""
        found = torch.cat(self.watched["logits"]) if "logits" in self.watched else None
        w, axes = self.workload, self.strategy.axes
        shape = w.batch // axes["dp"], w.seq, w.vocab // axes["tp"]
        found = self._everywhere(found, shape, self.schedule.rank_of[-1])
        return gather(found, [(2, "tp"), (0, "dp")], self.mesh)

    def input_gradient(self):
        found = None
        if "input" in self.watched:
            found = torch.cat([x.grad for x in self.watched["input"]])
        w = self.workload
        shape = w.batch // self.strategy.dp, w.seq, w.hidden
        return gather(self._everywhere(found, shape, 0), [(0, "dp")], self.mesh)

    def full(self, locals_by_name):
        found, axes = {}, self.strategy.axes
        for name, shape in self.workload.parameter_shapes().items():
            shape = list(shape)
            for dim, axis in self.splits.get(name, ()):
                shape[dim] //= axes[axis]
            owner = self.schedule.rank_of[stage_of(name, self.workload, self.schedule.stages)]
            part = self._everywhere(locals_by_name.get(name), shape, owner)
            found[name] = gather(part, self.splits.get(name, ()), self.mesh)
        return found

    def _everywhere(self, tensor, shape, owner):
        """A tensor of one rank of the pipeline, on all of them."""
        group = self.mesh.get_group("pp")
        if group.size() == 1:
            return tensor
        if self.place != owner:
            tensor = next(iter(self.named.values())).new_empty(shape)
        tensor = tensor.detach().contiguous()
        dist.broadcast(tensor, group=group, group_src=owner)
        return tensor


def build(strategy, workload, mesh, dtype, device, **options):
    """This rank's `MerakProgram`, on a ``DeviceMesh`` with the axes pp, dp and tp."""
    schedule, group = strategy.schedule_of(workload), mesh.get_group("tp")
    kw = {"dtype": dtype or getattr(torch, workload.dtype), "device": device}
    local, splits = strategy.local(workload), strategy.splits(workload)
    place = mesh.get_local_rank("pp")
    stages = {s: GPTStage(local, s, schedule.stages, group, strategy.subpipeline, **kw)
              for s in range(schedule.stages) if schedule.rank_of[s] == place}
    for stage in stages.values():
        load_parts(stage, workload, splits, mesh, {HEAD: TOKENS} if workload.tied else {})
    program = MerakProgram(strategy, workload, stages, mesh, **options)
    program.ends = _ends(strategy, workload, schedule)
    return program


def _ends(strategy, workload, schedule):
    """The group of the first and the last stage's ranks that have the same part of the weight."""
    first, last = schedule.rank_of[0], schedule.rank_of[-1]
    if not workload.tied or first == last:
        return None
    return Mesh(strategy.axes).second_group("pp", "ends", (first, last))
