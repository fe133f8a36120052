"""Clusters to try things on. Each docstring says where its numbers come from and how sure they are;
`clusters.json` does so of devices and nodes.

*Nominal* is the vendor's number, *measured* a published measurement, *derived* our arithmetic.
`as_run_by` gives a cluster of `dgx` as it is: what its GPUs and links reach, what kernels cost.

>>> perlmutter(nodes=2).size
8
>>> sorted(presets())[:3]
['dgx', 'frontier', 'laptop']
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tpviz.core import limits
from tpviz.core.checks import one_of, whole_number

from . import Cluster, Device, Dimension, Level
from .profiles import as_run_by

__all__ = [
    "A100_PCIE",
    "A100_SXM",
    "GPUS",
    "H100_SXM",
    "MI250X_GCD",
    "NODES",
    "TPU_V3",
    "as_run_by",
    "dgx",
    "frontier",
    "laptop",
    "nvlink_pairs",
    "nvswitch",
    "nvswitch_nodes",
    "perlmutter",
    "presets",
    "torus",
]

_READ = json.loads(Path(__file__).with_suffix(".json").read_text())
_HOSTS = _READ["hosts"]["value"]
A100_PCIE, A100_SXM, H100_SXM, MI250X_GCD, TPU_V3 = (
    Device(flops, memory, bandwidth, name, host=_HOSTS.get(name[:4], 0.0))
    for name, flops, memory, bandwidth, _ in _READ["devices"]["value"][1:]
)
GPUS = {
    name: Device(
        {"float16": half, "bfloat16": half, "float32": full},
        memory,
        bandwidth,
        name,
        host=_HOSTS[name[:4]],
    )
    for name, half, full, memory, bandwidth in _READ["gpus"]["value"][1:]
}
"""NVIDIA's data-centre GPUs by the names that published rows use; all numbers nominal."""
NODES = {generation: tuple(row) for generation, row in _READ["nodes"]["value"].items()}
"""Of each generation (GPUs of a node, bytes/s of NVLink out of a GPU in one direction, NICs of a
node, bytes/s of a NIC), nominal."""


def laptop(ranks: int = 4) -> Cluster:
    """A laptop's ranks over gloo, as an order of magnitude: `tpviz.calibrate` measures yours.

    Links derived from timings on 2 cores: an all-reduce of 64 MB over 4 ranks took 89 ms, one of
    4 bytes over 2 ranks 0.09 ms. Compute and memory are a guess for one busy core; its
    host is the same memory.
    """
    flops = {"float64": 10e9, "float32": 20e9, "bfloat16": 5e9}
    device = Device(flops, 2e9, 5e9, "laptop core", host=2.5e9)
    level = [("gloo", ranks, 1.1e9, None, 50e-6)]
    return _cluster("laptop, gloo", device, level, source="order of magnitude; calibrate() yours")


