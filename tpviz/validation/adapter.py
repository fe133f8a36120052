"""From a published run to what `predict` takes: strategy, workload, cluster.

What a strategy cannot express is refused with a reason, `NotModelled`. What it expresses in other
words is listed in `Plan.assumed`: the bytes of a sequence-parallel layer and of ZeRO-1 are those of
the all-reduces predicted in their place.

==========================  ================================================================
run                         strategy
==========================  ================================================================
ZeRO-3 or 2 (FSDP), tp      `AxoNN` with z = dp ranks that shard every weight, x = tp; a block's
                            weights in one message, gathered again in backward at stage 3
all others (Megatron-LM,    `Merak` with its 1F1B schedule, interleaved where the run has virtual
nanotron)                   stages
==========================  ================================================================
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from tpviz import clusters
from tpviz.cluster import Cluster
from tpviz.cluster.profiles import as_run_by, fitted, frameworks
from tpviz.cost import Memory
from tpviz.schemes.axonn.strategy import AxoNN
from tpviz.schemes.gpt.pointwise import Held
from tpviz.schemes.merak.memory import memory_of
from tpviz.schemes.merak.strategy import Merak
from tpviz.strategy import Strategy
from tpviz.workload import GPT

from .rows import PublishedRow, framework_of

GPU_NAMES = {
    "A100-80GB": "A100-SXM-80GB",
    "H100": "H100-SXM-80GB",
    "H200": "H200-SXM-141GB",
    "B200": "B200-SXM-180GB",
}
"""Short names of sources -> names of `tpviz.clusters.GPUS`."""
SOFTMAX = ("bigscience", "megatron_2020", "megatron_jan2021", "megatron_sc21")
"""Sources whose attention passes its scores through memory, by how their names begin."""
FABRICS = {"bigscience_a100_384": (4, 12.5e9)}
"""Sources whose nodes have other NICs than NVIDIA's: (NICs of a node, bytes/s of one). Jean Zay: 4
Omni-Path links of 100 Gbit/s."""
PLATFORMS = {"b200": "B200-SXM-180GB", "h100": "H100-SXM-80GB"}
"""Words in the platform of a memory row -> its GPU; any other stands for an A100, on which memory
does not depend."""
CASES = {"swiglu": {"gated": True}, "untie": {"tied": False}, "disable_bias": {"bias": False}}
"""Words in the name of a case of Megatron-LM's CI -> fields of `tpviz.GPT`."""
REFUSED = {
    "bert": "BERT",
    "fsdp": "Megatron-LM's own FSDP",
    "frozen": "frozen parameters",
    "uneven": "uneven pipeline stages that the row does not name",
    "account_for": "stages that count the embedding and the loss as layers",
    "distill": "distillation",
}
"""Words in the name of a case that is not modelled -> why."""
GPT2_VOCAB = 50257
"""Tokens of GPT-2's byte-pair encoding, which Megatron-LM's CI uses and pads."""
HALF = ("bf16", "fp16", "bfloat16", "float16")
SPARSE = ("deepseek", "mixtral", "moe")
"""Words in names of models with experts."""


class Family(NamedTuple):
    """How the models of a family differ from GPT-2, as fields of `tpviz.GPT`."""

    gated: bool = False
    norm: str = "layer"
    rotary: bool = False
    bias: bool = True
    tied: bool = True


FAMILIES = {
    "llama-1B": Family(gated=True, norm="rms", rotary=True, bias=False),
    "llama-3B": Family(gated=True, norm="rms", rotary=True, bias=False),
    "llama": Family(gated=True, norm="rms", rotary=True, bias=False, tied=False),
    "nemotron": Family(rotary=True, bias=False, tied=False),
    "mpt": Family(),
    "gpt": Family(),
}
"""First letters of a model's name -> its family, the first that fits. Llama: arXiv 2407.21783, with
untied embeddings (the Ultra-Scale models' parameters add up with tied ones). Nemotron-4: arXiv
2402.16819, squared ReLU counted as GELU. MPT: the sources' numbers of parameters are GPT-2's."""


class NotModelled(ValueError):
    """A run that no strategy, workload or cluster of ours describes; the text says why."""


