"""The two models of the zoo: an MLP of 2128 parameters, and a Llama of two blocks."""

import torch
import torch.nn.functional as F
from torch import nn
from zoo import ITEM, data

WIDTH, BATCH = 16, 8
LINEARS = (4 * WIDTH * WIDTH + 4 * WIDTH, 4 * WIDTH * WIDTH + WIDTH)  # parameters of each
PARAMETERS = sum(LINEARS)
BLOCKS, HEADS, VOCAB, SEQ, SENTENCES = 2, 4, 32, 8, 2
TOKENS = SENTENCES * SEQ
ACTIVATION = TOKENS * WIDTH * ITEM  # bytes of what flows between Llama's layers


def mlp(dtype=torch.float64):
    """16 -> 64 -> 16."""
    torch.manual_seed(0)
    up, down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
    return nn.Sequential(up, nn.GELU(), down).to(dtype)


def training(model, seed, dtype=torch.float64):
    """A step without optimizer: forward and backward of a mean square."""
    x = data(seed, BATCH, WIDTH, dtype=dtype)

    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return step


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in "qkvo")

    def forward(self, x):
        q, k, v = (
            w(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for w in (self.wq, self.wk, self.wv)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(WIDTH, 4 * WIDTH, bias=False) for _ in range(2))
        self.w2 = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(), Attention()
        self.ffn_norm, self.feed_forward = RMSNorm(), FeedForward()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """As torchtitan writes it; positions are left out."""

    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleDict({str(i): Block() for i in range(BLOCKS)})
        self.norm, self.output = RMSNorm(), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            x = layer(x)
        return self.output(self.norm(x))


def llama():
    """A `Llama` in float64."""
    torch.manual_seed(0)
    return Llama().double()


def text(seed):
    """Tokens, and the targets of each."""
    make = torch.Generator().manual_seed(seed)
    return (torch.randint(0, VOCAB, (SENTENCES, SEQ), generator=make) for _ in range(2))


def cross_entropy(logits, targets):
    """The mean over all tokens."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
