"""Tensor parallelism: by DTensor's plans, by DTensor's operators, by hand."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from zoo import ITEM, RANKS, data, gradients, program
from zoo_models import (
    ACTIVATION,
    BATCH,
    BLOCKS,
    TOKENS,
    VOCAB,
    WIDTH,
    cross_entropy,
    llama,
    mlp,
    text,
    training,
)


def _mesh(**axes):
    return init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))


@program({("tp", "all_reduce"): (1, BATCH * WIDTH * ITEM)})  # x needs no gradient: no second one
def tensor_parallel_mlp():
    """Up by columns, down by rows."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    model = parallelize_module(
        mlp(), _mesh(tp=RANKS), {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    return training(model, seed=1), lambda: gradients(model)


def split(model, mesh, parallel_loss):
    """torchtitan's plan: tensor parallel, and sequence parallel between the matrices."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    gather = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    layout = Shard(-1) if parallel_loss else Replicate()
    plan = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(
            input_layouts=Shard(1), output_layouts=layout, use_local_output=not parallel_loss
        ),
    }
    for i in range(BLOCKS):
        block = {
            "attention_norm": SequenceParallel(),
            "attention": gather,
            "ffn_norm": SequenceParallel(),
            "feed_forward": gather,
        }
        block |= dict.fromkeys(
            ["attention.wq", "attention.wk", "attention.wv", "feed_forward.w1", "feed_forward.w3"],
            ColwiseParallel(),
        )
        block |= dict.fromkeys(
            ["attention.wo", "feed_forward.w2"], RowwiseParallel(output_layouts=Shard(1))
        )
        plan |= {f"layers.{i}.{name}": style for name, style in block.items()}
    return parallelize_module(model, mesh, plan)


# A block gathers its input and scatters its output twice; the embedding scatters, the output layer
# gathers. Backward does the opposite of each, so both kinds come equally often. The parallel loss
# reduces three numbers a token: the largest logit, the sum of exponentials, the target's share.
SEQUENCE_PARALLEL = {
    ("tp", "all_gather"): (4 * BLOCKS + 2, (4 * BLOCKS + 2) * ACTIVATION),
    ("tp", "reduce_scatter"): (4 * BLOCKS + 2, (4 * BLOCKS + 2) * ACTIVATION),
}


@program(
    SEQUENCE_PARALLEL | {("tp", "all_reduce"): (3, 3 * TOKENS * ITEM)}, emulated_tolerance=1e-12
)
def sequence_parallel_llama():
    """Tensor and sequence parallel, the loss too."""
    from torch.distributed.tensor.parallel import loss_parallel

    model = split(llama(), _mesh(tp=RANKS), parallel_loss=True)
    tokens, targets = text(1)

    def step():
        model.zero_grad()
        with loss_parallel():
            loss = cross_entropy(model(tokens), targets)
            loss.backward()
        return loss

    return step, lambda: gradients(model)


LOGITS = TOKENS * VOCAB * ITEM


# As above, and the logits are gathered. Recomputing a block, two gathers and one scatter: it stops
# before the second, of which backward needs nothing.
@program(
    {
        ("tp", "all_gather"): (6 * BLOCKS + 3, (6 * BLOCKS + 2) * ACTIVATION + LOGITS),
        ("tp", "reduce_scatter"): (5 * BLOCKS + 2, (5 * BLOCKS + 2) * ACTIVATION),
    },
    emulated_tolerance=1e-12,
)
def checkpointed_llama():
    """Tensor and sequence parallel, each block recomputed in backward."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = split(llama(), _mesh(tp=RANKS), parallel_loss=False)
    for name in list(model.layers):
        model.layers[name] = checkpoint_wrapper(model.layers[name])
    tokens, targets = text(1)

    def step():
        model.zero_grad()
        loss = cross_entropy(model(tokens), targets)
        loss.backward()
        return loss

    return step, lambda: gradients(model)


# Parameters of a rank of tp: a block's four matrices of attention, its three of the feed-forward
# and two norms, which are whole; around the blocks the embedding, the output and a norm.
BLOCK = (4 * WIDTH**2 + 3 * 4 * WIDTH**2) // 2 + 2 * WIDTH
ROOT = 2 * VOCAB * WIDTH // 2 + WIDTH
NORMS = 2 * BLOCKS + 1
PARAMETERS = 9 * BLOCKS + 3


# Over dp a block is gathered twice and the root once, gradients are reduced. Over tp as above, the
# logits gathered and no recomputation; gradients of norms are partial sums. Clipping reduces the
# parameters' norms over both.
@program(
    {
        ("dp", "all_gather"): (2 * BLOCKS + 1, (2 * BLOCKS * BLOCK + ROOT) * ITEM),
        ("dp", "reduce_scatter"): (BLOCKS + 1, (BLOCKS * BLOCK + ROOT) * ITEM),
        ("dp", "all_reduce"): (1, PARAMETERS * ITEM),
        ("tp", "all_gather"): (4 * BLOCKS + 3, (4 * BLOCKS + 2) * ACTIVATION + LOGITS),
        ("tp", "reduce_scatter"): (4 * BLOCKS + 2, (4 * BLOCKS + 2) * ACTIVATION),
        ("tp", "all_reduce"): (NORMS + 1, (NORMS * WIDTH + PARAMETERS) * ITEM),
    },
    emulated_tolerance=1e-9,
)
def two_dimensional_llama():
    """FSDP2 over dp, tensor and sequence parallel over tp, clipped gradients, AdamW."""
    from torch.distributed.fsdp import fully_shard

    mesh = _mesh(dp=2, tp=2)
    model = split(llama(), mesh["tp"], parallel_loss=False)
    for block in model.layers.values():
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens, targets = text(mesh["dp"].get_local_rank())

    def step():
        optimizer.zero_grad()
        loss = cross_entropy(model(tokens), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step, lambda: list(model.parameters())


MATRIX, PRODUCT = 8 * WIDTH * ITEM, 8 * 8 * ITEM


# Both matrices are scattered; on gloo rows become columns by a gather; the product is a sum.
@program(
    {
        ("x", "scatter"): (2, 2 * MATRIX),
        ("x", "all_gather"): (1, MATRIX),
        ("x", "reduce_scatter"): (1, PRODUCT),
        ("x", "all_reduce"): (1, PRODUCT),
    },
    emulated_tolerance=1e-12,
)
def dtensor_operators():
    """A product of sharded matrices and changes of layout, none of it in a module."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = _mesh(x=RANKS)
    a, b = data(1, 8, WIDTH), data(2, WIDTH, 8)
    found = []

    def step():
        rows = distribute_tensor(a, mesh, [Shard(0)])
        columns = rows.redistribute(mesh, [Shard(1)])
        product = columns @ distribute_tensor(b, mesh, [Shard(0)])
        found[:] = [product.redistribute(mesh, [layout]) for layout in (Shard(0), Replicate())]
        return found[1].to_local().sum()

    return step, lambda: found


class _Copy(torch.autograd.Function):
    """Forward nothing, backward an all-reduce."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class _Sum(torch.autograd.Function):
    """Forward an all-reduce, backward nothing."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


# Forward: the embedding's sum; of each token the largest logit, the sum of exponentials and the
# target's logit. Backward: the sum of what reaches the hidden state.
@program({("world", "all_reduce"): (5, 2 * ACTIVATION + 3 * TOKENS * ITEM)})
def vocabulary_parallel():
    """Embedding, logits and cross entropy with the vocabulary cut, by hand as in Megatron-LM."""
    share = VOCAB // RANKS
    first = dist.get_rank() * share
    table = data(3, VOCAB, WIDTH)[first : first + share].clone().requires_grad_()
    tokens, targets = (t.flatten() for t in text(1))

    def own(t):
        return (t >= first) & (t < first + share), (t - first).clamp(0, share - 1)

    def step():
        table.grad = None
        mine, row = own(tokens)
        hidden = _Sum.apply(F.embedding(row, table) * mine[:, None])
        logits = _Copy.apply(hidden) @ table.T
        top = logits.detach().amax(1)
        dist.all_reduce(top, dist.ReduceOp.MAX)
        logits = logits - top[:, None]
        mine, column = own(targets)
        picked = _Sum.apply(logits.gather(1, column[:, None])[:, 0] * mine)
        loss = (_Sum.apply(logits.exp().sum(1)).log() - picked).mean()
        loss.backward()
        return loss

    return step, lambda: [table.grad]
