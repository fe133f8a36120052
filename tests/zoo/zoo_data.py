"""Data parallelism: DDP in its many forms, and FSDP2."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from zoo import ITEM, RANKS, READS, data, gradients, on_own_data, program
from zoo_models import BATCH, PARAMETERS, WIDTH, mlp, training

FLOAT, HALF = 4, 2  # bytes


def _ddp(dtype=torch.float64, hook=None, **options):
    model = DistributedDataParallel(mlp(dtype), **options)
    if hook:
        hook(model)
    return training(model, on_own_data(), dtype), lambda: gradients(model)


# All gradients fit one bucket. The order in which they come is learnt in the first two steps; in
# the third ranks agree on buckets: an int32 per parameter and one per bucket, and their count.
@program(
    {("world", "all_reduce"): (1, PARAMETERS * ITEM), ("world", "broadcast"): (2, 6 * 4)},
    uncaptured=READS,
)
def ddp_static_graph():
    """The same parameters are used in every step."""
    return _ddp(static_graph=True)


# One of two backwards synchronises.
@program({("world", "all_reduce"): (1, PARAMETERS * ITEM)}, uncaptured=READS)
def ddp_accumulation():
    """Two microbatches, gradients that are views of the bucket."""
    model = DistributedDataParallel(mlp(), gradient_as_bucket_view=True)
    first, second = (data(on_own_data() + i, BATCH, WIDTH) for i in (0, 50))

    def step():
        model.zero_grad()
        with model.no_sync():
            model(first).square().mean().backward()
        loss = model(second).square().mean()
        loss.backward()
        return loss

    return step, lambda: gradients(model)


# One bucket of every parameter, used or not, and which were used: an int32 each.
@program({("world", "all_reduce"): (2, 2 * PARAMETERS * ITEM + 8 * 4)}, uncaptured=READS)
def ddp_unused_parameters():
    """Each rank trains one of two heads."""
    heads = nn.ModuleList([mlp(), mlp()])
    model = DistributedDataParallel(_Heads(heads), find_unused_parameters=True)
    return training(model, on_own_data()), lambda: gradients(model)


class _Heads(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads = heads

    def forward(self, x):
        return self.heads[dist.get_rank() % 2](x)


@program({("world", "all_reduce"): (1, PARAMETERS * HALF)}, uncaptured=READS)
def ddp_fp16_hook():
    """Gradients travel as float16."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    return _ddp(torch.float32, lambda m: m.register_comm_hook(None, fp16_compress_hook))


@program({("world", "all_reduce"): (1, PARAMETERS * HALF)}, uncaptured=READS)
def ddp_built_in_fp16_hook():
    """The same by the hook that torch has in C++."""
    return _ddp(
        torch.float32,
        lambda m: m._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS),
    )


@program({("world", "all_reduce"): (1, PARAMETERS * FLOAT)}, uncaptured=READS)
def ddp_built_in_all_reduce_hook():
    return _ddp(
        torch.float32, lambda m: m._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    )


# From its third step on: both biases as they are, then of each of the two 64 x 16 matrices the
# factors P and Q of rank 1, which have 64 + 16 numbers. So three times 80 numbers.
@program({("world", "all_reduce"): (3, 3 * (4 * WIDTH + WIDTH) * FLOAT)}, uncaptured=READS)
def ddp_power_sgd():
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=2, random_seed=3
    )
    return _ddp(torch.float32, lambda m: m.register_comm_hook(state, powerSGD_hook.powerSGD_hook))


def _with_optimizer(make):
    model = DistributedDataParallel(mlp())
    backward, optimizer = training(model, on_own_data()), make(model.parameters())

    def step():
        loss = backward()
        optimizer.step()
        return loss

    return step, lambda: list(model.parameters())


# Gradients, then parameters.
@program({("world", "all_reduce"): (2, 2 * PARAMETERS * ITEM)}, uncaptured=READS)
def ddp_local_sgd():
    """Parameters are averaged after every step."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    return _with_optimizer(
        lambda parameters: PostLocalSGDOptimizer(
            torch.optim.SGD(parameters, lr=0.1), PeriodicModelAverager(period=1, warmup_steps=0)
        )
    )


# Each of the four parameters is kept by one rank, which broadcasts it.
@program(
    {
        ("world", "all_reduce"): (1, PARAMETERS * ITEM),
        ("world", "broadcast"): (4, PARAMETERS * ITEM),
    },
    uncaptured=READS,
)
def ddp_zero_redundancy():
    """ZeRO-1: optimizer states are sharded."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return _with_optimizer(
        lambda parameters: ZeroRedundancyOptimizer(
            parameters, optimizer_class=torch.optim.AdamW, lr=1e-3
        )
    )


