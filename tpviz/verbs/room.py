"""Does it fit? One answer, which `predict`, `search`, the planner and `validate` share.

A workload in 32 or 64 bits is taken as our programs run it: every number in its dtype, by the
strategy's own formula, to the byte (`Strategy.memory`). One in 16 bits is taken as people train:
16-bit weights, and in float32 their gradients, a master copy and AdamW's two moments (`Training`).
What is kept of activations is as the cluster's framework does it (`peak`), where a strategy is what
that framework has: 1F1B, plain or interleaved, tensor and data parallelism, ZeRO; and else as
our own programs do.

>>> from tpviz import Merak, clusters, models
>>> cluster = clusters.as_run_by(clusters.dgx("H100-SXM-80GB", 64))
>>> plan = Merak(pp=8, tp=8, dp=1, microbatches=8, schedule="1f1b", recompute="none", sp=True)
>>> needed = need(plan, models.llama3("70B", batch=8), cluster)
>>> {kind: f"{n / 1e9:.1f} GB" for kind, n in needed.items()}
{'parameters': '2.4 GB', 'gradients': '4.8 GB', 'optimizer': '14.4 GB', 'activations': '23.0 GB'}
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tpviz.cluster.clock.cost import Memory
from tpviz.cluster.clusters import GPUS
from tpviz.cluster.profiles import framework_of
from tpviz.core.checks import number, one_of, settle
from tpviz.core.tables import show_bytes
from tpviz.schemes.apart import uncut
from tpviz.schemes.axonn.strategy import AxoNN
from tpviz.schemes.megatron.strategy import Megatron
from tpviz.schemes.merak.strategy import Merak, as_merak
from tpviz.schemes.pipeline.memory import memory_of
from tpviz.schemes.pipeline.staged import Staged
from tpviz.schemes.zero.strategy import DataParallel

from .peak import UNFUSED, TrainingRun, least_peak, peak, run_by, states

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.core.workload import GPT
    from tpviz.schemes.strategy import Strategy

BLOCKWISE = 1 + 4 / 2048
"""Bytes of a moment in 8 bits: a float32 scale for each 2048 (Dettmers et al. 2022, arXiv
2110.02861, section 2.1)."""
BINARY, LEFT = 2**30 / 1e9, 0.04
"""Bytes of a GPU over those of its name in 10^9 bytes, and the part of them left to CUDA's context,
NCCL's buffers and fragments. nvidia-smi's totals are 81,920 MiB for an A100 of 80 GB, 81,559 for an
H100, 143,771 for an H200 of 141 GB (recalled); some 3 GB of 80 are left, so that NVIDIA's plan of
Nemotron-4-340B on 256 H100s, which ran and needs 81.4 GB by our count, fits (ADR 0035)."""
SPARE = (
    "A GPU sold as 80 GB has 80 GiB, 85.9 x 10^9 bytes, and others likewise; 4 % of them are left "
    "to CUDA, NCCL and fragments"
)


@dataclass(frozen=True)
class Training:
    """How training keeps what a model in 16 bits has besides its weights, in bytes of a number.

    gradients : 4 or 2; None as the framework does: Megatron-LM and FSDP add up and shard them in
    float32, Megatron-LM's runs in float16 kept 16 bits. master : 4, the copy of the weights that
    AdamW updates, or 0 for none. moments : of each of AdamW's two, 4, 2 (bfloat16), or 1 (8 bits,
    in blocks with a scale). margin : the part of the device's memory to leave free, beside `SPARE`.
    """

    gradients: int | None = None
    master: int = 4
    moments: int = 4
    margin: float = 0.0

    def __post_init__(self):
        settle(self, "gradients", one_of, (None, 4, 2))
        settle(self, "master", one_of, (4, 0))
        settle(self, "moments", one_of, (4, 2, 1))
        settle(self, "margin", number, 0, 0.9)

    @property
    def moment(self) -> float:
        """Bytes of a moment, scales included."""
        return BLOCKWISE if self.moments == 1 else self.moments

    def of(self, run: TrainingRun) -> TrainingRun:
        """A framework's `TrainingRun` with these settings in place of its own."""
        summed = run.summed if self.gradients is None else self.gradients
        return replace(run, summed=summed, master=self.master, moment=self.moment)