def nvlink_pairs(pairs: int = 4, rings: str = "multi") -> Cluster:
    """A PCIe box whose A100s are joined in pairs by NVLink: the topology that ATP is made for.

    NVLink 211 GB/s and PCIe 17 GB/s between two GPUs: measured, docstrings of ColossalAI's
    AlphaBetaProfiler. Out of a pair 34 GB/s: derived, each GPU its own PCIe link. Rings of several
    pairs 32 GB/s with ``rings="multi"``: measured, traces of ATP's authors on such a box (30 to
    36); "single" holds them to one link. 10 µs a hop: derived from 19 to 23 µs measured for an
    all-reduce of two ranks, which is two hops.
    """
    one_of("rings", rings, ("multi", "single"))
    pairs = whole_number("pairs", pairs, 1, limits.RANKS // 2)
    sizes = range(4, 2 * pairs + 1, 2) if rings == "multi" else ()
    levels = [("NVLink", 2, 211e9, None, 10e-6), ("PCIe", pairs, 17e9, 34e9, 10e-6)]
    return _cluster(
        "NVLink-pair PCIe box",
        A100_PCIE,
        levels,
        rings=rings,
        table={(1, size): 32e9 for size in sizes},
        source="ColossalAI's profiler, ATP's traces; group bandwidth derived",
    )


def nvswitch(gpus: int = 8) -> Cluster:
    """One node of H100s around an NVSwitch.

    450 GB/s out of a GPU: nominal (NVLink 4, 900 GB/s both ways). 3.4 µs a hop: a constant of
    NCCL's tuner for rings over NVLink (its simple protocol).
    """
    return _cluster("NVSwitch node", H100_SXM, [_NVSWITCH(gpus)], source="vendor nominal")


def nvswitch_nodes(nodes: int = 2, gpus: int = 8, nics: int = 8) -> Cluster:
    """Several such nodes behind ``nics`` NICs of 400 Gbit/s each: fewer NICs, more to share.

    50 GB/s a NIC: nominal (ConnectX-7). 9.6 µs a hop: a constant of NCCL's tuner for rings over a
    network (its simple protocol).
    """
    nics = whole_number("nics of level 'network'", nics)
    levels = [_NVSWITCH(gpus), ("network", nodes, 50e9, None, 9.6e-6, nics)]
    name = f"{nodes} NVSwitch nodes, {nics} NIC{'s' * (nics != 1)} each"
    return _cluster(name, H100_SXM, levels, source="vendor nominal")


def dgx(
    gpu: str = "A100-SXM-80GB",
    gpus: int = 16,
    nics: int | None = None,
    nic: float | None = None,
) -> Cluster:
    """``gpus`` GPUs of `GPUS` in NVIDIA's nodes around NVSwitches: what a node has is in `NODES`.

    Rates are nominal, latencies constants of NCCL's tuner. nics : of a node, of ``nic`` bytes/s
    each, where the cluster has others. Raises ``ValueError`` for an unknown GPU and for a node that
    would be cut.
    """
    device = GPUS[one_of("gpu", gpu, tuple(GPUS))]
    size, nvlink, usual_nics, usual_nic = NODES[gpu[:4]]
    nics, nic = usual_nics if nics is None else nics, usual_nic if nic is None else nic
    gpus = whole_number("gpus", gpus, 2, limits.RANKS)
    if gpus > size and gpus % size:
        whole = gpus // size * size
        raise ValueError(
            f"gpus={gpus} cut a node, which has {size} of {gpu}: use gpus={whole} or {whole + size}"
        )
    levels = [
        ("NVSwitch", min(gpus, size), nvlink, None, 3.4e-6),
        ("network", -(-gpus // size), nic, None, 9.6e-6, nics),
    ]
    return _cluster(f"{gpus} {gpu}", device, levels, source="vendor nominal")


def perlmutter(nodes: int = 2) -> Cluster:
    """Nodes of four A100s, all wired to each other, four NICs each.

    76 and 225 GB/s inside a node: measured by AxoNN's authors (tables of their Gordon Bell code);
    our rule gives the whole table from these two, since a ring over 4 GPUs drives 3 of their links.
    80 GB/s out of a node: the same code. So beta_inter / min(4, P) of AxoNN holds for P concurrent
    rings of a node. Latencies: constants of NCCL's tuner.
    """
    levels = [
        ("NVLink", 4, 76e9, 225e9, 3.4e-6, None, True),
        ("Slingshot", nodes, 20e9, None, 9.6e-6, 4),
    ]
    table = {(1, 2): 76e9, (1, 4): 225e9, (2, 2): 76e9}
    return _cluster("Perlmutter", A100_SXM, levels, table=table, source="AxoNN's code")


def frontier(nodes: int = 2) -> Cluster:
    """Nodes of four MI250X, two GCDs each, behind four NICs.

    Inside a node the table measured by AxoNN's authors, which no simple rule explains: level rates
    (129, 36 and 135 GB/s) are taken from it and serve messages and traffic of several axes. Out of
    a node 40 GB/s by the same code, halved there from 80, so 40 / min(8, P) for P concurrent rings.
    Latencies: constants of NCCL's tuner, as for Perlmutter.
    """
    levels = [
        ("package", 2, 129e9, None, 3.4e-6),
        ("node", 4, 36e9, 135e9, 3.4e-6, None, True),
        ("Slingshot", nodes, 10e9, None, 9.6e-6, 4),
    ]
    rates = {(1, 2): 129, (1, 4): 52, (1, 8): 135, (2, 2): 50, (2, 4): 72, (4, 2): 36}
    table = {key: rate * 1e9 for key, rate in rates.items()}
    return _cluster("Frontier", MI250X_GCD, levels, table=table, source="AxoNN's code")


def torus(x: int = 4, y: int = 2) -> Cluster:
    """TPU v3 chips on a 2D torus, neighbours along x numbered first.

    100 GB/s a link and direction: derived from 6.4 TB/s nominal bisection of a 32 x 32 pod, which
    cuts 64 links. 1 µs a hop: assumed.
    """
    sides = {"x": whole_number("x", x), "y": whole_number("y", y)}
    parts = tuple(Dimension(name, n, 100e9, 1e-6) for name, n in sides.items() if n > 1)
    if not parts:
        raise ValueError("a torus of x=1, y=1 has no links: use x=2 or y=2, or more")
    return Cluster(f"{x} x {y} torus", TPU_V3, torus=parts, source="vendor nominal; derived")


def presets() -> dict[str, Callable[..., Cluster]]:
    """{name: function} of all presets, for menus; each works without arguments."""
    made = (laptop, nvlink_pairs, nvswitch, nvswitch_nodes, dgx, perlmutter, frontier, torus)
    return {preset.__name__: preset for preset in made}


def _NVSWITCH(gpus: int):
    return "NVSwitch", gpus, 450e9, None, 3.4e-6


def _cluster(
    name: str,
    device: Device,
    levels: Iterable[Any],
    table: Mapping[tuple[int, int], float] | None = None,
    **more: Any,
):
    """A cluster of those levels that join more than one unit, and of the table rows that fit."""
    for level in levels:
        whole_number(f"units of level {level[0]!r}", level[1])
    parts = tuple(Level(*level) for level in levels if level[1] != 1)
    if not parts:
        raise ValueError(f"{name}: one device alone has no links: ask for 2 or more")
    size = Cluster(name, device, parts).size
    table = {key: rate for key, rate in (table or {}).items() if key[0] * (key[1] - 1) < size}
    return Cluster(name, device, parts, table=table, **more)
