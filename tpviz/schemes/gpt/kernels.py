"""The kernels of the GPT: FLOPs and bytes of each, as the program runs them.

FLOPs are those of torch.utils.flop_counter, 2 per multiply-add; but of fused causal attention just
half, as it skips the masked half of the S x S square (Dao et al. 2022, arXiv 2205.14135), so blocks
of a square add up (docs/adr/0049, also `tpviz.ranks.compute.flops`). Bytes are a kernel's tensor
arguments and results, each once. T tokens, B sequences of S, N heads of D numbers, all of one rank.

>>> gemm(128, 64, 192, 4)
Kernel(flops=3145728, bytes=180224)
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tpviz.core.step import Kernel, Operation

if TYPE_CHECKING:
    from tpviz.core.workload import GPT


def gemm(m: int, k: int, n: int, itemsize: int, bias: int = 0) -> Kernel:
    """(m, k) @ (k, n), and ``bias`` numbers added: mm, or addmm with a bias."""
    return Kernel(2 * m * k * n, (m * k + k * n + m * n + bias) * itemsize)


def linear(
    tokens: int, features_in: int, features_out: int, itemsize: int, bias: bool = True
) -> tuple[Kernel, Kernel, Kernel]:
    """(forward, input's gradient, weight's gradient) of a linear layer."""
    return (
        gemm(tokens, features_in, features_out, itemsize, features_out * bias),
        gemm(tokens, features_out, features_in, itemsize),
        gemm(features_out, tokens, features_in, itemsize),
    )


def attending(w: "GPT", heads: int, keys: int) -> tuple[list[Operation], list[Operation]]:
    """(forward, backward) of attention on so many heads of queries and of keys: a kernel each, or
    those of a part of the sequences with what travels between them (`tpviz.schemes.context`)."""
    if w.context:
        return w.context.operations(w, heads, keys)
    return whole(w, heads, keys)


def whole(w: "GPT", heads: int, keys: int) -> tuple[list[Operation], list[Operation]]:
    """(forward, backward) of attention in whole sequences: a causal square for each document."""
    squares = [attention(w.batch, heads, n, w.head_size, w.itemsize, keys) for n in w.lengths]
    return [forward for forward, _ in squares], [backward for _, backward in reversed(squares)]


def whole_kernel(operations: Iterable[Operation]) -> Kernel:
    """All kernels among the operations as one."""
    kernels = [o for o in operations if isinstance(o, Kernel)]
    return Kernel(sum(k.flops for k in kernels), sum(k.bytes for k in kernels))


def attention(
    B: int,
    N: int,
    S: int,
    D: int,
    itemsize: int,
    kv_heads: int = 0,
    causal: bool = True,
    keys: int = 0,
) -> tuple[Kernel, Kernel]:
    """(forward, backward) of fused attention: 2 and 5 products of S x S x D per head.

    Besides q, k, v and the output it has the log-sum-exp of each row. kv_heads : of keys and
    values, N unless given; shared ones are read as they are, not repeated. keys : number of keys
    and values, S unless given.
    """
    product, one = (2 - causal) * B * N * S * (keys or S) * D, B * D * itemsize
    of_queries, of_keys = N * S * one, (kv_heads or N) * (keys or S) * one
    rows = B * N * S * itemsize  # float32 under bfloat16, where the recorder takes it so too
    return (
        Kernel(2 * product, 2 * (of_queries + of_keys) + rows),
        Kernel(5 * product, 4 * (of_queries + of_keys) + rows),
    )


def adamw(parameter_bytes: int) -> Kernel:
    """The fused update: parameter, gradient and two moments are read, all but the gradient written.

    Its arithmetic is not counted as FLOPs, as PyTorch does not.
    """
    return Kernel(0, 7 * parameter_bytes)
