"""``gain``: Merak's techniques, switched on in turn, on 64 GPUs against the frameworks before it.

The abstract names models, GPUs and rivals, Megatron-LM and DeepSpeed; machine, batch and sizes of
the models are not in it. The released scripts name a partition "3090", and the released code of
then trains in float32, so the machine here has RTX 3090s.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from math import inf
from types import MappingProxyType
from typing import Any

from tpviz.cluster import Cluster
from tpviz.cluster.clock.fast import Clock
from tpviz.cluster.clusters import as_run_by, dgx
from tpviz.core.checks import divisors, one_of
from tpviz.core.mesh import Mesh
from tpviz.core.step import Collective, Part
from tpviz.core.workload import GPT
from tpviz.evidence.facts import facts
from tpviz.evidence.finding import Finding
from tpviz.evidence.study import Study, ask
from tpviz.schemes.merak.budget import keeps
from tpviz.schemes.merak.strategy import Merak
from tpviz.schemes.pipeline.microbatch import Microbatch
from tpviz.schemes.pipeline.step import message_seconds
from tpviz.verbs.peak import TrainingRun, peak
from tpviz.verbs.predict import predict

GPUS = 64
Orders = tuple[dict[str, Any], ...]
FACTS = facts(__file__)
MODELS: dict[str, list[int]] = FACTS.models
"""{name: (layers, hidden, heads)} of public models of these names."""
BEFORE = TrainingRun(attention="unfused", dropout=True, at_once=True)
"""Memory of programs of 2022: no fused attention, dropout; all that a stage recomputes at once, of
rivals too, which would need less block by block."""
RECOMPUTED: Orders = ({"schedule": "1f1b"}, {"schedule": "interleaved_1f1b"})
FREE: Orders = (*({**order, "recompute": "none"} for order in RECOMPUTED), *RECOMPUTED)
RIVALS = {
    "free": "their best plan, recomputing nothing where memory allows",
    "recomputing": "their best plan, recomputing every layer",
    "same": "Merak's pp, tp and dp, recomputing every layer",
    "cube": "pp=4, tp=4, dp=4 for all, the rivals recomputing every layer",
}
"""What Megatron-LM and DeepSpeed may choose here: 1F1B or interleaved stages, as even as may be."""
EVEN: Orders = ({"schedule": "1f1b", "recompute": "none"}, {"schedule": "1f1b"})
PARTED: Orders = tuple({**order, "layout": "balanced"} for order in EVEN)
SHIFTED = {"schedule": "shifted_critical_path", "layout": "balanced"}
AWARE = {**SHIFTED, "recompute": "stage_aware"}
TECHNIQUES: Mapping[str, Orders] = MappingProxyType(
    {
        "1F1B": EVEN,
        "partitioner": PARTED,
        "shifted critical path": (SHIFTED,),
        "stage-aware recomputation": (AWARE,),
        "sub-pipelined tp": tuple(
            {**order, "subpipeline": level} for order in (PARTED[0], AWARE) for level in (2, 3)
        ),
    }
)
"""{technique: what it adds to what Merak may choose from}, in the order they are switched on."""
RIVAL = "Megatron-LM or DeepSpeed"
READS = ("rivals",)
"""Arguments under which Merak's own plans are the same."""


