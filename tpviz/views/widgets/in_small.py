"""A plan in small: the same axes on a few ranks, a small model, and a cluster cut to their number.

>>> from tpviz import DataParallel, GPT, Megatron, clusters
>>> plan = Megatron(tp=8) * DataParallel(dp=64)
>>> w = GPT(layers=80, hidden=8192, heads=64, seq=4096, batch=1024, vocab=32000, dtype="bfloat16")
>>> small = in_small(plan, w, clusters.dgx("H100-SXM-80GB", 512), 8)
>>> small.strategy.axes, [level.units for level in small.cluster.levels]
({'dp': 4, 'tp': 2}, [2, 4])
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from math import prod
from typing import Any, NamedTuple

from tpviz.cluster import Cluster
from tpviz.core.workload import GPT
from tpviz.schemes.strategy import Strategy
from tpviz.views.plans.factors import parts
from tpviz.views.plans.fitting import Fitting

HIDDEN, HEADS, SEQ, VOCAB, EXPERTS = 128, 8, 64, 512, 16
LAYERS, PASSES, CHUNKS = 2, 4, 2
"""Blocks of a stage; microbatches for each rank of a pipeline, and stages of a rank, at most."""


class Small(NamedTuple):
    """A strategy that a few ranks run, its workload and cluster, and what stands for what."""

    strategy: Strategy
    workload: GPT
    cluster: Cluster
    words: str


def in_small(strategy: Strategy, workload: GPT, cluster: Cluster, ranks: int) -> Small:
    """The `Small` of a plan on at most ``ranks`` ranks.

    Every axis of more than one rank keeps two or more, the largest the most, as long as there are
    ranks; of more axes than that the smallest are left out. The ratio of a layer's arithmetic to
    the bytes of its activations is kept, by rates divided as hidden sizes are; those of gradients,
    and of latencies, are not.
    """
    w, sizes = workload, shrunk(strategy.axes, ranks)
    inner, outer, between, placement = parts(strategy)
    assert inner is not None
    inner, outer = _resized(inner, sizes), outer and _resized(outer, sizes)
    between = [_resized(factor, sizes) for factor in between]
    divided = w.hidden / HIDDEN
    stages = getattr(inner, "stages", 1)
    changes: dict[str, Any] = {"seq": min(SEQ, w.seq), "vocab": min(VOCAB, w.vocab)}
    layers = max(min(w.layers, LAYERS * stages), w.moe_every)
    changes |= {"layers": layers, "hidden": HIDDEN, "heads": HEADS}
    changes["first_dense"] = min(w.first_dense, 1)
    if w.kv_heads:
        shares = prod(inner.axes.values()) if outer else max(sizes.values())
        changes["kv_heads"] = min(HEADS, max(HEADS * w.kv_heads // w.heads, shares))
    for width in ("ffn", "moe_ffn"):
        if size := getattr(w, width):
            changes[width] = max(1, round(size / divided / 16)) * 16
    if w.experts:
        changes["experts"] = min(w.experts, max(EXPERTS, w.top_k))
        changes |= {"groups": 1, "top_groups": None}
    if w.kv_lora:
        least = lambda size: max(1, round(size))
        changes |= {"kv_lora": least(w.kv_lora / divided), "v_dim": None}
        changes["q_lora"] = w.q_lora and least(w.q_lora / divided)
        changes["rope_dim"] = 2 * least(HIDDEN / HEADS * (w.rope_dim or 0) / w.key_size / 2)
    batch = prod(sizes.values()) * getattr(inner, "microbatches", getattr(inner, "accumulation", 1))
    small = replace(w, dtype="float32", batch=batch, documents=(), head_dim=None, **changes)
    # what does not fit gives way
    fitting = Fitting(small, inner, outer, ranks, (), between, placement)
    made, small = fitting.strategy, fitting.workload
    half = w.dtype if w.dtype in cluster.device.flops and w.dtype != "float32" else ""
    cut = _cut(cluster, strategy.axes, made.axes).scale_model(hidden=divided, dtype=half)
    return Small(made, small, cut, _words(strategy, w, made, small))


def shrunk(axes: Mapping[str, int], ranks: int) -> dict[str, int]:
    """{axis: its ranks in small}: each of two or more at two; the smallest left out where these
    are too many; then the largest doubled as long as there are ranks.

    >>> shrunk({"pp": 4, "dp": 16, "tp": 8}, 8), shrunk({"dp": 512, "tp": 1}, 8)
    ({'pp': 2, 'dp': 2, 'tp': 2}, {'dp': 8, 'tp': 1})
    """
    found = {axis: min(size, 2) for axis, size in axes.items()}
    for axis in sorted(axes, key=axes.__getitem__):
        if prod(found.values()) > ranks:
            found[axis] = 1
    while grown := [a for a, n in found.items() if 1 < n <= axes[a] / 2]:
        if 2 * prod(found.values()) > ranks:
            break
        found[max(grown, key=lambda a: axes[a] / found[a])] *= 2
    return found


def _resized(strategy: Strategy, sizes: Mapping[str, int]) -> Strategy:
    """The strategy with so many ranks of each axis, and as many microbatches for each rank of a
    pipeline as before, up to `PASSES`, and stages of a rank, up to `CHUNKS`."""
    own = {axis: sizes[axis] for axis in strategy.axes}
    changes: dict[str, Any] = {}
    for f in fields(strategy):
        value = getattr(strategy, f.name)
        if f.name in own:
            changes[f.name] = own[f.name]
        elif value == tuple(strategy.axes.values()):  # the shape of a mesh
            changes[f.name] = tuple(own.values())
        elif f.name == "accumulation":
            changes[f.name] = min(PASSES, value)
    made = replace(strategy, **(changes | getattr(strategy, "knobs_of", lambda _: {})(own)))
    if "pp" in own and hasattr(strategy, "microbatches"):
        each = strategy.microbatches / strategy.axes["pp"]  # pyright: ignore[reportAttributeAccessIssue]
        count = own["pp"] * max(1, min(PASSES, round(each)))
        chunks = min(CHUNKS, strategy.chunks)  # pyright: ignore[reportAttributeAccessIssue]
        made = replace(made, **{"microbatches": count, "chunks": chunks})
    return made


def _cut(cluster: Cluster, axes: Mapping[str, int], small: Mapping[str, int]) -> Cluster:
    """The cluster with as few devices as the small axes have ranks, so that the axes that were
    inside a node still are. A level of one unit is left out; NICs are as many for each device."""
    if len(cluster.levels) != 2:
        return cluster
    inside, outside = cluster.levels
    node, stride, ranks = 1, 1, prod(small.values())
    for axis in reversed(list(axes)):
        if stride * axes[axis] <= inside.units:
            node *= small[axis]
        elif stride < inside.units and small[axis] > 2:  # across nodes: two ranks in each
            node *= 2
        stride *= axes[axis]
    share = node / inside.units
    nics = outside.nics and max(1, round(outside.nics * share))
    group = outside.group if nics is None else nics * outside.p2p
    levels = (
        replace(inside, units=node) if node > 1 else None,
        replace(outside, units=ranks // node, nics=nics, group=group) if ranks > node else None,
    )
    return replace(cluster, levels=tuple(filter(None, levels)))


def _words(strategy: Strategy, w: GPT, made: Strategy, small: GPT):
    """What stands for what."""
    axes = [
        f"{axis} {size} \N{RIGHTWARDS ARROW} {made.axes.get(axis, 1)}"
        for axis, size in strategy.axes.items()
        if size > 1
    ]
    chunks = [getattr(parts(s)[0], "chunks", 1) for s in (strategy, made)]
    if chunks[0] != chunks[1]:
        axes.append("chunks {} \N{RIGHTWARDS ARROW} {}".format(*chunks))
    sizes = [
        f"{name} {getattr(w, name):,} \N{RIGHTWARDS ARROW} {getattr(small, name):,}"
        for name in ("layers", "hidden", "seq", "batch", "vocab")
    ]
    return (
        f"Scale model: {made.world_size} ranks here stand for {strategy.world_size:,} GPUs "
        f"({', '.join(axes)}), a small model for the whole one ({', '.join(sizes)}). Kernels and "
        "links are paced so that a layer's arithmetic and its activations' traffic keep their "
        "ratio; gradients are too light and latencies too heavy. It shows who waits for what, "
        "not how long the plan's step is."
    )
