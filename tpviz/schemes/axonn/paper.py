"""AxoNN's model of communication: what every layer sends, over the bandwidth of each axis.

Singh et al., https://arxiv.org/abs/2305.13525 and https://arxiv.org/abs/2502.08145.

We did not have the papers' full texts: equations as in the authors' code, checked against this
package's ledger. A layer with k input and n output features, m tokens of a data replica, rings,
elements on the wire of a rank:

    gather over z      (z-1)/z  k n / (x y)          scatter over z    as many
    forward over y   2 (y-1)/y  m n / (z x)          backward over x   2 (x-1)/x  m k / (z y)
    data             2 (d-1)/d  k n / (x y z)

In a transposed layer (every second) x and y are exchanged. Forward's are sent R times, R = 2 with
recomputation; z gathers R times, once more without ``keep``, for each microbatch. No latency, no
LayerNorm statistics, embedding or head, and nothing hidden. So a block of GPT sends, r the MLP's
ratio, a = 2, 3 or 4 passes of weights (`closed_forms`; with r = 4 7R + 5, 2R + 2, 12 h^2; gated
MLPs and grouped queries have other widths):

    x: 2 (x-1)/x  m h/(z y) (2R + 2)                 z: a (z-1)/z  (4 + 2r) h^2 / (x y)
    y: 2 (y-1)/y  m h/(z x) ((3 + r) R + 1 + r)      data: 2 (d-1)/d  (4 + 2r) h^2 / (x y z)

>>> from tpviz import AxoNN, GPT
>>> w = GPT(batch=1, seq=1)
>>> {axis: n / w.hidden for axis, n in elements(AxoNN(x=2, y=2, z=1), w).items()}
{'data': 0.0, 'z': 0.0, 'y': 6.0, 'x': 2.0}
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

from tpviz.schemes.advice import fits

from .rates import insides, of_cluster

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.core.mesh import Mesh
    from tpviz.core.workload import GPT

    from .strategy import AxoNN


class FC(NamedTuple):
    """A fully connected layer: ``k`` features in, ``n`` out. transposed : with x and y swapped."""

    k: int
    n: int
    transposed: bool = False


class Volume(NamedTuple):
    """Elements on the wire of a rank for one layer, each collective once."""

    gather: float
    scatter: float
    forward: float
    backward: float
    data: float


def block(w: "GPT") -> tuple[FC, FC, FC, FC]:
    """The layers of a block: qkv, out, up, down."""
    h = w.hidden
    return (
        FC(h, w.qkv_features),
        FC(w.query_features, h, True),
        FC(h, w.up_features),
        FC(w.mlp_width, h, True),
    )


def volume(fc: FC, tokens: float, x: int = 1, y: int = 1, z: int = 1, data: int = 1) -> Volume:
    """The `Volume` of a layer: the five terms above (arXiv 2305.13525 and arXiv 2502.08145, as in
    the authors' code). tokens : of one data replica."""
    contract, out = (x, y) if fc.transposed else (y, x)
    piece = fc.k * fc.n / (x * y * z)
    return Volume(
        (z - 1) * piece,
        (z - 1) * piece,
        2 * (contract - 1) / contract * tokens * fc.n / (z * out),
        2 * (out - 1) / out * tokens * fc.k / (z * contract),
        2 * (data - 1) / data * piece,
    )


def passes(strategy: "AxoNN") -> tuple[int, int]:
    """(forward passes R, times z moves the weights of a microbatch: 2, 3 or 4)."""
    forward = 1 + (strategy.recompute == "full")
    return forward, forward + (not strategy.keep) + 1


def elements(strategy: "AxoNN", w: "GPT") -> dict[str, float]:
    """{axis: elements} on the wire of a rank for one block and a whole step."""
    s, found = strategy, dict.fromkeys(strategy.axes, 0.0)
    forward, weights = passes(s)
    for fc in block(w):
        v = volume(fc, w.batch * w.seq / s.data, s.x, s.y, s.z, s.data)
        contract, out = ("x", "y") if fc.transposed else ("y", "x")
        found["z"] += s.accumulation * ((weights - 1) * v.gather + v.scatter)
        found[contract] += forward * v.forward
        found[out] += v.backward
        found["data"] += v.data
    return found


def closed_forms(strategy: "AxoNN", w: "GPT") -> dict[str, float]:
    """As `elements`, by the closed-form sums above."""
    s, forward_y = strategy, w.qkv_features + w.up_features
    backward_y = w.query_features + w.mlp_width
    forward, weights = passes(s)
    rows, matrix = w.batch * w.seq / s.data / s.z, w.block_matrices / (s.x * s.y)
    return {
        "data": 2 * (s.data - 1) / s.data * matrix / s.z,
        "z": s.accumulation * weights * (s.z - 1) / s.z * matrix,
        "y": 2 * (s.y - 1) / s.y * rows / s.x * (forward_y * forward + backward_y),
        "x": 2 * (s.x - 1) / s.x * rows / s.y * w.hidden * (2 * forward + 2),
    }


# -- how long that takes ---------------------------------------------------------------------------
def seconds_by_axis(
    strategy: "AxoNN",
    w: "GPT",
    rates: Callable[[int, int], float],
    axes: Mapping[str, int] | None = None,
    gradient_bytes: int | None = None,
) -> dict[str, float]:
    """{axis: seconds} of all blocks in a step.

    rates : called with (inside, size), bytes/s, as `rates.Rates`. axes : {name: size}, outer first,
    that the ranks lie on: the strategy's own unless given. gradient_bytes : of an element that
    ``data`` sums, the workload's unless given (4 in the authors' runs).
    """
    place, found = insides(axes or strategy.axes), {}
    for axis, count in elements(strategy, w).items():
        size = gradient_bytes if axis == "data" and gradient_bytes else w.itemsize
        found[axis] = (
            w.layers * count * size / rates(place[axis], strategy.axes[axis]) if (count) else 0.0
        )
    return found


def seconds(
    strategy: "AxoNN",
    w: "GPT",
    rates: Callable[[int, int], float],
    axes: Mapping[str, int] | None = None,
    gradient_bytes: int | None = None,
) -> float:
    """The sum of `seconds_by_axis`, which AxoNN minimises."""
    return sum(seconds_by_axis(strategy, w, rates, axes, gradient_bytes).values())


def communication(
    strategy: "AxoNN", w: "GPT", cluster: "Cluster", mesh: "Mesh | None" = None
) -> float:
    """As `seconds`, with the bandwidths that the axes have on ``cluster``."""
    axes = mesh.axes if mesh else strategy.axes
    size = mesh.size if mesh else strategy.world_size
    return seconds(strategy, w, of_cluster(cluster, size), axes)


# -- the best grid ---------------------------------------------------------------------------------
def fitting(strategies: "Iterable[AxoNN]", w: "GPT") -> "Iterator[AxoNN]":
    """The strategies whose sizes divide the workload's, checked on one layer."""
    one = w.one_layer
    for strategy in strategies:
        if fits(strategy, one):
            yield strategy


def ranking(
    strategies: "Iterable[AxoNN]",
    w: "GPT",
    rates: Callable[[int, int], float],
    least: int = 1,
    gradient_bytes: int | None = None,
) -> "list[tuple[AxoNN, float]]":
    """[(strategy, seconds)] of those whose sizes divide, least first: the papers' way to choose.

    At equal times the fewest copies of hidden activations come first. Nothing is said of memory but
    that the model is cut over ``least`` ranks, x y z (`models.LEAST_RANKS`).

    strategies : such as ``AxoNN.space(w, 4096)``. rates : see `seconds_by_axis`.
    """
    known = {}

    def rate(inside, size):
        if (inside, size) not in known:
            known[inside, size] = rates(inside, size)
        return known[inside, size]

    timed = [
        (s, seconds(s, w, rate, None, gradient_bytes))
        for s in fitting(strategies, w)
        if s.x * s.y * s.z >= least
    ]
    return sorted(timed, key=lambda t: (float(f"{t[1]:.9e}"), t[0].copies))


def optimum(
    w: "GPT", plane: int, bandwidths: tuple[float, float] = (1.0, 1.0), recompute: bool = False
) -> tuple[float, float]:
    """(x, y) of the best plane of x y = ``plane`` ranks if sizes could be any numbers (derived).

    x/y = ((3 + r) R + 1 + r)/(2R + 2) b_x/b_y, from Lagrange: 3 for equal bandwidths (b_x, b_y) and
    r = 4, with recomputation 19/6.
    """
    forward, (of_x, of_y) = 1 + recompute, bandwidths
    y = (w.qkv_features + w.up_features) * forward + w.query_features + w.mlp_width
    ratio = y / w.hidden / (2 * forward + 2) * of_x / of_y
    return sqrt(plane * ratio), sqrt(plane / ratio)
