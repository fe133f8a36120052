"""The order of a GPT's step: which kernels, and when gradients are complete.

A scheme gives the operations of each part of the network, with its own collectives in them, under
the names in `PIECES`; `assemble` repeats those of a block for every block. One process has no
collectives: `tpviz.schemes.grid.tensor.WholeBlocks`.

Backward completes gradients in this order: head and last LayerNorm, then block by block down, up,
norm2, out, qkv, norm1, then positions and tokens; `completes` has the finer points.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from tpviz.core.step import Kernel, Operation, Part

from .kernels import adamw, attending, linear, whole_kernel

if TYPE_CHECKING:
    from tpviz.core.workload import GPT

FORWARD = {"attention": ".attention", "mlp": ".mlp"}
BACKWARD = {
    "down_back": ".mlp.down",
    "up_back": ".mlp.up",
    "norm2_back": ".norm2",
    "out_back": ".attention.out",
    "core_back": ".attention",
    "qkv_back": ".attention.qkv",
    "norm1_back": ".norm1",
}
AGAIN = {
    "none": {},
    "selective": {"core_back": ("core",)},
    "full": {"down_back": ("attention", "mlp")},
}
"""{recompute: {part of backward: what is computed once more before it}}."""
BLOCK = (*FORWARD, *BACKWARD)
"""The parts of every block, in order; their layers are the values."""
ENDS = ("embed", "head", "head_back", "norm_back", "embed_back", "sync", "update")
PIECES = (*BLOCK, *ENDS, "core")
"""Also attention's core alone, which selective recomputation repeats."""


LATENTS = tuple(
    f"attention.{name}.weight"
    for name in ("kv_up", "q_up", "kv_norm", "kv_down", "q_norm", "q_down", "q")
)
"""Parameters of latent attention, in the order of their gradients."""
SHARED = "mlp.shared_down.weight", "mlp.shared_up.weight"


def of_experts(w: "GPT") -> dict[str, tuple[str, ...]]:
    """As of `completes`, where a block has experts: these end together, and then the router. Shared
    ones come first, or where they are computed while rows travel."""
    ends = {"down_back": ("mlp.down.weight", "mlp.up.weight"), "up_back": ("mlp.router.weight",)}
    before, between = (SHARED[:1], SHARED[1:]) if w.cut and w.cut.overlap else (SHARED, ())
    return {"down_back": before + ends["down_back"], "up_back": between + ends["up_back"]}


class Kernels(NamedTuple):
    """A GPT's kernels. Linear layers: (forward, input's gradient, weight's gradient); attention:
    (forward, backward). Of latent attention ``qkv`` has all its projections up as one."""

    qkv: tuple[Kernel, ...]
    core: tuple[Kernel, ...]
    out: tuple[Kernel, ...]
    up: tuple[Kernel, ...]
    down: tuple[Kernel, ...]
    head: tuple[Kernel, ...]


