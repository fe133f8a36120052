"""AxoNN's headlines on Perlmutter whose GPUs cost what published runs on A100s did."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product

from tpviz.cluster import Cluster
from tpviz.cluster.clusters import GPUS, as_run_by, dgx, perlmutter
from tpviz.core.workload import GPT
from tpviz.evidence.finding import Finding
from tpviz.schemes.axonn.models import LEAST_RANKS, NOMINAL, hardware_flops, paper_models
from tpviz.schemes.merak.strategy import Merak
from tpviz.verbs.peak import TrainingRun, peak
from tpviz.verbs.predict import predict

from .overlapping import grid_of
from .scaled import GridChoice, scaling
from .validated import validation

WEAK = 8192
"""Sequences a step of the papers' weak scaling (recalled)."""
READS = ("what", "order")
"""Arguments under which the rival is the same."""


@lru_cache(maxsize=16)
def machine(devices: int, ideal: bool = False) -> Cluster:
    """So many GPUs of `tpviz.clusters.perlmutter`."""
    nodes = perlmutter(-(-devices // 4))
    if ideal:
        return nodes
    real = as_run_by(dgx("A100-SXM-40GB", 8)).device
    return replace(nodes, device=replace(real, flops=GPUS["A100-SXM-40GB"].flops))


@lru_cache(maxsize=64)
def fastest(name: str, devices: int, batch: int, order: str, ideal: bool) -> GridChoice:
    """The grid with the shortest predicted step that fits. (A default would miss the cache.)"""
    on = lambda n: machine(n, ideal)
    found = scaling(name, on, [devices], batch, order=order).at(devices).fastest
    assert found is not None  # else `scaling` raises
    return found


@lru_cache(maxsize=64)
def rival(name: str, devices: int, batch: int, ideal: bool) -> tuple[float, Merak]:
    """(seconds, Megatron-LM's fastest plan that fits): pp stages under 1F1B or interleaved, tp in a
    node or two, dp with ZeRO 1, microbatches of one to four sequences, recomputing every block."""
    w, cluster, best = paper_models(batch)[name], machine(devices, ideal), None
    device, run = cluster.device, TrainingRun(at_once=True)
    gemms = hardware_flops(w, True) / devices / device.flops[w.dtype] / device.gemm_efficiency

    def least(s):
        """Seconds of GEMMs at their best, and of the bubble."""
        return gemms * (1 + (s.pp - 1) / (s.microbatches * s.stages // s.pp))

    for s in sorted(_megatrons(w, devices), key=least):
        if best and least(s) >= best[0]:
            break
        need = lambda place, s=s: peak(s, w, place, replace(run, shards=s.dp)).total
        if max(map(need, range(s.pp))) <= device.memory:
            step = predict(s, w, cluster).step_time
            best = min(best or (step, s), (step, s), key=lambda x: x[0])
    if best is None:
        raise ValueError(f"no plan of {name} fits {devices} devices: use more of them")
    return best


def _megatrons(w: GPT, devices: int) -> Iterator[Merak]:
    knobs = {"recompute": "full", "zero": 1}
    for pp, tp, rows in product((1, 2, 4, 8, 16, 32), (1, 2, 4, 8), (1, 2, 4)):
        dp, rest = divmod(devices, pp * tp)
        count = w.batch // (dp * rows) if dp else 0
        for schedule in ("1f1b", "interleaved_1f1b") if count and not rest else ():
            try:
                s = Merak(pp=pp, tp=tp, dp=dp, microbatches=count, schedule=schedule, **knobs)
                s.check(w)
            except ValueError:
                continue
            yield s


def over_megatron(
    name: str = "80B",
    devices: int = 1024,
    batch: int = WEAK,
    order: str = "xyz",
    ideal: bool = False,
) -> Finding:
    """By how many percent the fastest grid is faster than Megatron-LM's fastest plan. order : of
    ranks. ideal : kernels at the best GEMM's rate."""
    theirs, plan = rival(name, devices, batch, ideal)
    ours = fastest(name, devices, batch, order, ideal)
    setting = f"{_setting(name, devices, batch, ours)}; Megatron-LM: {plan.short}"
    return Finding(100 * (theirs / ours.step - 1), "predicted", setting)


def utilisation(
    name: str = "80B",
    devices: int = 1024,
    what: str = "percent",
    batch: int = WEAK,
    order: str = "xyz",
    ideal: bool = False,
) -> Finding:
    """Hardware FLOP/s of the fastest grid: "percent" of the vendor's peak, or "PFLOP/s" of all."""
    scale = 100.0 if what == "percent" else NOMINAL["A100"] * devices / 1e15
    ours = fastest(name, devices, batch, order, ideal)
    return Finding(scale * ours.used.hfu, "predicted", _setting(name, devices, batch, ours))


def overlaps_gain(
    name: str = "20B",
    devices: int = 256,
    batch: int = WEAK,
    order: str = "xyz",
    ideal: bool = False,
) -> Finding:
    """By how many percent its overlaps make the fastest grid faster."""
    ours, w = fastest(name, devices, batch, order, ideal), paper_models(batch)[name]
    s, cluster = ours.strategy, machine(devices, ideal)
    slow, fast = (predict(replace(s, overlap=o), w, cluster).step_time for o in ((), s.overlap))
    return Finding(100 * (slow / fast - 1), "predicted", _setting(name, devices, batch, ours))


def top_ten(
    name: str = "20B",
    devices: int = 32,
    batch: int = WEAK,
    order: str = "xyz",
    ideal: bool = False,
) -> Finding:
    """How many of the communication model's first ten grids are among the ten fastest."""
    w, knobs = paper_models(batch)[name], {"order": order, "recompute": True}
    found = validation(w, machine(devices, ideal), least=LEAST_RANKS[name], **knobs)
    hits = found.hits(top=10)
    assert hits is not None  # there are more grids
    ours = fastest(name, devices, batch, order, ideal)
    return Finding(float(hits.found), "predicted", _setting(name, devices, batch, ours))


def _setting(name: str, devices: int, batch: int, ours: GridChoice):
    recalled = " (recalled)" * (batch == WEAK)
    return (
        f"{name}, {devices} A100s of Perlmutter, batch {batch}{recalled}, recomputing every "
        f"block; fastest grid (x y z data) {grid_of(ours.strategy)}"
    )
