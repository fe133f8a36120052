"""Latent attention of a rank, as modules; `latent` has it as data."""

from typing import TYPE_CHECKING, Any

from torch import Tensor

from tpviz.schemes.collectives import Alone
from tpviz.schemes.gpt.latent import LatentAttention
from tpviz.schemes.operators import Same

from .operators import LinearSharding

if TYPE_CHECKING:
    from tpviz.core.workload import GPT

    from .program import Groups


def attention(w: "GPT", groups: "Groups", **kw: Any) -> LatentAttention:
    """Causal attention with N' heads on each rank, from latents that all have whole. The layers in
    between send nothing: latents are gathered, or their gradients added up, all at once."""
    alone, sp, ranks = LinearSharding(Alone(), Alone()), groups.layout.sp, groups.inside.size()

    def share(latents: Tensor) -> Tensor:
        return Same.apply(latents, groups.inside, sp)  # pyright: ignore[reportReturnType]

    return LatentAttention(
        w,
        groups.heads(w, **kw),
        groups.where(w),
        lambda *sizes: groups.linear(*sizes, alone, bias=False, **kw),
        None if w.q_lora else groups.linear(w.hidden, w.query_features, groups.qkv, False, **kw),
        groups.linear(w.mixed_features, w.hidden, groups.out, bias=w.bias, **kw),
        ranks,
        share if ranks > 1 else None,
        sp,
        **kw,
    )