@lru_cache(maxsize=1024)  # of a part of the sequences they are many
def kernels(w: "GPT", parts: int = 1) -> Kernels:
    """The `Kernels` of a rank that holds 1/``parts`` of every matrix and of the heads."""
    item, T, h, f = w.itemsize, w.batch * w.seq, w.hidden, w.mlp_width
    whole = w.bias and parts == 1  # partial sums get their bias after the all-reduce
    heads, kv_heads = w.heads // parts, w.num_kv_heads // parts
    rows = T * (w.top_k + w.shared_experts if w.experts else 1)  # of experts all as one layer
    qkv = [linear(T, h, w.qkv_features // parts, item, w.bias)]
    if w.kv_lora:
        qkv = [linear(T, k, n // parts, item, bias=False) for k, n in ups(w)]
    return Kernels(
        tuple(map(whole_kernel, zip(*qkv))),
        tuple(map(whole_kernel, attending(w, heads, kv_heads))),
        linear(T, w.mixed_features // parts, h, item, whole),
        linear(rows, h, w.up_features // parts, item, w.bias),
        linear(rows, f // parts, h, item, whole),
        linear(T, h, w.vocab // parts, item, bias=False),
    )


def downs(w: "GPT") -> list[tuple[int, int]]:
    """(features in, out) of the projections down of latent attention, of which no rank has parts,
    in order; none without."""
    return [(w.hidden, n) for n in (w.q_lora, w.shared_features) if n] if w.kv_lora else []


def ups(w: "GPT") -> list[tuple[int, int]]:
    """(features in, out) of the projections up of latent attention, or of the stream's to queries,
    in order."""
    both = w.heads * (w.key_size + w.value_size)
    return [(w.q_lora or w.hidden, w.query_features), (w.kv_lora or 0, both)]


class Payloads(NamedTuple):
    """Bytes of an activation, and of the loss's gathered pairs of numbers."""

    activation: int
    loss: int


def payloads(w: "GPT", ranks: int) -> Payloads:
    """The `Payloads` if every matrix is split over ``ranks`` ranks."""
    return Payloads(
        w.batch * w.seq * w.hidden * w.itemsize,
        2 * ranks * w.batch * w.seq * max(w.itemsize, 4),  # two numbers per token from every rank
    )


def completes(first: str = "plain", second: str = "plain") -> dict[str, tuple[str, ...]]:
    """{part of backward: names of a block's parameters}, in the order of their gradients.

    What it depends on is where the bias of a pair's first and second layers is added. "plain":
    torch's own linear layer, which gives the bias's gradient first. "inside": a scheme's layer,
    which gives the weight's first. "after": outside of the layer, when a sum over ranks is done, so
    its gradient comes before the layer's backward.
    """

    def of_layer(name, kind):
        weight, bias = f"{name}.weight", f"{name}.bias"
        return {"plain": (bias, weight), "inside": (weight, bias), "after": (weight,)}[kind]

    def bias(name, kind):
        return (f"{name}.bias",) if kind == "after" else ()

    qkv, out, up, down = "attention.qkv", "attention.out", "mlp.up", "mlp.down"
    return {
        "entering": bias(down, second),  # as soon as a gradient enters the block from above
        "down_back": of_layer(down, second) + bias(up, first),
        "up_back": of_layer(up, first),
        "norm2_back": ("norm2.weight", "norm2.bias", *bias(out, second)),
        "out_back": of_layer(out, second),
        "core_back": bias(qkv, first),
        "qkv_back": (*of_layer(qkv, first), *LATENTS),
        "norm1_back": ("norm1.weight", "norm1.bias"),
    }


def update(w: "GPT", numel: int) -> Kernel:
    """The optimizer: one fused kernel on ``numel`` parameters."""
    return adamw(numel * w.itemsize)


def assemble(
    w: "GPT",
    pieces: Callable[["GPT"], Mapping[str, Iterable[Operation]]],
    ready: Mapping[str, tuple[str, ...]],
    recompute: str = "none",
    sync: Iterable[Operation] | None = None,
) -> tuple[Part, ...]:
    """All parts of one step in time order, with the parameters whose gradients they complete.

    pieces : gives {name of `PIECES`: operations}, none where one is missing, of a workload: of this
    one its ends count, of those that `GPT.like` gives the parts of such blocks. ready : from
    `completes`, of which those count that a block has. recompute : of a `Strategy`. sync : the sums
    of gradients, where they are not those of ``pieces``.
    """
    of_kind = {kind: named(pieces(kind)) for kind, _ in w.kinds()}
    of = of_kind[w] if w.alike else named(pieces(w))
    ready_of = {kind: _in_kind(kind, ready) for kind in of_kind}
    last, likes = w.layers - 1, [w.like(i) for i in range(w.layers)]

    def entering(i):
        return _entering(w, i, ready_of[likes[max(i, 0)]])

    parts = [
        Part("forward", "embed", of["embed"]),
        *(part for i, kind in enumerate(likes) for part in forward(of_kind[kind], [i])),
        Part("forward", "head", of["head"]),
        Part("backward", "head", of["head_back"], () if w.tied else ("head.weight",)),
        Part(
            "backward",
            "norm",
            of["norm_back"],
            (*w.norm_shapes("norm"), *entering(last)),
        ),
    ]
    for i in reversed(range(w.layers)):
        names = {name: _in_block(i, ready_of[likes[i]][name]) for name in BACKWARD}
        names["norm1_back"] += entering(i - 1)
        parts += backward(of_kind[likes[i]], i, recompute, names)
    return (
        *parts,
        Part("backward", "embed", of["embed_back"], ("embed.token.weight",)),
        Part("sync", "", of["sync"] if sync is None else tuple(sync)),
        Part("optimizer", "", of["update"]),
    )


def named(pieces: Mapping[str, Iterable[Operation]]) -> dict[str, tuple[Operation, ...]]:
    """All `PIECES`, and what a pipeline has besides."""
    names = *PIECES, "mlp_unsummed", "head_weight", "weights"
    return dict.fromkeys(names, ()) | {name: tuple(found) for name, found in pieces.items()}


def _in_kind(w, ready):
    """Of `completes` what blocks of a workload have whose blocks are alike."""
    block = w.block_shapes()
    ready = {**ready, **(of_experts(w) if w.experts else {})}
    return {part: tuple(n for n in names if n in block) for part, names in ready.items()}


def forward(
    of: Mapping[str, tuple[Operation, ...]], blocks: Iterable[int], phase: str = "forward"
) -> list[Part]:
    """Forward of these blocks. of : {name of `PIECES`: operations}."""
    return [
        Part(phase, f"blocks.{i}{layer}", of[name])
        for i in blocks
        for name, layer in FORWARD.items()
    ]


def backward(
    of: Mapping[str, tuple[Operation, ...]],
    i: int,
    recompute: str = "none",
    ready: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> list[Part]:
    """Backward of block i, with what it recomputes. ready : {part: names} that it completes."""
    parts = []
    for name, layer in BACKWARD.items():
        for again in AGAIN[recompute].get(name, ()):
            parts.append(Part("recompute", f"blocks.{i}{FORWARD.get(again, layer)}", of[again]))
        parts.append(Part("backward", f"blocks.{i}{layer}", of[name], ready.get(name, ())))
    return parts


def _entering(w, i, ready):
    """Complete as soon as a gradient enters block i from above, or (-1) leaves the first."""
    if i < 0:
        return () if w.rotary else ("embed.position.weight",)
    return _in_block(i, ready["entering"])


@lru_cache(4096)
def _in_block(i, names):
    return tuple(f"blocks.{i}.{name}" for name in names)