@dataclass(frozen=True)
class Plan:
    """What is predicted for a row. assumed : what the row does not say, or says in other words."""

    strategy: Strategy
    workload: GPT
    cluster: Cluster
    assumed: tuple[str, ...]


def plan_of(row: PublishedRow, cluster: Callable[[str, int, str], Cluster] | None = None) -> Plan:
    """The `Plan` of a row. cluster : as `cluster_of`, which is used without. Raises
    `NotModelled`."""
    needed = ("layers", "hidden", "heads", "seq", "global_batch", "micro_batch")
    for name in (*needed, "n_gpus", "tp", "pp", "dp"):
        if not getattr(row, name):
            raise NotModelled(f"{name} is not stated")
    if row.cp > 1:
        raise NotModelled(f"context parallelism (cp={row.cp}) is not modelled")
    if row.ep > 1 or any(word in row.model.lower() for word in SPARSE):
        raise NotModelled("models with experts are not modelled")
    if row.dtype not in HALF:
        raise NotModelled(f"dtype {row.dtype!r} is not modelled: GEMMs in 16 bits are")
    if row.tp * row.pp * row.dp != row.n_gpus:
        raise NotModelled(f"tp*pp*dp = {row.tp * row.pp * row.dp} is not n_gpus={row.n_gpus}")
    if row.microbatches != int(row.microbatches):
        raise NotModelled(
            f"global_batch={row.global_batch} is no multiple of dp*micro_batch="
            f"{row.dp * row.micro_batch}"
        )
    for word, what in REFUSED.items() if row.kind == "memory" else ():
        if word in row.model:
            raise NotModelled(f"{what}: not modelled")
    assumed: list[str] = []
    try:
        strategy = _sharded(row) if (row.zero or 0) > 1 else _pipelined(row, assumed)
        workload = workload_of(row, assumed)
        strategy.check(workload)
        found = (cluster or cluster_of)(_gpu(row), row.n_gpus, row.source)
    except ValueError as error:
        raise NotModelled(str(error)) from None
    return Plan(strategy, workload, found, tuple(assumed))


