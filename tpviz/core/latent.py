"""Multi-head latent attention (MLA) as sizes: what of a block's attention it replaces. No torch.

DeepSeek-AI 2024 (arXiv 2405.04434, section 2.1): keys and values of all heads are computed from one
latent of ``kv_lora`` features a token, behind an RMSNorm, queries perhaps from another of
``q_lora``. Positions are in ``rope_dim`` features besides: of each head's query, and of one key
that all heads share. So a query and a key have ``head_dim + rope_dim`` features, a value ``v_dim``.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .workload import GPT

Shapes = dict[str, tuple[int, ...]]


def check_latent(w: "GPT") -> None:
    """Raise ``ValueError`` for sizes of latent attention that do not belong together."""
    if not w.kv_lora:
        for name in ("q_lora", "rope_dim", "v_dim"):
            if value := getattr(w, name):
                raise ValueError(
                    f"{name}={value} is about latent attention: give kv_lora={4 * value} and "
                    f"rope_dim besides, or leave {name}"
                )
        return
    if w.kv_heads:
        raise ValueError(
            f"kv_heads={w.kv_heads} with kv_lora={w.kv_lora}: from a latent every head has keys of "
            f"its own; leave kv_heads, or leave kv_lora"
        )
    if not w.rotary:
        raise ValueError(
            f"kv_lora={w.kv_lora} has its positions in a rotary key: use rotary=True, or leave "
            "kv_lora"
        )
    part = w.head_size - (w.rope_dim or 0)
    if not w.rope_dim or w.rope_dim % 2:
        near = w.rope_dim + 1 if w.rope_dim else max(2, part // 4 * 2)
        raise ValueError(
            f"rope_dim={w.rope_dim} with kv_lora={w.kv_lora}: rotary positions turn pairs of its "
            f"features; use rope_dim={near}"
        )
    if w.value_size > w.head_size:
        raise ValueError(
            f"v_dim={w.v_dim} is more than the {w.head_size} features of a query, head_dim + "
            f"rope_dim={part} + {w.rope_dim}: use v_dim={w.head_size}, or rope_dim="
            f"{w.rope_dim + w.value_size - w.head_size}"
        )


def latent_shapes(w: "GPT") -> Shapes:
    """{name: shape} of what gives queries, keys and values, without biases; weights are (out, in).

    Rows of ``q_up``, or ``q``, are grouped by head: its features without position, then those that
    turn. Of ``kv_up`` a head's key, then its value; of ``kv_down`` the latent, then the shared key.
    """
    queries, latent = w.heads * w.head_size, w.kv_lora or 0
    found: Shapes = {"attention.q.weight": (queries, w.hidden)}
    if w.q_lora:
        found = {
            "attention.q_down.weight": (w.q_lora, w.hidden),
            "attention.q_norm.weight": (w.q_lora,),
            "attention.q_up.weight": (queries, w.q_lora),
        }
    return found | {
        "attention.kv_down.weight": (w.shared_features, w.hidden),
        "attention.kv_norm.weight": (latent,),
        "attention.kv_up.weight": (w.heads * (w.key_size + w.value_size), latent),
    }
