"""Scale models: a large system stood for by a small and slow one, every ratio of durations kept.

Dividing all hidden sizes by c divides the FLOPs of GEMMs by c^2 and activation bytes by c; so
compute rates are divided by c^2, link rates and memory bandwidth by c, memory by c^2: every
duration stays. Then all of it runs some times slower. Weights and their gradients shrink by c^2, so
traffic of data parallelism is too light by c in such a model.

float32 can stand for 16 bits, with which CPUs and gloo are slow: it gets their FLOP/s, and links
and memory carry the doubled bytes in the same time.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from tpviz.core.checks import number, one_of

if TYPE_CHECKING:
    from .description import Cluster

BOUNDS = (1e-12, 1e12)
"""The least and most that a scale may be: their squares are still numbers."""
HALVES = ("bfloat16", "float16")
"""Dtypes that float32 can emulate."""


def scaled(
    cluster: "Cluster", hidden: float = 1, slow_motion: float = 1, dtype: str = ""
) -> "Cluster":
    """Implements `Cluster.scale_model`."""
    hidden = number("hidden", hidden, *BOUNDS)
    slow_motion = number("slow_motion", slow_motion, *BOUNDS)
    if not isinstance(dtype, str) or dtype:
        cluster = _in_float32(cluster, dtype)
    link = hidden * slow_motion
    device = cluster.device.divided(hidden**2 * slow_motion, hidden**2, link, slow_motion)
    return _with(
        cluster,
        device,
        link,
        slow_motion,
        hidden_scale=cluster.hidden_scale * hidden,
        slow_motion=cluster.slow_motion * slow_motion,
    )


def _in_float32(cluster, dtype):
    if cluster.float32_for:
        raise ValueError(
            f"float32 stands for {cluster.float32_for} in {cluster.name!r} already: leave dtype out"
        )
    rates = cluster.device.flops
    if one_of("dtype", dtype, HALVES) not in rates:
        known = " or ".join(repr(d) for d in rates if d in HALVES)
        raise ValueError(
            f"the device {cluster.device.name!r} has no rate for {dtype}: "
            + (f"use dtype={known}" if known else "leave dtype out")
        )
    device = replace(cluster.device, flops={"float32": rates[dtype]}).divided(1, 0.5, 0.5)
    return _with(cluster, device, 0.5, 1, float32_for=dtype)


def _with(cluster, device, link, time, **changed):
    """Another device, links slower by ``link``, latencies longer by ``time``."""
    return replace(
        cluster,
        device=device,
        levels=tuple(part.slower(link, time) for part in cluster.levels),
        torus=tuple(part.slower(link, time) for part in cluster.torus),
        table={key: value / link for key, value in cluster.table.items()},
        latencies={key: value * time for key, value in cluster.latencies.items()},
        overhead=cluster.overhead * time,
        **changed,
    )


def caption(cluster: "Cluster") -> str:
    """The cluster's name; for a scale model, also the factors by which it was scaled."""
    words = [f"hidden sizes 1/{cluster.hidden_scale:g}"] if cluster.hidden_scale != 1 else []
    words += [f"{cluster.slow_motion:g} x slow motion"] if cluster.slow_motion != 1 else []
    words += [f"float32 for {cluster.float32_for}"] if cluster.float32_for else []
    return cluster.name + (f" (scale model: {', '.join(words)})" if words else "")


def stands_for(cluster: "Cluster") -> dict[str, float]:
    """{"link", "compute", "memory"}: factors by which this scale model's rates and memory bytes
    must be multiplied to get those of the original system."""
    width, hidden, slow = 1 + bool(cluster.float32_for), cluster.hidden_scale, cluster.slow_motion
    return {"link": hidden * slow / width, "compute": hidden**2 * slow, "memory": hidden**2 / width}