def workload_of(row: PublishedRow, assumed: list[str]) -> GPT:
    """The model and batch of a row; raises ``ValueError`` as `tpviz.GPT`."""
    family = next((f for name, f in FAMILIES.items() if row.model.startswith(name)), None)
    if family is None:
        family = Family(gated="gated MLP" in row.notes and "not gated" not in row.notes)
        assumed.append("a model as GPT-2's but for the sizes stated")
    fields, vocab = family._asdict(), row.vocab
    if row.kind == "memory":
        for word, other in CASES.items():
            fields |= other if word in row.model else {}
        if not vocab and row.model.startswith("gpt"):
            vocab = -(-GPT2_VOCAB // (128 * row.tp)) * 128 * row.tp
            assumed.append("GPT-2's vocabulary, padded to a multiple of 128 tp")
    if not vocab:
        raise NotModelled("vocab is not stated")
    return GPT(
        layers=row.layers,
        hidden=row.hidden,
        heads=row.heads,
        kv_heads=row.kv_heads,
        ffn=row.ffn or 4 * row.hidden,
        seq=row.seq,
        batch=row.global_batch,
        vocab=vocab,
        dtype="bfloat16",
        **fields,
    )


@lru_cache(maxsize=256)
def ideal(gpu: str, n_gpus: int, source: str = "") -> Cluster:
    """The cluster of a row at nominal rates. Raises ``ValueError`` for an unknown GPU and for nodes
    that are cut."""
    gpu = GPU_NAMES.get(gpu, gpu)
    return clusters.dgx(gpu, max(n_gpus, 2), *FABRICS.get(source, (None, None)))


@lru_cache(maxsize=256)
def cluster_of(gpu: str, n_gpus: int, source: str = "") -> Cluster:
    """The same as the framework of that source reaches it."""
    return real(gpu, n_gpus, source, fitted())


def real(gpu: str, n_gpus: int, source: str, numbers: Mapping[str, float]) -> Cluster:
    """`cluster_of` with other fitted numbers."""
    framework = profile_of(source)
    return as_run_by(ideal(gpu, n_gpus, source), framework, fabric_of(framework), numbers)


def profile_of(source: str) -> str:
    """The profile, of `tpviz.cluster.profiles.frameworks`, of a source's runs."""
    if source.startswith(SOFTMAX):
        return "Megatron-LM before FlashAttention"
    framework = framework_of(source)
    return framework if framework in frameworks() else "Megatron-LM"


def fabric_of(profile: str) -> str:
    """The fabric between the nodes on which a profile's runs were measured."""
    return "Ultra-Scale" if profile == "nanotron" else "InfiniBand"


def memory(plan: Plan, row: PublishedRow) -> Memory:
    """Bytes of a rank in mixed precision, by kind (derived).

    Activations are the strategy's. The states of a parameter are those of Rajbhandari et al. 2020
    (arXiv 1910.02054, section 3.1) with gradients added up in float32, as Megatron-LM and nanotron
    do: 2 bytes, 4 of the gradient, and 12 of the float32 copy and Adam's two moments, which ZeRO-1
    shards. FSDP's shards are 4, 4 and 8 bytes; what it gathers counts as activations.
    """
    s, w = plan.strategy, plan.workload
    if isinstance(s, Merak):
        found = memory_of(s, w, _place(row)) if row.kind == "memory" else s.memory(w)
        sizes = 2, 4, 12 / (row.dp if row.zero else 1)
    else:
        found, sizes = s.memory(w), (4, 4, 8)
    number = found["parameters"] // w.itemsize
    kinds = ("parameters", "gradients", "optimizer")
    states = {kind: round(number * size) for kind, size in zip(kinds, sizes)}
    return Memory(**states, activations=found["activations"])


def _gpu(row):
    """The GPU's name; of a memory row by its platform."""
    if row.kind != "memory":
        return row.gpu
    words = row.gpu.lower().replace("gb200", "")
    return next((gpu for word, gpu in PLATFORMS.items() if word in words), "A100-SXM-80GB")


def _place(row):
    """The pipeline rank whose memory a row has: SimuMax's names it, Megatron-LM's CI logs the
    last."""
    return 0 if row.gpu.endswith("rank 0") else row.pp - 1


def _sharded(row):
    """The strategy of FSDP, and of ZeRO-2, whose parameters stay gathered until backward."""
    if row.pp > 1:
        raise NotModelled(f"ZeRO-{row.zero} inside a pipeline (pp={row.pp}) is not modelled")
    if row.recompute == "selective":
        raise NotModelled("FSDP with selective recomputation is not modelled")
    return AxoNN(
        x=row.tp,
        y=1,
        z=row.dp,
        keep=row.zero == 2,
        gather="block",
        recompute=row.recompute == "full",
        accumulation=int(row.microbatches),
    )


class SequenceParallel(Merak):
    """Its memory-bound kernels between layers pass over a rank's part of the sequence, as under
    Megatron-LM's sequence parallelism."""

    def held(self, workload: GPT, rank: int = 0) -> Held:
        """What a rank has of them."""
        found = super().held(workload, rank)
        return found._replace(stream=found.stream / self.tp)


def _pipelined(row, assumed):
    """The strategy of Megatron-LM and of nanotron."""
    kind = Merak
    if not row.recompute:
        assumed.append("no recomputation, as none is stated")
    if row.recompute == "selective":
        assumed.append("nothing recomputed, for what selective recomputation repeats is small")
    if row.sp != 0 and row.tp > 1:
        assumed.append("sequence parallelism as all-reduces, which send as many bytes")
        kind = SequenceParallel
    if row.zero:
        assumed.append("ZeRO-1 as an all-reduce of gradients, which sends as many bytes")
    order: dict[str, Any] = {"schedule": "1f1b"}
    if row.vpp > 1 and row.pp > 1:
        order = {"schedule": "interleaved_1f1b", "chunks": row.vpp}
    return kind(
        pp=row.pp,
        tp=row.tp,
        dp=row.dp,
        microbatches=int(row.microbatches),
        recompute="full" if row.recompute == "full" else "none",
        **order,
    )
