"""The order of a GPT's step, for cost formulas: which kernels, and when gradients are complete.

A scheme gives one `Stretch` per part of the network (`Step`), with its own collectives in it;
`segments` repeats those of a block for every block. One process has no collectives: `reference`.

Backward completes gradients in this order: head and last LayerNorm, then block by block down, up,
norm2, out, qkv, norm1, then positions and tokens; `completes` has the finer points.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tpviz.cost import Segment, Stretch

from .kernels import Kernel, adamw, attention, linear
from .memory import held

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.workload import GPT


class Times(NamedTuple):
    """Seconds of a GPT's kernels on one device.

    Linear layers: (forward, input's gradient, weight's gradient); attention: (forward, backward).
    """

    qkv: tuple[float, ...]
    core: tuple[float, ...]
    out: tuple[float, ...]
    up: tuple[float, ...]
    down: tuple[float, ...]
    head: tuple[float, ...]


def times(w: "GPT", cluster: "Cluster", parts: int = 1) -> Times:
    """The `Times` of a rank that holds 1/``parts`` of every matrix and of the heads."""
    seconds, item, T = seconds_of(w, cluster), w.itemsize, w.batch * w.seq
    h, f, whole = w.hidden, w.mlp_ratio * w.hidden, parts == 1
    kernels = (
        linear(T, h, 3 * h // parts, item),
        attention(w.batch, w.heads // parts, w.seq, h // w.heads, item),
        linear(T, h // parts, h, item, bias=whole),  # partial sums get their bias after they are
        linear(T, h, f // parts, item),  # added up, not in the kernel
        linear(T, f // parts, h, item, bias=whole),
        linear(T, h, w.vocab // parts, item, bias=False),
    )
    return Times(*(tuple(map(seconds, of_layer)) for of_layer in kernels))


def seconds_of(w: "GPT", cluster: "Cluster") -> Callable[[Kernel], float]:
    """kernel -> its seconds on a device of the cluster, in the workload's dtype."""
    device, dtype = cluster.device, w.dtype
    return lambda kernel: device.time(kernel.flops, kernel.bytes, dtype)


class Step(NamedTuple):
    """The `Stretch` of each part of the network, forward then backward, and what comes after.

    ready : which parameters of a block each part of backward completes, from `completes`.
    """

    attention: Stretch
    mlp: Stretch
    head: Stretch
    head_back: Stretch
    down_back: Stretch
    up_back: Stretch
    out_back: Stretch
    qkv_back: Stretch
    update: Stretch
    core_back: Stretch = Stretch()
    norm1_back: Stretch = Stretch()
    norm2_back: Stretch = Stretch()
    norm_back: Stretch = Stretch()
    embed: Stretch = Stretch()
    embed_back: Stretch = Stretch()
    sync: Stretch = Stretch()
    ready: dict[str, tuple[str, ...]] = {}


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
        "qkv_back": of_layer(qkv, first),
        "norm1_back": ("norm1.weight", "norm1.bias"),
    }


def reference(w: "GPT", cluster: "Cluster") -> list[Segment]:
    """The segments of the whole model on one device."""
    t = times(w, cluster)
    return segments(
        w,
        Step(
            attention=Stretch().kernel(t.qkv[0], t.core[0], t.out[0]),
            mlp=Stretch().kernel(t.up[0], t.down[0]),
            head=Stretch().kernel(t.head[0]),
            head_back=Stretch().kernel(*t.head[1:]),
            down_back=Stretch().kernel(*t.down[1:]),
            up_back=Stretch().kernel(*t.up[1:]),
            out_back=Stretch().kernel(*t.out[1:]),
            core_back=Stretch().kernel(t.core[1]),
            qkv_back=Stretch().kernel(*t.qkv[1:]),
            update=update(w, cluster, held(w)),
            ready=completes(),
        ),
    )


def update(w: "GPT", cluster: "Cluster", numel: int) -> Stretch:
    """The optimizer's `Stretch`: one fused kernel on ``numel`` parameters."""
    return Stretch().kernel(seconds_of(w, cluster)(adamw(numel * w.itemsize)))


def gradient_ready_order(w: "GPT", ready: dict[str, tuple[str, ...]]) -> list[str]:
    """Parameter names in the order in which backward completes their gradients (`completes`)."""
    step = Step(*[Stretch()] * 9, ready=ready)
    return [name for segment in segments(w, step) for name in segment.ready]


def segments(w: "GPT", step: Step) -> list[Segment]:
    """All segments of one step in time order, with the parameters whose gradients they complete."""
    found = [step.embed.segment("forward", "embed")]
    for i in range(w.layers):
        found.append(step.attention.segment("forward", f"blocks.{i}.attention"))
        found.append(step.mlp.segment("forward", f"blocks.{i}.mlp"))
    found.append(step.head.segment("forward", "head"))
    last = () if w.tied else ("head.weight",)
    entering = _entering(w.layers - 1, step.ready)
    found += [
        step.head_back.segment("backward", "head", last),
        step.norm_back.segment("backward", "norm", ("norm.weight", "norm.bias", *entering)),
    ]
    for i in reversed(range(w.layers)):
        found += _backward(i, step)
    return found + [
        step.embed_back.segment("backward", "embed", ("embed.token.weight",)),
        step.sync.segment("sync"),
        step.update.segment("optimizer"),
    ]


LAYERS = {
    "down_back": ".mlp.down",
    "up_back": ".mlp.up",
    "norm2_back": ".norm2",
    "out_back": ".attention.out",
    "core_back": ".attention",
    "qkv_back": ".attention.qkv",
    "norm1_back": ".norm1",
}


def _backward(i, step):
    """The segments of block i, last layer first."""
    block, found = f"blocks.{i}", []
    for part, layer in LAYERS.items():
        names = tuple(f"{block}.{name}" for name in step.ready[part])
        if part == "norm1_back":
            names += _entering(i - 1, step.ready)
        found.append(getattr(step, part).segment("backward", block + layer, names))
    return found


def _entering(i, ready):
    """Complete as soon as a gradient enters block i from above, or (-1) leaves the first."""
    if i < 0:
        return ("embed.position.weight",)
    return tuple(f"blocks.{i}.{name}" for name in ready["entering"])