def machine(gpu: str = "RTX 3090", nic: float = 12.5e9) -> Cluster:
    """64 GPUs in nodes.

    gpu : "RTX 3090", four a node over PCIe and behind one NIC of ``nic`` bytes/s, at shares of the
    nominal rates that published runs reach on A100s; or "A100", eight a node behind as many NICs.
    """
    one_of("gpu", gpu, ("RTX 3090", "A100"))
    few = {} if gpu == "A100" else {"nics": 1, "nic": nic}
    real = as_run_by(dgx("A100-SXM-40GB", GPUS, **few), "Megatron-LM before FlashAttention")
    if gpu == "A100":
        return real
    device = replace(real.device, name=gpu, **FACTS.rtx_3090)
    inside = replace(real.levels[0], name="PCIe", units=4, p2p=FACTS.pcie, group=FACTS.pcie)
    network = replace(real.levels[1], units=GPUS // 4)
    source = "assumed, after a script's partition; shares of A100 runs"
    name = f"{GPUS} {gpu}s, {nic / 1e9:g} GB/s a node"
    return Cluster(name, device, (inside, network), algorithm="auto", source=source)


def model(name: str, batch: int = 256, dtype: str = "float32") -> GPT:
    """One of `MODELS`, sequences of 1024 tokens."""
    layers, hidden, heads = MODELS[one_of("model", name, tuple(MODELS))]
    return GPT(layers, hidden, heads, seq=1024, batch=batch, vocab=51200, dtype=dtype)


@lru_cache(maxsize=4096)
def need(s: Merak, w: GPT) -> float:
    """Bytes of the rank that needs most, in a program of 2022. 16 a parameter in either precision;
    activations in 32 bits as twice those in 16."""
    run = replace(BEFORE, shards=s.dp if s.zero else 1)
    wide = w.itemsize / 2

    def one(place):
        m = peak(s, w, place, run)
        states = m["parameters"] + m["gradients"] + m["optimizer"]
        return states + wide * m["activations"]

    return max(map(one, range(s.pp)))


def plans(
    w: GPT, orders: Iterable[Mapping[str, Any]], like: Merak | None = None
) -> Iterator[Merak]:
    """Every split of the GPUs over pp, tp (up to 4, a node) and dp, with microbatches of one to
    four sequences and ZeRO 1, under each of ``orders``; of ``like``, only its split."""
    for pp in divisors(GPUS // 2):
        for tp in (n for n in (1, 2, 4) if not GPUS // pp % n):
            dp = GPUS // (pp * tp)
            if like and (pp, tp, dp) != (like.pp, like.tp, like.dp):
                continue
            for rows in (1, 2, 4):
                count = w.batch // (dp * rows)
                for order in orders:
                    if not count or (tp == 1 and order.get("subpipeline")):
                        continue
                    s = Merak(pp=pp, tp=tp, dp=dp, microbatches=count, zero=int(dp > 1), **order)
                    if pp == 1 and s.recompute == "full":
                        continue  # the last stage recomputes nothing, and there is no other
                    try:
                        s.check(w)
                    except ValueError:
                        continue
                    yield s


def fastest(
    w: GPT,
    cluster: Cluster,
    orders: Iterable[Mapping[str, Any]],
    most: float = inf,
    like: Merak | None = None,
) -> tuple[float, Merak | None]:
    """(seconds, the fastest of `plans` whose memory fits); None where none takes less than ``most``
    seconds."""
    memory, best = cluster.device.memory, (most, None)
    bounds = ((_least(s, w, cluster), s) for s in plans(w, orders, like))
    for bound, s in sorted(bounds, key=lambda x: x[0]):
        if bound >= best[0]:
            break
        if s.recompute == "stage_aware":
            ladder = [replace(s, keep=keep) for keep in keeps(s, w)]
            if need(ladder[-1], w) > memory:
                continue  # not even with everything recomputed, and memory is quickly counted
            if _step_time(replace(s, keep=1.0), w, cluster) >= best[0]:
                continue  # with nothing recomputed it is as fast as it can be
            s = ladder[bisect_left(ladder, True, key=lambda s: need(s, w) <= memory)]
        if need(s, w) <= memory:
            best = min(best, (_step_time(s, w, cluster), s), key=lambda x: x[0])
    return best


@lru_cache(maxsize=4096)
def _step_time(s, w, cluster):
    """Seconds of a step: several searches ask for the same plans."""
    return predict(s, w, cluster).step_time


def _least(s, w, cluster):
    """Seconds below which no such step is: what the busiest rank computes and waits for, full
    recomputation by its GEMMs at the best rate; messages of 1F1B, of which as many microbatches are
    in flight as there are stages; the pipeline's bubble; gradients summed over dp."""
    device, ahead = cluster.device, (s.pp - 1) / (s.stages // s.pp)
    one, head, end = _seconds(s.pp, s.tp, s.dp, s.microbatches, s.subpipeline, w, cluster)
    again = 2 * w.block_matrices * w.batch * w.seq * (s.recompute == "full" and s.pp > 1)
    again /= device.flops[w.dtype] * device.gemm_efficiency * s.dp * s.tp * s.microbatches
    few, even = w.layers // s.pp, (w.layers * one + head) / s.pp
    busy = max(-(-w.layers // s.pp) * one + few * again, even)
    if s.layout == "even":
        busy = max(busy, few * one + head)
    if s.schedule == "1f1b":
        message = message_seconds(s, w, cluster, Mesh(s.axes))
        busy = max(busy, even + 2 * (s.pp - 1) / s.pp * message)
    return s.microbatches * busy + ahead * few * one + end


@lru_cache(maxsize=4096)
def _seconds(pp, tp, dp, microbatches, subpipeline, w, cluster):
    """Seconds of a microbatch's forward and backward through a block, as one of many on a stage,
    and through the head; and of the gradients of a stage with one block less than the others."""
    s = Merak(pp=pp, tp=tp, dp=dp, microbatches=microbatches, subpipeline=subpipeline)
    m = Microbatch(s.inside, s.local(w), subpipeline, False)
    clock = Clock.of(cluster, Mesh(s.axes), w.dtype)
    blocks = list(range(max(1, w.layers // pp)))
    numel = w.block_matrices * (len(blocks) - (pp > 1)) // tp
    sums = [Collective("dp", kind, numel * w.itemsize) for kind in ("reduce_scatter", "all_gather")]
    run = lambda parts: sum(segment.seconds for segment in clock.run(tuple(parts)))
    one = (run(m.forward(blocks)) + run(m.backward(blocks))) / len(blocks)
    end = run([Part("sync", "", tuple(sums))]) if dp > 1 and numel else 0.0
    return one, run(m.head) + run(m.head_back), end


def techniques(
    name: str = "1.5B",
    rivals: str = "free",
    gpu: str = "RTX 3090",
    batch: int = 256,
    dtype: str = "float32",
) -> Study:
    """A `tpviz.evidence.study.Study` of one of `MODELS`: the rivals' fastest plan, then Merak's as
    its techniques are switched on in turn, each free to use those before it or not.

    rivals : of `RIVALS`. gpu, of `machine`; batch, sequences a step; dtype: not in the abstract.
    """
    one_of("rivals", rivals, tuple(RIVALS))
    w, cluster = model(name, batch, dtype), machine(gpu)
    like = Merak(pp=4, tp=4, dp=4) if rivals == "cube" else None
    found = ladder(w, cluster, like)
    like = found[list(TECHNIQUES)[-1]] if rivals == "same" else like
    rival = fastest(w, cluster, FREE if rivals == "free" else RECOMPUTED, like=like)[1]
    every = {RIVAL: rival, **found}
    tried = {label: plan for label, plan in every.items() if plan is not None}
    if len(tried) < len(every):
        raise ValueError(f"no plan of {name} fits into {cluster.caption}: use a smaller batch")
    return Study(w, cluster, ask(tried, w, cluster, ["predicted"]))


@lru_cache(maxsize=32)
def ladder(w: GPT, cluster: Cluster, like: Merak | None = None) -> dict[str, Merak | None]:
    """{technique: the fastest plan with it and those before it}; of ``like``, only its split."""
    found, best = {}, (inf, None)
    for technique, orders in TECHNIQUES.items():
        made = fastest(w, cluster, orders, best[0], like)
        best = best if made[1] is None else made
        found[technique] = best[1]
    return found


def gain(name: str = "1.5B", rivals: str = "free", **how: Any) -> Finding:
    """By how many percent Merak, all techniques on, is faster than its ``rivals``; arguments as of
    `techniques`."""
    study, last = techniques(name, rivals, **how), list(TECHNIQUES)[-1]
    rungs = ", ".join(
        f"{technique} {study.percent(technique, 'predicted')}" for technique in TECHNIQUES
    )
    first, best = (study.at(label).strategy for label in (RIVAL, last))
    setting = (
        f"{study.cluster.name} (assumed), {study.workload.dtype}, batch {study.workload.batch}; "
        f"rivals: {RIVALS[rivals]} ({first.short}); in turn: {rungs} ({best.short})"
    )
    return Finding(100 * study.speedup(last), "predicted", setting)
