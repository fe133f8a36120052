"""The workload: a GPT by its sizes, and the text it is trained on. No torch here.

The model is GPT-2's (Radford et al., 2019), unless said: learned positions, LayerNorm before each
part, GELU, biases. `tpviz.models` has those that people train.
Text is what Python itself ships (`pydoc_data.topics`), read as bytes, so every machine trains on
the same data offline.

>>> GPT().num_parameters
118528
"""

from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from math import ceil, prod
from typing import Any

import numpy as np

from .checks import divides, number, one_of, settle, whole_number, whole_numbers
from .kinds import OF_EXPERTS, OfKinds
from .latent import check_latent, latent_shapes
from .routing import Routing, check_choice
from .text import windows

MOST = {
    "layers": 1024,
    "hidden": 10**6,
    "heads": 10**6,
    "seq": 10**9,
    "batch": 10**9,
    "mlp_ratio": 10**3,
    "vocab": 10**9,
    "ffn": 10**9,
    "kv_heads": 10**6,
    "head_dim": 10**6,
    "experts": 10**4,
    "top_k": 10**3,
    "moe_ffn": 10**9,
    "shared_experts": 10**3,
    "q_lora": 10**6,
    "kv_lora": 10**6,
    "rope_dim": 10**6,
    "v_dim": 10**6,
    "first_dense": 1024,
    "moe_every": 1024,
    "groups": 10**4,
    "top_groups": 10**4,
}  # of each size; FLOPs and bytes of a step stay finite
DTYPES = {"float32": 4, "float64": 8, "bfloat16": 2}  # bytes per element
NORMS = ("layer", "rms")
ROUTERS = ("softmax", "sigmoid")
OPTIONAL = "ffn kv_heads head_dim moe_ffn q_lora kv_lora rope_dim v_dim top_groups".split()
NONE_AT_ALL = ("experts", "shared_experts", "first_dense")  # sizes that may be 0


