"""The parallel layers of Megatron-LM: each holds its rank's part of the weight.

Shapes: B batch, S sequence, H hidden, V vocabulary, n = tp. Without sequence parallelism
activations are (B, S, H) on every rank; with it they are (S/n, B, H) between the parallel layers
and (S, B, ...) inside, sequence first so that gathering and scattering are contiguous.
"""

import torch.nn.functional as F
from torch import nn

from . import operators


class ColumnParallelLinear(nn.Linear):
    """y = x W^T + b, W (out, in) split by rows: x whole (or by sequence), y by its last dim."""

    def __init__(self, features_in, features_out, group, sp, bias=True, **kw):
        super().__init__(features_in, features_out // group.size(), bias=bias, **kw)
        self.group = group
        self.operator = operators.SequenceColumnLinear if sp else operators.ColumnLinear

    def forward(self, x):
        if self.group.size() == 1:
            return F.linear(x, self.weight, self.bias)
        return self.operator.apply(x, self.weight, self.bias, self.group)


class RowParallelLinear(nn.Linear):
    """y = sum over ranks of x_r W_r^T, plus b once; W (out, in) split by columns, x by last dim.

    With ``chunks`` (B divisible by it) the sum of one part of the batch overlaps the next GEMM.
    """

    def __init__(self, features_in, features_out, group, sp, chunks=1, **kw):
        super().__init__(features_in // group.size(), features_out, **kw)
        self.group, self.chunks = group, chunks
        self.operator = operators.ReduceScatter if sp else operators.Reduce

    def forward(self, x):
        if self.group.size() == 1:
            return F.linear(x, self.weight, self.bias)
        if self.chunks > 1:
            return operators.ChunkedRowLinear.apply(
                x, self.weight, self.group, self.chunks) + self.bias
        return self.operator.apply(F.linear(x, self.weight), self.group) + self.bias


class ParallelEmbedding(nn.Module):
    """Token table split by vocabulary, position table on every rank: (B, S) -> activations."""

    def __init__(self, w, group, sp, **kw):
        super().__init__()
        self.rank, self.size, self.group, self.sp = group.rank(), group.size(), group, sp
        self.token = nn.Embedding(w.vocab // self.size, w.hidden, **kw)
        self.position = nn.Embedding(w.seq, w.hidden, **kw)

    def forward(self, tokens_BS):
        if self.size == 1:
            return self.token(tokens_BS) + self.position.weight
        if not self.sp:
            x_BSH = operators.Reduce.apply(self._own_rows(tokens_BS), self.group)
            return x_BSH + self.position.weight
        x_sBH = operators.ReduceScatter.apply(self._own_rows(tokens_BS.t()), self.group)
        return x_sBH + self.position.weight.chunk(self.size)[self.rank].unsqueeze(1)

    def _own_rows(self, tokens):
        """This rank's rows; zero where another rank has the token."""
        rows = self.token.num_embeddings
        local = tokens - self.rank * rows
        elsewhere = (local < 0) | (local >= rows)
        return self.token(local.masked_fill_(elsewhere, 0)).masked_fill(elsewhere.unsqueeze(-1), 0)


def cross_entropy(logits, targets, group):
    """Mean loss of logits (..., V/n) split by vocabulary, against targets (...)."""
    logits, targets = logits.flatten(0, -2), targets.flatten()
    if group.size() == 1:
        return F.cross_entropy(logits, targets)
    return operators.VocabularyCrossEntropy.apply(logits, targets, group)
