"""ATP's estimate of communication alone: what a layer sends, how long it takes, the best mesh.

Cheng et al. 2023, https://arxiv.org/abs/2301.08658 (ATP).

We did not have the paper's text. All of this is our derivation from the layouts of the authors'
released code, checked against this package's ledger; the numbers of equations are ours. A = B s h
elements, r the MLP's ratio, e bytes an element, i and s the sizes of *inside* and *stream*, N = i
s. Per layer, forward and backward:

    V = (2 A / N) (4 (i-1) + (4 + 2r) (s-1))         (1)  elements on the wire of a rank, rings
    T = sum over the axes of  V_axis e / B           (2)  B: bus bandwidth; column order
    T = sum over the axes of  payload e / B'         (3)  B': algorithm bandwidth; the same time
    row order: d1 and d2 exchanged                   (4)
    forward alone: payloads 2A/s and (2 + r)A/i      (5)  A1: (3 + r)A/i

With r = 4, (1) is (8 A / N) ((i-1) + 3 (s-1)); with a gated MLP or grouped queries 4 + 2r is
`stream_ratio`. Statistics of norms, embedding and head are not counted. An axis of one rank sends
nothing: its term is 0, whatever its bandwidth.

>>> from tpviz import ATP, GPT
>>> w = GPT(batch=1, seq=1)
>>> {axis: n / w.hidden for axis, n in wire_volume(ATP(mesh=(4, 2)), w).items()}
{'d1': 3.0, 'd2': 3.0}
"""

from collections.abc import Callable, Iterable, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

from tpviz.cluster.collectives import cost
from tpviz.core.checks import one_of
from tpviz.core.mesh import Mesh

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.core.workload import GPT

    from .strategy import ATP

PHASES = ("both", "forward", "backward")


# -- what a layer sends ------------------------------------------------------------------------
def payloads(strategy: "ATP", w: "GPT", phase: str = "both") -> dict[str, float]:
    """{axis: elements} of one layer in all-reduces of the local tensor; two halves are one.

    ``sp`` gathers two inputs again in backward, L2 gathers the whole stream twice each way.
    """
    at, phases, tokens = strategy.layout, _phases(phase), w.batch * w.seq
    qkv, out = w.qkv_features, w.query_features
    if at.a3:  # halves of both, each way
        qkv = out = (qkv + out) / 2
    features = {"forward": qkv + w.up_features, "backward": out + w.mlp_width}
    whole, inside = tokens * w.hidden, sum(3 if at.sp and p == "backward" else 2 for p in phases)
    stream = tokens * sum(features[p] for p in phases)
    gathered = len(phases) * at.l2 * whole / (at.i if at.sp else 1)
    return {
        at.inside: inside * whole / at.s if at.i > 1 else 0.0,
        at.stream: stream / at.i + gathered if at.s > 1 else 0.0,
    }


def stream_ratio(w: "GPT") -> float:
    """Features that a layer sums over *stream*, forward and backward, in ``hidden``: 4 + 2r."""
    return (w.qkv_features + w.up_features + w.query_features + w.mlp_width) / w.hidden


def wire_volume(strategy: "ATP", w: "GPT", phase: str = "both") -> dict[str, float]:
    """{axis: elements} that a rank sends for one layer, rings: (1) is their sum."""
    return {
        axis: cost("ring", "all_reduce", payload, strategy.axes[axis])[1]
        for axis, payload in payloads(strategy, w, phase).items()
    }


# -- how long that takes -----------------------------------------------------------------------
def bus_time(
    strategy: "ATP",
    w: "GPT",
    bandwidths: Sequence[float | None],
    phase: str = "both",
    latencies: Sequence[float] = (0.0, 0.0),
    statistics: bool = False,
) -> float:
    """Seconds of one layer by (2) or (4), with ``phase="forward"`` by (5): derived from the layouts
    of the code that the authors of ATP (arXiv 2301.08658) released.

    bandwidths : (B1, B2), bytes/s that a rank sends on d1 and d2. latencies : seconds of a hop on
    d1 and d2; an axis of n ranks has 4(n-1) hops per phase, with L1's ``statistics`` 8(n-1).
    """
    seconds = _seconds(wire_volume(strategy, w, phase), _by_axis(bandwidths), w)
    delays = _by_axis(latencies)
    for axis, size in strategy.axes.items():
        rounds = 2 if statistics and axis == strategy.layout.stream else 1
        seconds += 4 * len(_phases(phase)) * rounds * (size - 1) * delays[axis] if size > 1 else 0.0
    return seconds


def algorithm_time(
    strategy: "ATP", w: "GPT", bandwidths: Sequence[float | None], phase: str = "both"
) -> float:
    """Seconds of one layer by (3): bandwidths are payload over time, B' = B n / (2(n-1))."""
    return _seconds(payloads(strategy, w, phase), _by_axis(bandwidths), w)


