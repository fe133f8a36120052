"""Sequences over ranks in models that tpviz did not write: equal to one process, with the ledger of
`tv.Context`, and what cannot be cut is said with what can."""

import foreign
import pytest
import torch
import torch.nn.functional as F
from test_parallel_suggest import causal
from torch import nn
from torch.utils.checkpoint import checkpoint

import tpviz as tv

SEQ = 8


def tokens(batch=4, seq=SEQ, labels=False):
    ids = torch.arange(batch * seq).view(batch, seq) * 7 % 20
    found = {"input_ids": ids, "use_cache": False}
    if labels:  # unequally many on each rank
        first = torch.tensor([[1], [7], [0], [5]])
        found["labels"] = ids.masked_fill(torch.arange(seq) < first, -100)
    return found


GROUPED = {"num_attention_heads": 8, "num_key_value_heads": 4}


def mistral():
    return causal("Mistral", **GROUPED)


def qwen():
    return causal("Qwen3", head_dim=4, **GROUPED)


class Decoder(nn.Module):
    """Of nobody: learned positions that are an input, an attention of its own."""

    def __init__(self, again=None):
        super().__init__()
        self.token, self.place = nn.Embedding(20, 16), nn.Embedding(SEQ, 16)
        self.qkv, self.out, self.again = nn.Linear(16, 32), nn.Linear(16, 16), again
        self.head = nn.Linear(16, 20)

    def attend(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (8, 4)).transpose(1, 2).split((4, 2, 2), 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.7, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))

    def forward(self, tokens, positions):
        x = self.token(tokens) + self.place(positions)
        if self.again is not None and torch.is_grad_enabled():
            return self.head(x + checkpoint(Attend(self), x, use_reentrant=self.again))
        return self.head(x + self.attend(x))


class Attend(nn.Module):
    """A module within, as gradient checkpointing of a layer calls it."""

    def __init__(self, decoder):
        super().__init__()
        self.attend = decoder.attend

    def forward(self, x):
        return self.attend(x)


def own(batch=4):
    return tokens(batch)["input_ids"], torch.arange(SEQ)[None]


KINDS = "zigzag", "ring", "all_gather", "ulysses"
ALONE = [tv.Context(cp=4, kind=kind) for kind in KINDS]
PRODUCTS = [
    tv.Megatron(tp=2) * tv.Context(cp=2),
    tv.Context(cp=2, kind="ulysses") * tv.DataParallel(dp=2),
    tv.ATP(mesh=(1, 2)) * tv.Context(cp=2, kind="all_gather"),
    tv.Context(cp=2, ulysses=2),
]


def verdicts(make, inputs, strategies):
    """[(the verdict, its error, whether it is equal, the layers that are split)] of a rank."""
    found = []
    for strategy in strategies:
        v = tv.verify_parallel(make, strategy, inputs, 1)
        found.append((repr(v), v.max_error, v.ok, len(v.report.pairs)))
    return found


def check(make, inputs, *strategies, world=4):
    job = verdicts, make, inputs, strategies
    for found in tv.launch(*job, world_size=world, progress=False, timeout=150):
        for said, error, ok, _ in found:
            assert ok and error < 1e-10, said


@pytest.mark.parametrize("make", [foreign.llama, foreign.gpt2], ids=["llama", "gpt2"])
def test_every_kind_equals_one_process(make):
    check(make, tokens(), *ALONE)


@pytest.mark.parametrize("make", [foreign.llama, mistral, qwen], ids=["llama", "mistral", "qwen3"])
def test_products_equal_one_process(make):
    check(make, tokens(labels=True), *PRODUCTS)


def test_a_decoder_of_ones_own():
    check(Decoder, own(), *ALONE[:3], PRODUCTS[1])
