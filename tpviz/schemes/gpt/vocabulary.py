"""The two ends of a GPT split by vocabulary: embedding and loss, for every tensor-parallel scheme.

Shapes: B batch, S sequence, V vocabulary, H features of a rank, n ranks of the group. Under
sequence parallelism activations are (S/n, B, H), sequence first.
"""

from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor, nn

from tpviz.schemes.collectives import Group, own_of
from tpviz.schemes.operators import Reduce, ReduceScatter, VocabularyCrossEntropy

from .heads import positions_at
from .model import positions

if TYPE_CHECKING:
    from tpviz.core.workload import GPT


class ParallelEmbedding(nn.Module):
    """Token table split by vocabulary, position table (if any) whole: (B, S) -> activations.

    width : features of this rank's tables, all of them unless said. where : the places of its
    tokens in the sequence, likewise.
    """

    def __init__(
        self,
        w: "GPT",
        group: Group,
        sp: bool,
        width: int | None = None,
        where: Tensor | None = None,
        **kw: Any,
    ):
        super().__init__()
        width, self.where = width or w.hidden, positions_at(w, where)
        self.rank, self.size, self.group, self.sp = group.rank(), group.size(), group, sp
        self.token = nn.Embedding(w.vocab // self.size, width, **kw)
        self.position = positions(w, width, **kw)

    def forward(self, tokens_BS: Tensor) -> Tensor:
        if self.size == 1:
            x = self.lookup(tokens_BS)
        elif not self.sp:
            x = Reduce.apply(self._own_rows(tokens_BS), self.group)
        else:
            x = ReduceScatter.apply(self._own_rows(tokens_BS.t()), self.group)
        if self.position is None:
            return x
        table = self.position.weight
        if self.where is not None:
            table = table[self.where]
        if self.sp and self.size > 1:
            table = own_of(table, self.group).unsqueeze(1)
        return x + table

    def lookup(self, rows: Tensor) -> Tensor:
        """Rows of this rank's part of the table of tokens."""
        return self.token(rows)

    def _own_rows(self, tokens):
        """This rank's rows; zero where another rank has the token."""
        rows = self.token.num_embeddings
        local = tokens - self.rank * rows
        elsewhere = (local < 0) | (local >= rows)
        return self.lookup(local.masked_fill_(elsewhere, 0)).masked_fill(elsewhere.unsqueeze(-1), 0)


def cross_entropy(logits: Tensor, targets: Tensor, group: Group) -> Tensor:
    """Mean loss of logits (..., V/n) split by vocabulary, against targets (...)."""
    logits, targets = logits.flatten(0, -2), targets.flatten()
    if group.size() == 1:
        return F.cross_entropy(logits, targets)
    return VocabularyCrossEntropy.apply(logits, targets, group)
