"""The order of a GPT's step, for cost formulas: which kernels, and when gradients are complete.

A scheme gives one `Stretch` per part of the network (`Step`), with its own collectives in it;
`segments` repeats those of a block for every block. One process has no collectives: `reference`.

Backward completes gradients in this order: head and last LayerNorm, then block by block down, up,
norm2, out, qkv, norm1, then positions and tokens.
"""

from typing import NamedTuple

from tpviz.cost import Stretch

from .kernels import adamw, attention, linear
from .memory import held


class Times(NamedTuple):
    """Seconds of a GPT's kernels on one device.

    Linear layers: (forward, input's gradient, weight's gradient); attention: (forward, backward).
    """

    qkv: tuple
    core: tuple
    out: tuple
    up: tuple
    down: tuple
    head: tuple


def times(w, cluster, parts=1):
    """The `Times` of a rank that holds 1/``parts`` of every matrix and of the heads."""
    seconds, item, T = seconds_of(w, cluster), w.itemsize, w.batch * w.seq
    h, f, whole = w.hidden, w.mlp_ratio * w.hidden, parts == 1
    kernels = (
        linear(T, h, 3 * h // parts, item),
        attention(w.batch, w.heads // parts, w.seq, h // w.heads, item),
        linear(T, h // parts, h, item, bias=whole),  # partial sums get their bias after they are
        linear(T, h, f // parts, item),              # added up, not in the kernel
        linear(T, f // parts, h, item, bias=whole),
        linear(T, h, w.vocab // parts, item, bias=False),
    )
    return Times(*(tuple(map(seconds, of_layer)) for of_layer in kernels))


def seconds_of(w, cluster):
    """kernel -> its seconds on a device of the cluster, in the workload's dtype."""
    device, dtype = cluster.device, w.dtype
    return lambda kernel: device.time(kernel.flops, kernel.bytes, dtype)


class Step(NamedTuple):
    """The `Stretch` of each part of the network, forward then backward, and what comes after.

    early : the biases of out and down are added after a sum over ranks, not in the GEMM, so their
    gradients are complete before those GEMMs' backward.
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
    embed: Stretch = Stretch()
    embed_back: Stretch = Stretch()
    sync: Stretch = Stretch()
    early: bool = False


def reference(w, cluster):
    """The segments of the whole model on one device."""
    t = times(w, cluster)
    return segments(w, Step(
        attention=Stretch().kernel(t.qkv[0], t.core[0], t.out[0]),
        mlp=Stretch().kernel(t.up[0], t.down[0]),
        head=Stretch().kernel(t.head[0]),
        head_back=Stretch().kernel(*t.head[1:]),
        down_back=Stretch().kernel(*t.down[1:]),
        up_back=Stretch().kernel(*t.up[1:]),
        out_back=Stretch().kernel(*t.out[1:]),
        qkv_back=Stretch().kernel(t.core[1], *t.qkv[1:]),
        update=update(w, cluster, held(w)),
    ))


def update(w, cluster, numel):
    """The optimizer's `Stretch`: one fused kernel on ``numel`` parameters."""
    return Stretch().kernel(seconds_of(w, cluster)(adamw(numel * w.itemsize)))


def arrivals(w, early=False):
    """Parameter names in the order in which backward completes their gradients."""
    nothing = Stretch()
    step = Step(*[nothing] * 9, early=early)
    return [name for segment in segments(w, step) for name in segment.ready]


def segments(w, step):
    """All segments of one step in time order, with the parameters whose gradients they complete."""
    found = [step.embed.segment("forward", "embed")]
    for i in range(w.layers):
        found.append(step.attention.segment("forward", f"blocks.{i}.attention"))
        found.append(step.mlp.segment("forward", f"blocks.{i}.mlp"))
    found.append(step.head.segment("forward", "head"))
    entering = _entering(w.layers - 1, step.early)
    last = () if w.tied else ("head.weight",)
    found.append(step.head_back.segment(
        "backward", "head", (*last, "norm.weight", "norm.bias", *entering)))
    for i in reversed(range(w.layers)):
        found += _backward(i, step)
    return found + [
        step.embed_back.segment("backward", "embed", ("embed.token.weight",)),
        step.sync.segment("sync"),
        step.update.segment("optimizer"),
    ]


def _backward(i, step):
    """The four segments of block i, last layer first."""
    a, m, n, early = f"blocks.{i}.attention", f"blocks.{i}.mlp", f"blocks.{i}.norm", step.early
    down, up, out, qkv = (f"{layer}." for layer in (f"{m}.down", f"{m}.up", f"{a}.out", f"{a}.qkv"))
    # autograd's own linear layers give the bias first, those of a scheme the weight
    first, then = ("weight", "bias") if early else ("bias", "weight")
    return [
        step.down_back.segment("backward", down[:-1], (
            (down + "weight",) if early else (down + "bias", down + "weight"))),
        step.up_back.segment("backward", up[:-1], (
            up + first, up + then, f"{n}2.weight", f"{n}2.bias",
            *((out + "bias",) if early else ()))),
        step.out_back.segment("backward", out[:-1], (
            (out + "weight",) if early else (out + "bias", out + "weight"))),
        step.qkv_back.segment("backward", qkv[:-1], (
            qkv + first, qkv + then, f"{n}1.weight", f"{n}1.bias", *_entering(i - 1, early))),
    ]


def _entering(i, early):
    """Complete as soon as a gradient enters block i from above, or (-1) leaves the first."""
    if i < 0:
        return ("embed.position.weight",)
    return (f"blocks.{i}.mlp.down.bias",) if early else ()