USUAL = Training()
ORDERS = ("1f1b", "interleaved_1f1b")
"""Schedules of `Merak` that frameworks have."""


def need(
    strategy: "Strategy", workload: "GPT", cluster: "Cluster", training: Training | None = None
) -> Memory:
    """Bytes by kind on the rank that needs most memory. Raises ``NotImplementedError`` where the
    strategy has no formula."""
    return Memory(_need(*_key(strategy, workload, cluster, training)))


def least_needs(
    strategy: "Strategy", workload: "GPT", cluster: "Cluster", training: Training | None = None
) -> Iterator[float]:
    """Yield lower bounds of `need`'s total that need no schedule: those that are quick or usually
    tight come first."""
    strategy, workload, framework, device, how = _key(strategy, workload, cluster, training)
    if workload.itemsize > 2:
        yield strategy.least_memory(workload).total
    elif found := as_pipeline(strategy, workload) if framework else None:
        s, w, shards = found
        run = how.of(framework_run(framework, device, s, w, shards))
        yield from (least_peak(s, w, place, run) for place in range(s.pp))
    else:
        yield _mixed(strategy.least_memory(workload), framework, how).total
        if isinstance(strategy, Staged):
            yield _mixed(memory_of(strategy, workload, 0), framework, how).total


def check_training(training: Training | None, workload: "GPT") -> None:
    """Raise ``ValueError`` unless the workload can be trained with these settings."""
    if training is not None and not isinstance(training, Training):
        raise ValueError(f"training={training!r}: give a tv.Training, or None")
    if training is not None and workload.itemsize > 2:
        raise ValueError(
            f"training={training!r} is of models in 16 bits, and the workload has "
            f'dtype="{workload.dtype}": use dtype="bfloat16", or no training'
        )


def room(cluster: "Cluster", training: Training | None = None) -> float:
    """Bytes of a device that may be used: for a GPU in `GPUS` more than its nominal memory, see
    `SPARE`; for other devices all."""
    device = cluster.device
    usable = BINARY * (1 - LEFT) if device.name in GPUS else 1
    return (1 - (training or USUAL).margin) * usable * device.memory


def check_states(
    strategy: "Merak", workload: "GPT", cluster: "Cluster", training: Training | None = None
) -> None:
    """`check_memory` of weights, gradients and optimizer alone, shared evenly by all stages: no
    schedule of a pipeline needs less."""
    if workload.itemsize > 2:
        return
    run = (training or USUAL).of(TrainingRun(summed=UNFUSED.get(framework_of(cluster), 4)))
    s, w = uncut(strategy, workload)
    run = replace(run, shards=s.replicas.ranks if s.zero_stage else 1)
    least = sum(states(s, w, range(s.stages), run).values()) / s.pp
    if least > (size := room(cluster, training)):
        raise ValueError(
            f"{strategy.short} needs {show_bytes(least)} or more for parameters, gradients and "
            f"optimizer on some rank, and the device {cluster.device.name!r} has {show_bytes(size)}"
        )


def check_memory(
    strategy: "Strategy",
    workload: "GPT",
    cluster: "Cluster",
    training: Training | None = None,
) -> None:
    """Raise ``ValueError`` where a rank needs more bytes than its device has."""
    memory, size = need(strategy, workload, cluster, training), room(cluster, training)
    if memory.total > size:
        largest = max(memory, key=memory.__getitem__)
        raise ValueError(
            f"{strategy.short} needs {show_bytes(memory.total)} on every rank and the device "
            f"{cluster.device.name!r} has {show_bytes(size)}: most of it is {largest}, "
            f"{show_bytes(memory[largest])}; use more ranks, a smaller batch, or a device of "
            f"{show_bytes(memory.total)}"
        )