def algorithm_bandwidth(bus: float, size: int) -> float:
    """B', payload over time, of an all-reduce over ``size`` ranks with this bus bandwidth."""
    return bus * size / (2 * (size - 1)) if size > 1 else float("inf")


def communication(strategy: "ATP", w: "GPT", cluster: "Cluster", mesh: Mesh | None = None) -> float:
    """Seconds of all layers by (2) or (4), by the bus bandwidths that the axes have on a cluster.

    Blocks that are recomputed count (5) once more. mesh : default: the strategy's own.
    """
    mesh = mesh or Mesh(strategy.axes)
    rates = [cluster.bandwidth(mesh, axis) for axis in ("d1", "d2")]
    phases = ("both", "forward")[: 1 + (strategy.recompute == "full")]
    return w.layers * sum(bus_time(strategy, w, rates, phase) for phase in phases)


# -- special cases, in elements on the wire per layer --------------------------------------------
# One axis in column order, (n, 1), is Megatron-LM: `tpviz.schemes.megatron.paper.volume`.
def row_parallel_first_volume(w: "GPT", n: int) -> float:
    """Elements sent on the mesh (1, n) in column order: (8 + 4r) A (n-1)/n."""
    return 2 * stream_ratio(w) * w.batch * w.seq * w.hidden * (n - 1) / n


def square_volume(w: "GPT", q: int) -> float:
    """Elements sent on the mesh (q, q): (16 + 4r) A (q-1)/q^2; 32 A (q-1)/q^2 for r = 4."""
    return (8 + 2 * stream_ratio(w)) * w.batch * w.seq * w.hidden * (q - 1) / q**2


def summa_volume(w: "GPT", q: int) -> float:
    """Elements a rank receives per layer under SUMMA (Optimus) on q x q ranks, ideal broadcasts.

    Three products a linear layer, each with one set of activations, (3 + r) A, and one of weights,
    (4 + 2r) h^2: each rank receives (q-1)/q^2 of both. Trees take up to log2 q times as much.
    """
    inputs = w.batch * w.seq * (2 * w.hidden + w.query_features + w.mlp_width)
    return 3 * (inputs + w.block_matrices) * (q - 1) / q**2


# -- the best mesh -----------------------------------------------------------------------------
def optimum(
    w: "GPT", n: int, bandwidths: Sequence[float], order: str = "column"
) -> tuple[float, float, float]:
    """(d1, d2, seconds of a layer) of the best mesh if its sizes could be any numbers.

    With c = 1 + r/2: i = sqrt(c N B_i/B_s), s = sqrt(N B_s/(c B_i)), T = (8 A e/N) (2 sqrt(c N/(B_i
    B_s)) - 1/B_i - c/B_s), from Lagrange on i/B_i + c s/B_s. So T falls as N^-1/2, while on one
    axis it tends to 8 A e/B; both only while bandwidths do not fall as N grows.
    """
    one_of("order", order, ("column", "row"))
    first, second = bandwidths if order == "column" else tuple(bandwidths)[::-1]
    c, unit = stream_ratio(w) / 4, 8 * w.batch * w.seq * w.hidden * w.itemsize / n
    inside, stream = sqrt(c * n * first / second), sqrt(n * second / (c * first))
    seconds = unit * (2 * sqrt(c * n / (first * second)) - 1 / first - c / second)
    return (*((inside, stream) if order == "column" else (stream, inside)), seconds)


def best(
    strategies: "Iterable[ATP]",
    w: "GPT",
    bandwidths: Sequence[float | None] | Callable[[tuple[int, int]], Sequence[float | None]],
) -> "tuple[ATP, float]":
    """(strategy, seconds of a layer): the least by (2) and (4).

    At equal times the one nearest 1D (fewest copies of the hidden activations), then the first.

    strategies : such as those of `ATP.meshes`. bandwidths : (B1, B2), the same for all of them, or
    a function of the mesh (d1, d2) such as `tpviz.views.matrix.CommunicationMatrix.of`.
    """
    rates = bandwidths if callable(bandwidths) else lambda mesh: bandwidths
    timed = [(bus_time(s, w, rates(s.mesh)), s) for s in strategies]
    if not timed:
        raise ValueError("no strategies to choose from: give some, as list(tv.ATP.meshes(w, 8))")
    seconds, chosen = min(timed, key=lambda t: (float(f"{t[0]:.9e}"), t[1].copies))
    return chosen, seconds


def _phases(phase):
    one_of("phase", phase, PHASES)
    return PHASES[1:] if phase == "both" else (phase,)


def _by_axis(pair) -> dict[str, Any]:
    return dict(zip(("d1", "d2"), pair, strict=True))


def _seconds(elements, rates, w):
    """Axes that send nothing cost nothing: their bandwidth may be anything, None included."""
    return sum(n * w.itemsize / rates[axis] for axis, n in elements.items() if n)
