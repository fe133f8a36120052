"""Schemes by hand, right and wrong, as a learner writes them in a notebook cell."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tpviz as tv


def data_parallel(workload, mesh, wrong=""):
    model, group = tv.reference_model(workload), mesh.get_group("dp")
    n, rank = group.size(), group.rank()
    over = mesh.get_group("tp") if wrong == "group" else group

    def step(batch):
        loss = model(*[rows.chunk(n)[rank] for rows in batch])
        loss.backward()
        for p in model.parameters():
            if wrong != "missing":
                dist.all_reduce(p.grad, group=over)
            if wrong != "sum":
                p.grad /= n
        return loss

    return model, step


def buckets(workload, mesh):
    """One all-reduce of each block's gradients, started while backward goes on."""
    model, group = tv.reference_model(workload), mesh.get_group("dp")
    n, rank, started = group.size(), group.rank(), []

    def reduce(parameters):
        bucket = torch.cat([p.grad.flatten() for p in parameters])
        started.append((parameters, bucket, dist.all_reduce(bucket, group=group, async_op=True)))

    def collect(parameters):
        left = set()

        def arrived(parameter):
            left.add(parameter)
            if len(left) == len(parameters):
                left.clear()
                reduce(parameters)

        for p in parameters:
            p.register_post_accumulate_grad_hook(arrived)

    for block in model.blocks:
        collect(list(block.parameters()))
    inside = {p for block in model.blocks for p in block.parameters()}
    collect([p for p in model.parameters() if p not in inside])

    def step(batch):
        loss = model(*[rows.chunk(n)[rank] for rows in batch])
        (loss / n).backward()
        for parameters, bucket, work in started:
            work.wait()
            parts = bucket.split([p.numel() for p in parameters])
            for p, part in zip(parameters, parts):
                p.grad = part.view_as(p)
        started.clear()
        return loss

    return model, step


def ddp(workload, mesh):
    model, group = tv.reference_model(workload), mesh.get_group("dp")
    replica = DistributedDataParallel(model, process_group=group)
    n, rank = group.size(), group.rank()

    def step(batch):
        loss = replica(*[rows.chunk(n)[rank] for rows in batch])
        loss.backward()
        return loss

    return model, step


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class SplitMLP(nn.Module):
    """A column-parallel layer, then a row-parallel one."""

    def __init__(self, mlp, group, wrong=""):
        super().__init__()
        n, rank = group.size(), group.rank()
        self.group, self.up, self.down, self.wrong = group, mlp.up, mlp.down, wrong
        rank = n - 1 - rank if wrong == "order" else rank
        part = lambda t, dim: nn.Parameter(t.detach().chunk(n, dim)[rank].clone())
        self.up.weight, self.up.bias = part(mlp.up.weight, 0), part(mlp.up.bias, 0)
        self.down.weight = part(mlp.down.weight, 1)

    def forward(self, x):
        x = x if self.wrong == "backward" else Copy.apply(x, self.group)
        y = F.gelu(self.up(x)) @ self.down.weight.T
        y = y if self.wrong == "forward" else Reduce.apply(y, self.group)
        return y + self.down.bias


def tensor_parallel(workload, mesh, wrong=""):
    model = tv.reference_model(workload)
    for block in model.blocks:
        block.mlp = SplitMLP(block.mlp, mesh.get_group("tp"), wrong)
    return model


def both(workload, mesh, wrong=""):
    """Replicas of a tensor-parallel model."""
    model = tensor_parallel(workload, mesh)
    group = mesh.get_group("tp" if wrong == "group" else "dp")
    n, rank = mesh.get_group("dp").size(), mesh.get_group("dp").rank()

    def step(batch):
        loss = model(*[rows.chunk(n)[rank] for rows in batch])
        (loss / n).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=group)
        return loss

    return model, step


class Gathered(torch.autograd.Function):
    """The parts of all ranks, one after the other along dim 2; the gradient of one's own."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        parts = [torch.empty_like(x) for _ in range(group.size())]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, 2)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad.chunk(ctx.group.size(), 2)[ctx.group.rank()], None


def zigzag(workload, mesh, wrong=""):
    """Sequences over cp: keys and values of all ranks, masked by the tokens' positions."""
    group = mesh.get_group("cp")
    cut = tv.SequenceCut(group.size(), "zigzag")
    where = cut.positions(workload.seq, mesh)
    keys = cut.restored(torch.arange(workload.seq).unsqueeze(0)).squeeze(0).argsort()
    if wrong == "mask":
        keys = torch.arange(workload.seq)

    def attention(q, k, v):
        k, v = Gathered.apply(k, group), Gathered.apply(v, group)
        mask = where.unsqueeze(1) >= keys
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=q.shape[1] > k.shape[1])

    at = torch.arange(len(where)) if wrong == "positions" else where
    model = tv.reference_model(workload, at, attention)

    def step(batch):
        loss = model(*[cut.part(rows, mesh) for rows in batch])
        (loss / group.size()).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=group)
        return loss

    return model, step


def zero1(workload, mesh, wrong=""):
    model, group = tv.reference_model(workload), mesh.get_group("dp")
    n, rank, params = group.size(), group.rank(), list(model.parameters())
    pad = lambda flat: F.pad(flat, (0, -len(flat) % n))
    flat = pad(nn.utils.parameters_to_vector(params).detach())
    shard = nn.Parameter(flat.chunk(n)[rank].clone())
    optimizer = torch.optim.AdamW([shard])

    def step(batch):
        loss = model(*[rows.chunk(n)[rank] for rows in batch])
        (loss / n).backward()
        grads = pad(torch.cat([p.grad.flatten() for p in params]))
        shard.grad = torch.empty_like(shard)
        dist.reduce_scatter(shard.grad, list(grads.chunk(n)), group=group)
        model.zero_grad()
        return loss

    def update():
        if wrong == "stale":
            dist.all_gather(list(flat.chunk(n)), shard.detach(), group=group)
        optimizer.step()
        if wrong != "stale":
            dist.all_gather(list(flat.chunk(n)), shard.detach(), group=group)
        nn.utils.vector_to_parameters(flat[: sum(p.numel() for p in params)], params)

    return model, step, update


def pipeline(workload, mesh):
    """Two stages, one after the other: each rank has only its own half of the model."""
    model, group = tv.reference_model(workload), mesh.get_group("pp")
    rank, half = group.rank(), workload.layers // 2
    for i in range(workload.layers):
        if (i >= half) != rank:
            model.blocks[i] = nn.Identity()
    if rank:
        model.embed = None
    else:
        model.head = model.norm = None
    shape = workload.batch, workload.seq, workload.hidden

    def first(batch):
        x = nn.Sequential(model.embed, *model.blocks)(batch[0])
        dist.send(x.detach(), group=group, group_dst=1)
        grad = torch.empty_like(x)
        dist.recv(grad, group=group, group_src=1)
        x.backward(grad)

    def last(batch):
        x = model.head.weight.new_empty(shape)
        dist.recv(x, group=group, group_src=0)
        logits = nn.Sequential(*model.blocks, model.norm, model.head)(x.requires_grad_())
        loss = F.cross_entropy(logits.flatten(0, 1), batch[1].flatten())
        loss.backward()
        dist.send(x.grad, group=group, group_dst=0)
        return loss

    return model, last if rank else first
