"""``simulate``: a GEMM and its collective on simulated GPUs, tile by tile.

>>> done = simulate(Gemm(512, 512, 256), 4, Machine(cus=4))
>>> done
<Played t3_mca of 512x512x256 on 4 GPUs (mirror): 30.1 µs, simulated>
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpviz.core.checks import one_of, whole_number

from .dram import EventClock
from .gpu import Gpu
from .machine import Gemm, Machine
from .map_errors import check
from .maps import COLLECTIVES, Dma, Remote
from .maps import maps as maps_of
from .payload import Payload
from .result import SimResult, played
from .ring import all_gather, reduce_scatter
from .tiling import Tiling

if TYPE_CHECKING:
    import numpy as np

    from .maps import Rule

CONFIGS = {
    "sequential": "GEMM, then reduce-scatter by compute units, then all-gather",
    "t3": "GEMM and reduce-scatter fused, the memory serves both alike; then all-gather",
    "t3_mca": "the same, the memory serves the GEMM first; then all-gather",
    "ideal": "GEMM and reduce-scatter at once, neither slows the other; then all-gather",
    "ideal_nmc": "the same, with near-memory reduction",
}
"""{configuration of the paper: what it does}."""


def simulate(
    gemm: Gemm,
    ranks: int,
    machine: Machine | None = None,
    config: str = "t3_mca",
    collective: str = "ring_rs",
    mode: str = "mirror",
    values: "Sequence[np.ndarray | tuple[np.ndarray, np.ndarray]] | None" = None,
    maps: "Sequence[Sequence[tuple[int, Rule]]] | None" = None,
    contention: bool = True,
) -> SimResult:
    """Simulate a GEMM whose output goes through a collective: a `SimResult`.

    Parameters
    ----------
    gemm : `Gemm`, of each rank. ranks : GPUs. machine : `Machine`, each of them.
    config : of `CONFIGS`. Only "t3" and "t3_mca" have collectives other than "ring_rs".
    mode : "mirror", one GPU is simulated and what it sends comes in as if from its neighbour (the
        paper's way), or "full", all of them. "t3" and "t3_mca" alone; the others are mirrored.
    values : per rank an m x n partial, or (A, B); what T3 makes of them is in ``.values``. Full
        mode only.
    maps : per rank a list of (chunk, rule) in place of those of ``collective``, which stays the
        goal. See `maps.maps`.
    contention : False: communication has a memory of its own and an update costs as a write.

    "t3" on a machine whose policy is "mca" is "t3_mca", and called so.
    Raises ``ValueError`` on sizes that clash and on maps that `map_errors.check` refuses.
    """
    machine = Machine() if machine is None else machine
    if not isinstance(gemm, Gemm) or not isinstance(machine, Machine):
        raise ValueError(f"simulate takes a Gemm and a Machine, not {gemm!r} and {machine!r}")
    ranks = whole_number("ranks", ranks, 1, 1024)
    config = one_of("config", config, tuple(CONFIGS))
    collective = one_of("collective", collective, tuple(COLLECTIVES))
    mode = one_of("mode", mode, ("mirror", "full"))
    tiling = Tiling(gemm, ranks)
    if config not in ("t3", "t3_mca"):
        if collective != "ring_rs" or maps is not None or values is not None:
            raise ValueError(
                f"config={config!r} is of ring_rs, without maps or values of your own:"
                " use config='t3' or 't3_mca'"
            )
        return _separate(tiling, machine, config)
    if machine.policy == "mca":
        config = "t3_mca"
    given = maps_of(collective, ranks) if maps is None else _checked(maps, collective, ranks)
    if mode == "mirror":
        _check_mirror(tiling, given, values)
    return _fused(tiling, machine, config, collective, mode, values, given, contention)


def _checked(maps, collective, ranks):
    """``maps`` if they are the collective."""
    if isinstance(maps, (list, tuple)) and len(maps) != ranks:
        raise ValueError(f"maps of {len(maps)} ranks for ranks={ranks}: give one for each rank")
    if faults := check(maps, collective):
        raise ValueError(
            f"these maps are no {collective}:\n" + "\n".join(f"- {line}" for line in faults[:8])
        )
    return maps


def _separate(tiling, machine, config):
    """GEMM and reduce-scatter each alone on the machine; ideal: at the same time, by fiat."""
    clock = EventClock()
    plain = [(chunk, None) for chunk in range(tiling.ranks)]
    gpu = Gpu(clock, tiling, machine, "round_robin", plain, bypass=False)
    gpu.begin()
    clock.run()
    start = gpu.finished if config == "sequential" else 0.0
    scatter = _passed(reduce_scatter, tiling, machine, start, config == "ideal_nmc")
    gather = _passed(all_gather, tiling, machine, max(gpu.finished, scatter.ended))
    ends = gpu.finished, scatter.ended, gather.ended
    return played(tiling, (machine, config, "ring_rs", "mirror"), [gpu], [[scatter, gather]], ends)


def _passed(ring, tiling, machine, start, *more, rank=0):
    """A pass of a ring that has run, with the bytes of one rank."""
    sizes = tiling.chunk_bytes
    found = ring(EventClock(), machine, sizes[rank:] + sizes[:rank], tiling.ranks, start, *more)
    found.clock.run()
    return found


def _fused(tiling, machine, config, collective, mode, values, rules, contention):
    goal, clock = COLLECTIVES[collective], EventClock()
    payload = None if values is None else Payload(values, tiling, goal)
    policy = "mca" if config == "t3_mca" else machine.policy
    gpus = [
        Gpu(clock, tiling, machine, policy, rules[rank], goal, rank, True, contention, payload)
        for rank in range(tiling.ranks if mode == "full" else 1)
    ]
    _connect(gpus, tiling, mode)
    for gpu in gpus:
        gpu.begin()
    clock.run()
    while any([gpu.spill(clock.now) for gpu in gpus]):  # all of them, where none moves any more
        clock.run()
    _check_complete(gpus)
    gemm_end, end = (max(getattr(g, what) for g in gpus) for what in ("finished", "complete"))
    passes = [
        [_passed(all_gather, tiling, machine, max(gemm_end, end), rank=gpu.rank)]
        if goal.gathers
        else []
        for gpu in gpus
    ]
    ag_end = passes[0][0].ended if goal.gathers else max(gemm_end, end)
    run, ends = (machine, config, collective, mode), (gemm_end, end, ag_end)
    return played(tiling, run, gpus, passes, ends, payload)


def _connect(gpus, tiling, mode):
    """Tell each GPU who stands for its peers, and which tile there is which of its own."""
    same = range(tiling.total)
    if mode == "full":
        for gpu in gpus:
            gpu.peers = lambda to: (gpus[to], same)
        return
    places = {}

    def mirrored(to):
        """What goes to rank ``to`` comes in here as its own neighbour's at the same distance."""
        if to not in places:
            places[to] = [
                t for c in range(tiling.ranks) for t in tiling.chunks[(c - to) % tiling.ranks]
            ]
        return gpus[0], places[to]

    gpus[0].peers = mirrored


def _check_mirror(tiling, rules, values):
    ranks = tiling.ranks
    if values is not None:
        raise ValueError("values need all GPUs: use mode='full'")
    if not tiling.alike:
        down, across = tiling.gemm.tiles
        raise ValueError(
            f"{down} x {across} tiles make no {ranks} chunks that are alike, so one GPU cannot "
            "stand for all: use mode='full', or sizes whose longer side is a multiple of "
            f"ranks={ranks} tiles of {tiling.gemm.tile[0]} x {tiling.gemm.tile[1]}"
        )
    turned = [
        [((c - r) % ranks, _turned(rule, r, ranks)) for c, rule in row]
        for r, row in enumerate(rules)
    ]
    if any(row != turned[0] for row in turned):
        raise ValueError("these maps differ from rank to rank: use mode='full'")


def _turned(rule, rank, ranks):
    return rule._replace(to=(rule.to - rank) % ranks) if isinstance(rule, (Dma, Remote)) else rule


def _check_complete(gpus):
    for gpu in gpus:
        parked = sum(map(len, gpu.parked.values()))
        if gpu.table.live or parked or gpu.left < len(gpu.order):
            raise RuntimeError(
                f"GPU {gpu.rank} never ends: {gpu.table.live} parts wait for their "
                f"last update, {parked} for a record of the tracker"
            )


__all__ = ["CONFIGS", "Gemm", "Machine", "SimResult", "simulate"]