# Four times, while any rank has a batch: how many have one, whether gradients are synchronised (a
# float32 each), the gradients. Then: that none has; who was last (int64), and its parameters.
@program(
    {
        ("world", "all_reduce"): (4 * 3 + 2, 4 * PARAMETERS * ITEM + 9 * FLOAT + 8),
        ("world", "broadcast"): (1, PARAMETERS * ITEM),
    },
    uncaptured=READS,
)
def ddp_join():
    """Rank r has 1 + r batches; ranks without any shadow the others."""
    model = DistributedDataParallel(mlp())

    def step():
        model.zero_grad()
        with model.join():
            for i in range(1 + dist.get_rank()):
                loss = model(data(i, BATCH, WIDTH)).square().mean()
                loss.backward()
        return loss

    return step, lambda: gradients(model)


MEAN, OUTPUT = WIDTH * ITEM, BATCH * WIDTH * ITEM


# Backward of an all-gather is an all-to-all, on gloo by a scatter from every rank.
@program(
    {
        ("world", "all_reduce"): (2, 2 * MEAN),
        ("world", "all_gather"): (1, RANKS * OUTPUT),
        ("world", "scatter"): (RANKS, RANKS * RANKS * OUTPUT),
    }
)
def synchronised_norm():
    """Means over all ranks by differentiable collectives."""
    from torch.distributed.nn.functional import all_gather, all_reduce

    model = mlp()
    x = data(on_own_data(), BATCH, WIDTH)

    def step():
        model.zero_grad()
        y = model(x)
        y = y - all_reduce(y.mean(0)) / RANKS
        loss = torch.cat(all_gather(y)).square().sum()
        loss.backward()
        return loss

    return step, lambda: gradients(model)


def _fully_sharded(model, mesh, **options):
    from torch.distributed.fsdp import fully_shard

    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def _mesh(**axes):
    return init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))


# A Linear's weight and bias travel together: gathered as bfloat16 in both forwards and backwards,
# their gradients reduced as float32 in the second backward.
@program(
    {
        ("dp", "all_gather"): (8, 4 * PARAMETERS * HALF),
        ("dp", "reduce_scatter"): (2, PARAMETERS * FLOAT),
    },
    emulated_tolerance=1e-6,
)
def fsdp_mixed_precision():
    """Two microbatches, gradients synchronised with the second."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = _fully_sharded(mlp(torch.float32), _mesh(dp=RANKS), mp_policy=policy)
    batches = [data(on_own_data() + i, BATCH, WIDTH, dtype=torch.float32) for i in (0, 50)]

    def step():
        model.zero_grad()
        for last, batch in enumerate(batches):
            model.set_requires_gradient_sync(bool(last))
            loss = model(batch).float().square().mean()
            loss.backward()
        return loss

    return step, lambda: gradients(model)


# Two shards each: gathered twice, gradients reduced; the halves are then averaged over replicas.
@program(
    {
        ("shard", "all_gather"): (4, 2 * PARAMETERS * ITEM),
        ("shard", "reduce_scatter"): (2, PARAMETERS * ITEM),
        ("replicate", "all_reduce"): (2, PARAMETERS * ITEM // 2),
    },
    emulated_tolerance=1e-12,
)
def hybrid_sharded():
    """HSDP: two replicas of two shards."""
    model = _fully_sharded(mlp(), _mesh(replicate=2, shard=2))
    return training(model, on_own_data()), lambda: gradients(model)


SHARDED = {
    ("dp", "all_gather"): (4, 2 * PARAMETERS * ITEM),
    ("dp", "reduce_scatter"): (2, PARAMETERS * ITEM),
}


@program(SHARDED, emulated_tolerance=1e-12)  # what is gathered for backward serves recomputation
def fsdp_checkpointed():
    """Each Linear is recomputed in backward."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = mlp()
    model[0], model[2] = checkpoint_wrapper(model[0]), checkpoint_wrapper(model[2])
    model = _fully_sharded(model, _mesh(dp=RANKS))
    return training(model, on_own_data()), lambda: gradients(model)


@program(SHARDED, emulated_tolerance=1e-12)
def fsdp_selective_checkpoint():
    """Products are kept, the rest is recomputed."""
    from functools import partial

    from torch.utils.checkpoint import (
        CheckpointPolicy,
        checkpoint,
        create_selective_checkpoint_contexts,
    )

    def policy(_, operator, *args, **kwargs):
        keep = operator in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    model = mlp()
    for layer in (model[0], model[2]):
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, context_fn=contexts)
    model = _fully_sharded(model, _mesh(dp=RANKS))
    return training(model, on_own_data()), lambda: gradients(model)


@program({("world", "all_reduce"): (4, PARAMETERS * ITEM)})  # weights and biases of two Linears
def data_parallel_by_hand():
    """A gradient is sent off as soon as backward has it."""
    model, pending = mlp(), []
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(
            lambda p: pending.append((p, dist.all_reduce(p.grad, async_op=True)))
        )
    backward = training(model, on_own_data())

    def step():
        loss = backward()
        while pending:
            p, work = pending.pop()
            work.wait()
            p.grad /= RANKS
        return loss

    return step, lambda: gradients(model)
