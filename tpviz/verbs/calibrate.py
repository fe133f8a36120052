"""``calibrate``: measure this machine's links and devices on real ranks, and get a `Cluster`.

found = tv.calibrate(4)
found.cluster, found.residual, found.to_svg()
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tpviz.checks import one_of, whole_number
from tpviz.mesh import Mesh
from tpviz.runtime.launch import check_world_size, launch
from tpviz.trace.faithful import warn_if_late

from .calibration import Calibration, calibration_of
from .checks import check_cluster
from .timing import time_paced_rank, time_rank

if TYPE_CHECKING:
    from tpviz.cluster import Cluster

__all__ = ["Calibration", "calibrate"]

SIZES = (2**16, 2**20, 2**22, 2**24)
DTYPES = ("float32", "float64", "bfloat16", "float16")


def calibrate(
    world_size: int = 4,
    axes: dict[str, int] | Mesh | Sequence[dict[str, int] | Mesh] | None = None,
    sizes: Iterable[int] = SIZES,
    *,
    repeats: int = 11,
    dtypes: Iterable[str] = DTYPES[:3],
    gemm: int | None = None,
    cluster: "Cluster | None" = None,
    device: str | None = None,
    timeout: float | None = 300,
    progress: Callable[[int, int, str], Any] | bool | None = None,
) -> Calibration:
    """Measure what groups, devices and memory of this machine do; a `Calibration`.

    For every mesh axis, all its groups run all-reduces (and, as a check, all-gathers and
    reduce-scatters) at once; of several repeats the median counts, and of the groups the slowest.
    A line T = hops * alpha + volume / B is fitted to the all-reduces. Neighbours exchange messages,
    every rank multiplies matrices and copies memory, all at the same time.

    Parameters
    ----------
    axes : the meshes whose axes matter, as {"dp": 2, "tp": 2} or a list of such; every axis that a
        mesh of ``world_size`` ranks can have when left out.
    sizes : bytes of the full tensor, three or more.
    repeats : of each measurement, after two that do not count.
    dtypes, gemm : of the matrix products, and their size (512, on GPUs 4096, when left out).
    cluster : a `Cluster` to emulate meanwhile: what is measured is then its links (the shortest of
        the repeats counts, since nothing ends early), and its device stays as described.
    device, timeout (s), progress : as `tpviz.launch` takes them.

    Raises ``ValueError`` before any rank starts if something does not fit.
    """
    world_size = check_world_size(whole_number("world_size", world_size, 2))
    sizes = _checked_sizes(sizes)
    repeats = whole_number("repeats", repeats)
    dtypes = [one_of("dtype", dtype, DTYPES) for dtype in _listed("dtypes", dtypes, DTYPES[:2])]
    if not dtypes:
        raise ValueError(f"give at least one of the dtypes {', '.join(DTYPES)}")
    gemm = gemm if gemm is None else whole_number("gemm", gemm)
    keys = _keys(world_size, axes)
    if cluster is not None:
        check_cluster(cluster, "as cluster=")
        cluster.check_world(world_size)
        ranks = launch(
            time_paced_rank,
            keys,
            sizes,
            repeats,
            cluster,
            world_size=world_size,
            device=device,
            timeout=timeout,
            progress=progress,
        )
        warn_if_late(max((rank["late"] for rank in ranks), key=lambda late: late["share"]))
        return calibration_of(ranks, cluster)
    ranks = launch(
        time_rank,
        keys,
        sizes,
        repeats,
        dtypes,
        gemm,
        world_size=world_size,
        device=device,
        timeout=timeout,
        progress=progress,
    )
    return calibration_of(ranks)


def _checked_sizes(sizes: Any):
    sizes = _listed("sizes", sizes, SIZES[:3])
    sizes = sorted({whole_number("size of a message", size, 4) for size in sizes})
    if len(sizes) < 3:
        raise ValueError(
            f"{len(sizes)} different sizes are too few for a fit with a residual: "
            f"use 3 or more, as in {SIZES[:3]}"
        )
    return sizes


def _listed(name: str, values: Any, example: Sequence[Any]) -> list[Any]:
    """The values as a list; ``ValueError`` where there is but one, or None."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name}={values!r}: give several in a list, as in {list(example)}")
    return list(values)


def _keys(world_size: int, axes: Any) -> list[tuple[int, int]]:
    """The (stride, size) of the axes, sorted."""
    if axes is None:
        sizes = [n for n in range(2, world_size + 1) if world_size % n == 0]
        strides = range(1, world_size)
        return sorted((s, n) for n in sizes for s in strides if world_size % (s * n) == 0)
    if isinstance(axes, str) or not isinstance(axes, (dict, Mesh, list, tuple)):
        raise ValueError(f'axes={axes!r}: give meshes, as in {{"dp": 2, "tp": {world_size // 2}}}')
    meshes = [axes] if isinstance(axes, (dict, Mesh)) else list(axes)
    found = set()
    for mesh in meshes:
        mesh = mesh if isinstance(mesh, Mesh) else Mesh(mesh)
        if mesh.size != world_size:
            words = " x ".join(f"{name} {size}" for name, size in mesh.axes.items())
            raise ValueError(
                f"mesh {words} has {mesh.size} ranks, but world_size={world_size}: "
                f"use world_size={mesh.size}, or axes whose product is {world_size}"
            )
        stride = 1
        for size in reversed(mesh.shape):
            found |= {(stride, size)} if size > 1 else set()
            stride *= size
    if not found:
        raise ValueError(f"axes={axes!r} has no axis of 2 or more ranks: there is no group to time")
    return sorted(found)