def words(workload: "GPT", cluster: "Cluster", training: Training | None = None) -> str:
    """What `need` assumes, in words; "" in 32 and 64 bits, where it counts our own program."""
    if workload.itemsize > 2:
        return ""
    how, framework = training or USUAL, framework_of(cluster)
    bits = {4: "float32", 2: "16 bits", 1: "8 bits"}
    summed = how.gradients or UNFUSED.get(framework, 4)
    kept = [f"gradients in {bits[summed]}", *["a float32 copy of the weights"] * (how.master > 0)]
    by = f", activations as {framework} keeps them" if framework else ""
    free = f"; {100 * how.margin:g} % are left free besides" if how.margin else ""
    return (
        f"Trained in 16 bits, with {', '.join(kept)} and AdamW's moments in "
        f"{bits[how.moments]}{by}. {SPARE}{free}."
    )


# -- whose formula ---------------------------------------------------------------------------------
def as_pipeline(s: "Strategy", w: "GPT") -> tuple[Merak, "GPT", int] | None:
    """(the equivalent `Merak`, perhaps of one stage; its workload; number of ranks that ZeRO shards
    over), the form in which frameworks run it; None if no framework has such a plan. Parts of
    sequences are counted as sequences of their own, without the keys and values that travel; ranks
    of ep as replicas that have a part of the experts each."""
    if any(factor.offload for factor in s.factors):
        return None
    s, w = uncut(s, w)
    if isinstance(s := as_merak(s), Merak):
        usual = s.schedule in ORDERS and s.recompute != "stage_aware" and not s.subpipeline
        if not usual or s.pp > 1:
            return (s, w, s.dp) if usual else None
        return replace(s, microbatches=1), w.with_batch(w.batch // s.microbatches), s.dp
    if isinstance(s, AxoNN):
        if s.y > 1 or (s.z > 1 and s.gather != "block"):
            return None
        plain = Megatron(tp=s.x, recompute=s.recompute)
        zero = 0 if s.z == 1 else 2 if s.keep else 3
        return _flat(plain, w.with_batch(w.batch // s.accumulation), s.z * s.data, zero, s.z)
    if isinstance(s, DataParallel):
        inner = s.reshard_after_forward is True and (s.inner or Megatron(1, recompute=s.recompute))
        dp, zero, shards = s.dp, s.zero, s.shard or s.dp
    else:
        inner, dp, zero, shards = s, 1, 0, 1
    if type(inner) is not Megatron or inner.chunks > 1:
        return None
    return _flat(inner, w.with_batch(w.batch // s.accumulation), dp, zero, shards)


def framework_run(framework: str, device: str, s: Merak, w: "GPT", shards: int) -> TrainingRun:
    """The `TrainingRun` of a pipeline under a framework. device : its name."""
    return replace(run_by(framework, s, w, device), shards=shards if s.zero_stage else 1)


def _flat(inner: Megatron, w: "GPT", dp: int, zero: int, shards: int) -> tuple[Merak, "GPT", int]:
    """A pipeline of one stage and microbatch."""
    knobs: dict[str, Any] = {"pp": 1, "microbatches": 1, "schedule": "1f1b"}
    same: dict[str, Any] = {"tp": inner.tp, "sp": inner.sp, "recompute": inner.recompute}
    return Merak(dp=dp, zero=zero, **knobs, **same), w, shards


def _key(
    strategy: "Strategy", workload: "GPT", cluster: "Cluster", training: Training | None
) -> "tuple[Strategy, GPT, str, str, Training]":
    framework = framework_of(cluster)
    return strategy, workload, framework, cluster.device.name, training or USUAL


@lru_cache(maxsize=1024)
def _need(
    strategy: "Strategy", workload: "GPT", framework: str, device: str, how: Training
) -> Memory:
    if workload.itemsize > 2:
        return strategy.memory(workload)
    if found := as_pipeline(strategy, workload) if framework else None:
        s, w, shards = found
        run = how.of(framework_run(framework, device, s, w, shards))
        ranks = (peak(s, w, place, run) for place in range(s.pp))
    elif isinstance(s := strategy, Staged):  # the rank that needs most need not be the same
        ranks = (_mixed(memory_of(s, workload, at), framework, how) for at in range(s.pp))
    else:
        return _mixed(strategy.memory(workload), framework, how)
    return max(ranks, key=lambda m: m.total)


def _mixed(memory: Memory, framework: str, how: Training) -> Memory:
    """Our own program's memory in 16 bits, with a training's states."""
    summed = how.gradients or UNFUSED.get(framework, 4)
    return memory.mixed(2, summed, how.master + 2 * how.moment)
