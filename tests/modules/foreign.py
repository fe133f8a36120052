"""Models that tpviz did not write, tiny, and inputs for them; Hugging Face's from configs alone."""

import os

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, TOKENS = 16, 4, 6


class Gated(nn.Module):
    """A gated MLP and a plain one around a norm, under names that no rule knows."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.gate, self.value = nn.Linear(8, 16), nn.Linear(8, 16, bias=False)
        self.back = nn.Linear(16, 8)
        self.wide, self.narrow = nn.Linear(8, 32), nn.Linear(32, 8, bias=False)
        self.last = nn.Linear(8, 5)

    def forward(self, x):
        x = x + self.back(F.dropout(F.silu(self.gate(x)) * self.value(x), 0.1, self.training))
        x = self.norm(x)
        return self.last(x + self.narrow(torch.tanh(self.wide(x) * 0.5)).relu())


class Attention(nn.Module):
    """Causal attention with fused q, k, v; ``per_head``: [head][q, k, v] instead of [q | k | v]."""

    def __init__(self, per_head=False):
        super().__init__()
        self.count, self.per_head = HEADS, per_head
        self.inward, self.outward = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, tokens, _ = x.shape
        qkv = self.inward(x)
        if self.per_head:
            q, k, v = qkv.view(batch, tokens, self.count, 3, -1).permute(3, 0, 2, 1, 4)
        else:
            q, k, v = qkv.view(batch, tokens, 3, self.count, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.outward(y.transpose(1, 2).flatten(2))


def encoder():
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


def _family(name):
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    import transformers

    return transformers, getattr(transformers, f"{name}Config")


# Larger initial numbers than by default, so that no part of the model is lost beside another.
START = {"initializer_range": 0.3}
COMMON = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, **START}


def gpt2(**more):
    transformers, config = _family("GPT2")
    return transformers.GPT2LMHeadModel(
        config(
            n_layer=2, n_embd=WIDTH, n_head=HEADS, vocab_size=20, n_positions=8, **COMMON, **more
        )
    )


def llama(kv=4):
    transformers, config = _family("Llama")
    return transformers.LlamaForCausalLM(
        config(
            num_hidden_layers=2,
            hidden_size=WIDTH,
            num_attention_heads=8,
            num_key_value_heads=kv,
            intermediate_size=24,
            vocab_size=20,
            max_position_embeddings=8,
            **COMMON,
        )
    )


def opt():
    transformers, config = _family("OPT")
    return transformers.OPTForCausalLM(
        config(
            num_hidden_layers=2,
            hidden_size=WIDTH,
            num_attention_heads=HEADS,
            ffn_dim=32,
            vocab_size=20,
            max_position_embeddings=8,
            word_embed_proj_dim=WIDTH,
            init_std=0.3,
            **COMMON,
        )
    )


def bert():
    transformers, config = _family("Bert")
    return transformers.BertForMaskedLM(
        config(
            num_hidden_layers=2,
            hidden_size=WIDTH,
            num_attention_heads=HEADS,
            intermediate_size=32,
            vocab_size=20,
            max_position_embeddings=8,
            **COMMON,
        )
    )


def vectors(width, batch=4):
    return (
        torch.linspace(-1, 1, batch * TOKENS * width, dtype=torch.float64)
        .sin()
        .view(batch, TOKENS, width)
    )


def tokens(batch=4):
    return {
        "input_ids": torch.arange(batch * TOKENS).view(batch, TOKENS) * 7 % 20,
        "use_cache": False,
    }


def masked(batch=4):
    """For `bert`: the end of one sequence is padding."""
    ids = tokens(batch)["input_ids"]
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def crossed(batch=4):
    """For a decoder with cross attention."""
    return {**tokens(batch), "encoder_hidden_states": vectors(WIDTH, batch)}


def weighted(output):
    """A mean over rows in which no element's part is another's."""
    x = getattr(output, "logits", output)
    return (x * torch.arange(x[0].numel(), dtype=x.dtype).cos().view_as(x[0])).mean()