@dataclass(frozen=True)
class GPT(OfKinds):
    """A decoder-only transformer and the batch of one training step.

    Parameters
    ----------
    layers, hidden, heads, vocab : sizes of the model; ``heads`` divides ``hidden``, unless
    ``head_dim`` gives the features of a head.
    seq, batch : tokens per sequence, sequences per step (over all ranks).
    tied : the output head uses the token embedding's matrix.
    mlp_ratio : width of the MLP over ``hidden``, where ``ffn`` does not give the width.
    dtype : "float32", "float64" or "bfloat16".
    seed : for the initial parameters and the choice of text.
    ffn : width of the MLP; None: ``mlp_ratio * hidden``.
    kv_heads : key and value heads, each shared by heads / kv_heads query heads (Ainslie et al.
    2023, arXiv 2305.13245); divides ``heads``; None: as many as ``heads``.
    gated : SwiGLU, down(silu(gate(x)) * up(x)) (Shazeer 2020, arXiv 2002.05202), instead of GELU.
    norm : "layer", or "rms" (Zhang and Sennrich 2019, arXiv 1910.07467), which has no bias.
    rotary : rotary position embeddings (Su et al. 2021, arXiv 2104.09864) instead of learned ones.
    bias : whether LayerNorm and all linear layers but the head have one.
    documents : lengths of the documents packed in each sequence, which add up to ``seq``: tokens
    attend inside their own, and positions begin anew in each; (): one that fills the sequence.
    experts : experts of every MLP, of which each token goes to ``top_k`` (Shazeer et al. 2017,
    arXiv 1701.06538); 0: none, a dense MLP. They have no biases.
    moe_ffn : width of an expert; None: that of the MLP. shared_experts : as many more of that
    width, side by side, that every token goes through (Dai et al. 2024, arXiv 2401.06066).
    first_dense, moe_every : which blocks have experts: of those behind the first ``first_dense``,
    as DeepSeek-V3's first 3 are dense, the last of every ``moe_every`` from the model's first, as
    Llama 4 Maverick's 2nd, 4th, .. (Meta 2025, ``interleave_moe_layer_step``; so do Qwen's
    ``decoder_sparse_step`` and ERNIE's ``moe_layer_interval``). The others have a dense MLP of
    width ``ffn``, with biases where there are any.
    router : "softmax" over all experts, or "sigmoid" of each score (DeepSeek-AI 2024, arXiv
    2412.19437). The chosen ones' weights are scaled to add up to 1 where ``top_k`` is above 1, but
    with ``norm_top_k=False``, and then by ``routed_scale``.
    groups, top_groups : experts lie in so many groups, in order, and a token's are from the
    ``top_groups`` of these whose best two scores add up to most (the same, section 2.1.2).
    bias_balance : rate of a bias of each expert, added to its score for the choice alone; after
    each step it grows by the rate where fewer tokens than the mean have chosen the expert, and
    shrinks where more have (Wang et al. 2024, arXiv 2408.15664); 0: no bias.
    capacity : None: no choice is dropped; else an expert takes at most ``capacity * seq * top_k /
    experts`` of each sequence's, first choices first, and what is over is dropped (Lepikhin et al.
    2020, arXiv 2006.16668, for whom a group is what a sequence is here).
    aux_loss : weight of the load balance loss of each sequence, E / k sum_e f_e P_e (Fedus et al.
    2021, arXiv 2101.03961, equation 4), which is in the gradients and not in the reported loss.
    routing : None: the router chooses; or a `tpviz.Routing`, which says who goes where.
    kv_lora : features of the latent that keys and values of all heads are computed from
    (DeepSeek-AI 2024, arXiv 2405.04434, section 2.1); None: no latent attention. q_lora : of that
    of queries; None: they come from the stream. rope_dim : rotary features of each query, and of
    the one key that all heads share; ``head_dim`` are those without position. v_dim : features of
    a value, None: ``head_dim``. Those layers have no biases.

    Raises ``ValueError`` with the sizes that clash and the nearest that work.
    """

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    seq: int = 32
    batch: int = 4
    vocab: int = 256
    tied: bool = True
    mlp_ratio: int = 4
    dtype: str = "float32"
    seed: int = 0
    ffn: int | None = None
    kv_heads: int | None = None
    gated: bool = False
    norm: str = "layer"
    rotary: bool = False
    bias: bool = True
    documents: tuple[int, ...] = ()
    head_dim: int | None = None
    experts: int = 0
    top_k: int = 2
    moe_ffn: int | None = None
    shared_experts: int = 0
    first_dense: int = 0
    moe_every: int = 1
    router: str = "softmax"
    capacity: float | None = None
    aux_loss: float = 0.0
    routing: Routing | None = None
    q_lora: int | None = None
    kv_lora: int | None = None
    rope_dim: int | None = None
    v_dim: int | None = None
    groups: int = 1
    top_groups: int | None = None
    bias_balance: float = 0.0
    norm_top_k: bool = True
    routed_scale: float = 1.0
    cut: Any = field(default=None, repr=False)
    """of a rank's part: how `tpviz.schemes.experts` cuts its experts"""
    place: tuple[tuple[str, int], ...] = field(default=(), repr=False)
    """of a rank's part, where ranks differ: its index on each axis; (): of one with most to do"""

    context = None  # of a part of the sequences that `tpviz.schemes.context` cuts: how

    def __post_init__(self):
        for name, most in MOST.items():
            if getattr(self, name) is not None or name not in OPTIONAL:
                least = 0 if name in NONE_AT_ALL else 1 + (name == "vocab")
                settle(self, name, whole_number, least, most)
        settle(self, "seed", whole_number, 0)
        for name in ("tied", "gated", "rotary", "bias"):
            settle(self, name, one_of, (True, False))
        settle(self, "dtype", one_of, tuple(DTYPES))
        settle(self, "norm", one_of, NORMS)
        settle(self, "router", one_of, ROUTERS)
        self._check_experts()
        self.check_blocks()
        settle(self, "documents", _packed, self.num_positions)
        if self.kv_heads:
            divides("heads", self.heads, "kv_heads", self.kv_heads)
        if not self.head_dim:
            divides("hidden", self.hidden, "heads", self.heads)
            if self.rotary and not self.kv_lora:
                divides("hidden", self.hidden, "2 * heads", 2 * self.heads)
        elif self.rotary and self.head_dim % 2 and not self.kv_lora:
            raise ValueError(
                f"head_dim={self.head_dim} is odd, and rotary positions turn pairs of features: "
                f"use head_dim={self.head_dim + 1}, or rotary=False"
            )
        check_latent(self)

    def _check_experts(self):
        if self.experts and self.top_k > self.experts:
            raise ValueError(
                f"top_k={self.top_k} is more than experts={self.experts}: use top_k="
                f"{self.experts} or less, or experts={self.top_k}"
            )
        if self.capacity is not None:
            settle(self, "capacity", number, 0.01, 1000)
        settle(self, "aux_loss", number, 0, 1000)
        for name, usual in OF_EXPERTS.items():
            if (value := getattr(self, name)) != usual and not self.experts:
                raise ValueError(f"{name}={value!r} is about experts: give experts=8, or leave it")
        check_choice(self)
        if not isinstance(self.routing, Routing | None):
            raise ValueError(
                f"routing={self.routing!r} is no routing: use None, where the router chooses, or "
                "tv.Routing(skew=1.0)"
            )

    @property
    def short(self) -> str:
        """As code: the sizes of model and batch, and other arguments that differ from defaults."""
        words = [
            f"{f.name}={value!r}"
            for i, f in enumerate(fields(self))
            if f.repr and ((value := getattr(self, f.name)) != f.default or i < 5)
        ]
        return f"GPT({', '.join(words)})"

    @property
    def words(self) -> str:
        """A short description, for titles."""
        return f"GPT of {self.layers} layer{'s' * (self.layers > 1)}, hidden size {self.hidden}"

    @property
    def itemsize(self) -> int:
        """Bytes of one element of ``dtype``."""
        return DTYPES[self.dtype]

    def with_batch(self, batch: int) -> "GPT":
        """The same workload with another batch size (cached)."""
        return _with(self, batch=batch)

    @property
    def one_layer(self) -> "GPT":
        """The same workload with a single block (cached), as the first one is."""
        return _with(self.like(0), layers=1)

    @property
    def head_size(self) -> int:
        """Features of a query and a key of one attention head."""
        return self.key_size + (self.rope_dim or 0)

    @property
    def key_size(self) -> int:
        """Of `head_size` those that a head computes for itself: all without ``rope_dim``."""
        return self.head_dim or self.hidden // self.heads

    @property
    def value_size(self) -> int:
        """Features of a value of one attention head."""
        return self.v_dim or self.key_size

    @property
    def query_features(self) -> int:
        """Features of all queries: ``hidden`` without ``head_dim`` and ``rope_dim``."""
        return self.heads * self.head_size

    @property
    def mixed_features(self) -> int:
        """Features of what attention gives: of all heads' values."""
        return self.heads * self.value_size

    @property
    def shared_features(self) -> int:
        """Features of a token from which latent attention computes keys and values of all heads:
        the latent and the rotary key; 0 without."""
        return (self.kv_lora or 0) + (self.rope_dim or 0)

    @property
    def hidden_step(self) -> int:
        """What ``hidden`` is a multiple of in any case."""
        return 1 if self.head_dim else self.heads

    @property
    def num_kv_heads(self) -> int:
        """Number of key/value heads; less than ``heads`` in grouped-query attention."""
        return self.kv_heads or self.heads

    @property
    def qkv_features(self) -> int:
        """Features of all queries, keys and values: 3 hidden where every head has its own; where
        values are smaller than keys, as attention computes them, with zeros."""
        return self.query_features + 2 * self.num_kv_heads * self.head_size

    @property
    def mlp_width(self) -> int:
        """Input features of the second layer of the MLP, or of an expert where some blocks have
        those: of a block, ask `like`."""
        return self.moe_ffn or self.ffn or self.mlp_ratio * self.hidden

    @property
    def up_features(self) -> int:
        """Output features of the first layer of the MLP, or of an expert: its width, twice if it is
        gated."""
        return (1 + self.gated) * self.mlp_width

    @property
    def taken(self) -> int:
        """The most choices of a sequence that an expert takes, by ``capacity``."""
        return ceil((self.capacity or 0) * self.num_positions * self.top_k / self.experts)

    @property
    def divisible(self) -> dict[str, tuple[int, int]]:
        """{name: (size, a size that it divides itself, or 0)} of the sizes that must be divisible
        by the number of ranks when the features inside attention and the MLP are split."""
        heads = {"heads": (self.heads, 0 if self.head_dim else self.hidden)}
        if self.kv_heads:
            heads = {"kv_heads": (self.kv_heads, self.heads)}
        if not self.alike:
            heads = {k: v for kind, _ in self.kinds() for k, v in kind.divisible.items()}
        width = "moe_ffn" if self.moe_ffn else "ffn"
        return heads | ({width: (self.mlp_width, 0)} if self.moe_ffn or self.ffn else {})

    @property
    def num_positions(self) -> int:
        """Number of learned positions: tokens of a whole sequence."""
        return self.seq

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each document of a whole sequence."""
        return self.documents or (self.num_positions,)

    @property
    def pairs(self) -> int:
        """Pairs of a query that a sequence has here and a key of its document, whatever the causal
        mask leaves of them: ``seq`` squared without ``documents``."""
        return sum(n * n for n in self.lengths) * self.seq // self.num_positions

    def norm_shapes(self, name: str) -> dict[str, tuple[int, ...]]:
        """{name: shape} of a norm's parameters."""
        biased = self.bias and self.norm == "layer"
        kinds = ("weight", "bias") if biased else ("weight",)
        return {f"{name}.{kind}": (self.hidden,) for kind in kinds}

    def block_shapes(self, block: int = 0) -> dict[str, tuple[int, ...]]:
        """{name: shape} of the parameters of block number ``block``, in the order of use; weights
        are (out, in).

        Rows are grouped so that a contiguous slice of whole groups is one rank's shard. In ``qkv``
        a group is a key head: its queries, its key and its value. In a gated ``up`` it is a
        feature: its up row and its gate row. Of experts the first dim is their number.
        """
        if not self.alike:
            return self.like(block).block_shapes()
        h, f = self.hidden, self.mlp_width

        def linear(name: str, features_in: int, features_out: int) -> dict[str, tuple[int, ...]]:
            weight: dict[str, tuple[int, ...]] = {f"{name}.weight": (features_out, features_in)}
            return weight | ({f"{name}.bias": (features_out,)} if self.bias else {})

        mlp = linear("mlp.up", h, self.up_features) | linear("mlp.down", f, h)
        if self.experts:
            mlp = {
                "mlp.router.weight": (self.experts, h),
                "mlp.up.weight": (self.experts, self.up_features, h),
                "mlp.down.weight": (self.experts, h, f),
            }
        if n := self.shared_experts:
            mlp["mlp.shared_up.weight"] = (n * self.up_features, h)
            mlp["mlp.shared_down.weight"] = (h, n * f)
        qkv = latent_shapes(self) if self.kv_lora else linear("attention.qkv", h, self.qkv_features)
        return {
            **self.norm_shapes("norm1"),
            **qkv,
            **linear("attention.out", self.mixed_features, h),
            **self.norm_shapes("norm2"),
            **mlp,
        }

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """{name: shape} of every parameter, in the order of use; see `block_shapes`."""
        h = self.hidden
        shapes: dict[str, tuple[int, ...]] = {"embed.token.weight": (self.vocab, h)}
        if not self.rotary:
            shapes["embed.position.weight"] = (self.num_positions, h)
        for i in range(self.layers):
            block = self.block_shapes(i)
            shapes |= {f"blocks.{i}.{name}": shape for name, shape in block.items()}
        shapes |= self.norm_shapes("norm")
        return shapes if self.tied else shapes | {"head.weight": (self.vocab, h)}

    @property
    def num_tensors(self) -> int:
        """Number of parameter tensors."""
        ends = 3 - self.tied - self.rotary + len(self.norm_shapes(""))
        return ends + sum(n * len(kind.block_shapes()) for kind, n in self.kinds())

    @property
    def num_parameters(self) -> int:
        """By default V h + s h + L ((4 + 2r) h^2 + (9 + r) h) + 2h, and V h more if untied."""
        ends = (
            (2 - self.tied) * self.vocab
            + (not self.rotary) * self.num_positions
            + len(self.norm_shapes(""))
        )
        return ends * self.hidden + sum(
            n * sum(map(prod, kind.block_shapes().values())) for kind, n in self.kinds()
        )

    @property
    def num_active_parameters(self) -> int:
        """Those that a token meets: of the experts ``top_k``."""
        rest = sum(n * (kind.block_matrices - kind.active_matrices) for kind, n in self.kinds())
        return self.num_parameters - rest

    @property
    def block_matrices(self) -> int:
        """Elements of a block's weight matrices, all being alike: (4 + 2r) h^2 by default."""
        return self._matrices(self.experts)

    @property
    def active_matrices(self) -> int:
        """As `block_matrices`, of those that a token meets."""
        return self._matrices(self.top_k)

    def _matrices(self, experts: int) -> int:
        mlps = experts + self.shared_experts if self.experts else 1
        mlp = mlps * (self.up_features + self.mlp_width)
        return self.attention_matrices + self.hidden * (self.experts + mlp)

    @property
    def attention_matrices(self) -> int:
        """Elements of the weight matrices of a block's attention."""
        out = self.mixed_features * self.hidden
        if not self.kv_lora:
            return self.hidden * self.qkv_features + out
        return out + sum(prod(shape) for shape in latent_shapes(self).values() if len(shape) > 1)

    @property
    def step_flops(self) -> int:
        """FLOPs of one forward and backward over the whole batch (derived; 2 per multiply-add).

        3 (forward, and twice that for backward) x tokens x [L (2 M + 4 s h) + 2 h V], M the
        elements of a block's matrices that a token meets, in the mean of all blocks: the GEMMs
        alone, attention counted without its causal half, nothing recomputed (the "model FLOPs" of
        MFU). Where heads have other sizes, 2 s times the features of queries and values for 4 s h.
        Of ``documents``, s is the mean of their squares over that of their lengths.
        """
        tokens, mixed = self.batch * self.seq, self.query_features + self.mixed_features
        attention = 2 * self.batch * self.pairs * mixed
        matrices = sum(n * kind.active_matrices for kind, n in self.kinds())
        blocks = 2 * tokens * matrices + self.layers * attention
        return 3 * (blocks + 2 * tokens * self.hidden * self.vocab)

    def tokens(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """(inputs, targets) of training step ``step``: int64 (batch, seq), the same on every call.

        Windows of the text start at random places drawn from (seed, step); targets are the inputs
        shifted by one. With a vocabulary of 256 or more, a token is a byte. With a smaller one, the
        most frequent vocab - 1 bytes keep a token each, in order of frequency, and the last token
        stands for the rest.
        """
        step = whole_number("step", step, low=0)
        return windows(self.vocab, self.seq, self.batch, (self.seed, step))


def _packed(name: str, value: Any, seq: int) -> tuple[int, ...]:
    """Lengths that add up to ``seq``, () for a single one."""
    lengths = whole_numbers(name, value, "lengths such as (5, 3, 8)")
    if lengths and (missing := seq - sum(lengths)):
        more = f", or another document of {missing}" if missing > 0 else ""
        raise ValueError(
            f"{name} of {seq - missing} tokens for seq={seq}: use seq={seq - missing}{more}"
        )
    return lengths if len(lengths) > 1 else ()


@lru_cache(maxsize=1024)
def _with(workload: GPT, **size: int):
    return replace(workload, **size)
