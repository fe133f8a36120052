"""From a published run to what `predict` takes: strategy, workload, cluster.

What a strategy cannot express is refused with a reason, `NotModelled`. What the row does not say,
or says in other words, is listed in `RunPlan.assumed`.

==========================  ================================================================
run                         strategy
==========================  ================================================================
ZeRO-3 or 2 (FSDP), tp      `AxoNN` with z = dp ranks that shard every weight, x = tp; a block's
                            weights in one message, gathered again in backward at stage 3;
                            `DataParallel` where shards need padding, or sequences are cut
all others (Megatron-LM,    `Merak` with its 1F1B schedule, interleaved where the run has virtual
nanotron)                   stages; ZeRO-1 and sequence parallelism where the run has them
cp                          the product of these with `Context`, of the kind of the framework
ep                          the product with `Experts`, whose ranks are some of dp's
==========================  ================================================================
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tpviz import clusters
from tpviz.cluster import Cluster
from tpviz.cluster.clock.cost import Memory
from tpviz.cluster.profiles import as_run_by, fitted, frameworks
from tpviz.core.workload import GPT
from tpviz.evidence.facts import facts
from tpviz.schemes.axonn.strategy import AxoNN
from tpviz.schemes.context.strategy import Context
from tpviz.schemes.experts.strategy import Experts
from tpviz.schemes.megatron.strategy import Megatron
from tpviz.schemes.merak.strategy import Merak
from tpviz.schemes.strategy import Strategy
from tpviz.schemes.zero.strategy import DataParallel
from tpviz.verbs.peak import ENGINE, HANDLE, LARGE, TrainingRun, peak
from tpviz.verbs.room import as_pipeline, framework_run

from .rows import PublishedRow, framework_of, table

FACTS = facts(__file__)
CI, CI_CASES = "megatron_ci_golden", "megatron_ci_cases"
"""The source of exact peaks, and the file of its cases' options."""
INSTANCES = "num-distributed-optimizer-instances="
CUBLAS = "CUBLAS_WORKSPACE_CONFIG=:4096:8"
HALF = ("bf16", "fp16", "bfloat16", "float16")


class NotModelled(ValueError):
    """A run that no strategy, workload or cluster of ours describes; the text says why."""


@dataclass(frozen=True)
class RunPlan:
    """What is predicted for a row. assumed : what the row does not say, or says in other words."""

    strategy: Strategy
    workload: GPT
    cluster: Cluster
    assumed: tuple[str, ...]


def plan_of(
    row: PublishedRow, cluster: Callable[[str, int, str], Cluster] | None = None
) -> RunPlan:
    """The `RunPlan` of a row. cluster : as `cluster_of`, which is used without. Raises
    `NotModelled`."""
    needed = ("layers", "hidden", "heads", "seq", "global_batch", "micro_batch")
    for name in (*needed, "n_gpus", "tp", "pp", "dp"):
        if not getattr(row, name):
            raise NotModelled(f"{name} is not stated")
    row = _with_experts(row)
    if row.dtype not in HALF:
        raise NotModelled(f"dtype {row.dtype!r} is not modelled: GEMMs in 16 bits are")
    if (product := row.tp * row.pp * row.dp * row.cp) != row.n_gpus:
        raise NotModelled(f"tp*pp*dp*cp = {product} is not n_gpus={row.n_gpus}")
    if row.microbatches != int(row.microbatches):
        raise NotModelled(
            f"global_batch={row.global_batch} is no multiple of dp*micro_batch="
            f"{row.dp * row.micro_batch}"
        )
    for word, what in FACTS.refused.items() if row.kind == "memory" else ():
        if word in row.model:
            raise NotModelled(f"{what}: not modelled")
    assumed: list[str] = []
    try:
        row = replace(row, zero=_zero(row, assumed))
        workload = workload_of(row, assumed)
        cut = _cut(row, assumed) if row.cp > 1 else None
        if (row.zero or 0) > 1:
            strategy = _sharded(row, workload, cut, assumed)
        else:
            strategy = _spread(_pipelined(row, assumed), row, assumed)
            strategy = strategy * cut if cut else strategy
            if cut and row.ep > 1:
                strategy = strategy.with_order("tp-cp-ep-dp-pp")
        strategy.check(workload)
        found = (cluster or cluster_of)(_gpu(row), row.n_gpus, row.source)
        found = found if cluster else as_ran(found, row)
    except ValueError as error:
        raise NotModelled(str(error)) from None
    return RunPlan(strategy, workload, found, tuple(assumed))


def _cut(row: PublishedRow, assumed: list[str]):
    """The context parallelism of a row. No row states its kind."""
    kind = _begins(FACTS.context, row.source) or FACTS.context[profile_of(row.source)]
    assumed.append(f"context parallelism of kind {kind!r}, as {row.framework} has it")
    return Context(cp=row.cp, kind=kind)


def _with_experts(row: PublishedRow):
    """The row with its experts, where the options of a case say them, or the family's name."""
    found = {}
    for option in options_of(row.model) if row.kind == "memory" else ():
        name, _, value = option.partition("=")
        found |= {FACTS.routing[name]: int(value)} if name in FACTS.routing else {}
    row = replace(row, **found)
    if row.experts or not has_experts(row):
        return row
    for word, why in FACTS.latent.items():
        if word in row.model.lower():
            raise NotModelled(f"{why}: not modelled")
    raise NotModelled("how many experts, and how many of a token, is not stated")


def has_experts(row: PublishedRow) -> bool:
    """Whether a row is of a mixture of experts, as far as it says."""
    named = any(word in row.model.lower() for word in FACTS.experts)
    return row.experts > 0 or row.ep > 1 or named


def _spread(strategy: Merak, row: PublishedRow, assumed: list[str]) -> Any:
    """The pipeline with experts over ``ep`` of its replicas. Megatron-LM lets ranks of ep lie over
    those of tp and cp too, where dp is too small or ``etp`` is below tp; ours are replicas."""
    if not row.experts or row.ep == 1:
        return strategy
    if row.dp % row.ep:
        raise NotModelled(f"ep={row.ep} lies over more than the dp={row.dp} replicas: not modelled")
    etp = row.etp or row.tp
    if row.etp is None and row.tp > 1:
        assumed.append("experts cut over tp as other matrices, Megatron-LM's default")
    if etp == row.tp > 1:
        assumed.append("rows sent by each rank of tp, where Megatron-LM sends each row once")
    if etp < row.tp:
        assumed.append("ranks of ep beside those of tp, where Megatron-LM has them over both")
    return replace(strategy, dp=row.dp // row.ep) * Experts(ep=row.ep, etp=etp)


def _begins(known: Mapping[str, Any], text: str) -> Any:
    """What is said of the first of these beginnings that a text has; None where it has none."""
    return next((what for start, what in known.items() if text.startswith(start)), None)


def workload_of(row: PublishedRow, assumed: list[str]) -> GPT:
    """The model and batch of a row; raises ``ValueError`` as `tpviz.GPT`."""
    fields, vocab = _begins(FACTS.families, row.model), row.vocab
    if fields is None:
        gated = "gated MLP" in row.notes and "not gated" not in row.notes
        fields = dict[str, Any](gated=gated)
        assumed.append("a model as GPT-2's but for the sizes stated")
    if row.kind == "memory":
        options = options_of(row.model)
        for option, other in FACTS.options.items():
            fields = {**fields, **(other if option in options else {})}
        if not vocab and row.model.startswith(("gpt", "moe/gpt")):
            vocab = FACTS.vocab
            assumed.append("GPT-2's vocabulary")
        if vocab and row.source == CI:
            vocab = -(-vocab // (128 * row.tp)) * 128 * row.tp
            assumed.append("a vocabulary padded to a multiple of 128 tp")
    if not vocab:
        raise NotModelled("vocab is not stated")
    wide = 4 * row.hidden
    if row.source == CI and fields.get("gated"):  # as Megatron-LM's arguments.py
        wide = int(wide * 2 / 3 / 64) * 64
    return GPT(
        layers=row.layers,
        hidden=row.hidden,
        heads=row.heads,
        kv_heads=row.kv_heads,
        ffn=row.ffn or wide,
        seq=row.seq,
        batch=row.global_batch,
        vocab=vocab,
        dtype="bfloat16",
        **fields,
        **_mixture(row, assumed),
    )


def _mixture(row: PublishedRow, assumed: list[str]) -> dict[str, Any]:
    """Fields of a model with experts; all load alike."""
    if not row.experts:
        return {}
    assumed.append("as many tokens for each expert")
    top_k, width = row.top_k or 2, row.moe_ffn or row.ffn or 4 * row.hidden
    found = {"experts": row.experts, "top_k": top_k, "moe_ffn": row.moe_ffn}
    shared, rest = divmod(row.shared_ffn or 0, width)
    if rest:
        raise NotModelled(f"shared_ffn={row.shared_ffn} is no multiple of an expert's {width}")
    return found | {"shared_experts": shared}


@lru_cache(maxsize=256)
def ideal(gpu: str, n_gpus: int, source: str = "") -> Cluster:
    """The cluster of a row at nominal rates. Raises ``ValueError`` for an unknown GPU and for nodes
    that are cut."""
    gpu = FACTS.gpus.get(gpu, gpu)
    return clusters.dgx(gpu, max(n_gpus, 2), *FACTS.fabrics.get(source, (None, None)))


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
    framework = _begins(FACTS.profiles, source) or framework_of(source)
    return framework if framework in frameworks() else "Megatron-LM"


def fabric_of(profile: str) -> str:
    """The fabric between the nodes on which a profile's runs were measured."""
    return "Ultra-Scale" if profile == "nanotron" else "InfiniBand"


def as_ran(cluster: Cluster, row: PublishedRow) -> Cluster:
    """The cluster as the run of a row found it: with less bandwidth over replicas where its
    gradients are larger than those predicted, and slow messages where the grid's are."""
    replicas = row.dp * row.cp
    sends = FACTS.gradients.get(row.framework, {}) if replicas > 1 else {}
    slow = any(getattr(row, size) >= least for size, least in FACTS.slow_messages.items())
    return _as_ran(cluster, (row.pp, replicas, row.tp), sends.get(str(row.zero or 0), 1), slow)


def fabric_alone(gpu: str, n_gpus: int, source: str = "") -> Cluster:
    """`cluster_of` without what single runs found besides: one cluster for all layouts."""
    return _as_ran(cluster_of(gpu, n_gpus, source), (1, 1, 1), 1, False)


@lru_cache(maxsize=512)
def _as_ran(cluster, sizes, factor, slow):
    pp, dp, tp = sizes
    if not slow and any(level.message for level in cluster.levels):
        levels = tuple(replace(level, message=0.0) for level in cluster.levels)
        cluster = replace(cluster, levels=levels)
    if factor == 1:
        return cluster
    bandwidth = cluster.bandwidth({"pp": pp, "dp": dp, "tp": tp}, "dp")
    return replace(cluster, table={(tp, dp): bandwidth / factor})


def memory(plan: RunPlan, row: PublishedRow) -> Memory:
    """Bytes of a rank in mixed precision, by kind, as `tpviz.verbs.room.need` counts them, with
    what the row says besides: of the rank that a row of memory names, else of the one that needs
    most."""
    found = as_pipeline(plan.strategy, plan.workload)
    assert found is not None
    s, w, _ = found
    places = [_place(row)] if row.kind == "memory" else range(s.pp)
    how = run_of(row, plan)
    return max((peak(s, w, place, how) for place in places), key=lambda m: m.total)


@lru_cache(maxsize=1)
def ci_cases() -> dict[str, frozenset[str]]:
    """{case of Megatron-LM's CI: its options that matter here}, from its repository."""
    return {row["case"]: frozenset(row["options"].split()) for row in table(CI_CASES)}


def options_of(case: str) -> frozenset[str]:
    """The options of a case; of an unknown one those that begin with a word of its name."""
    named = frozenset(option for option in FACTS.options if option.partition("-")[0] in case)
    return ci_cases().get(case, named)


def run_of(row: PublishedRow, plan: RunPlan) -> TrainingRun:
    """How the framework of a row keeps its tensors (`tpviz.verbs.peak.run_by`), and what the row
    says besides."""
    found = as_pipeline(plan.strategy, plan.workload)
    assert found is not None
    run = framework_run(profile_of(row.source), plan.cluster.device.name, *found)
    if row.recompute == "selective" and row.source.startswith(tuple(FACTS.profiles)):
        run = replace(run, attention="recomputed")
    if row.dtype == "fp16" and row.source == CI:
        run = replace(run, summed=2)
    if row.source != CI:
        return replace(run, fused_loss=run.fused_loss or "fused cross entropy" in row.notes)
    options, gpu = options_of(row.model), row.gpu.lower()
    unfused = "attention-backend=unfused" in options or "transformer-impl=local" in options
    instances = next((int(o.partition("=")[2]) for o in options if o.startswith(INSTANCES)), 1)
    flash = not unfused and not (FACTS.unfused in gpu and "deterministic-mode" in options)
    handle = LARGE if CUBLAS in options or "h100" in gpu else HANDLE
    engine = LARGE if "h100" in gpu or "b200" in gpu else ENGINE
    return replace(
        run,
        attention="flash" if flash else "unfused",
        again=row.hidden * flash,
        dropout="attention-dropout=0.0" not in options,
        fused_grads="no-gradient-accumulation-fusion" not in options,
        shards=max(run.shards // instances, 1),
        mask=True,
        workspace=2 * handle + engine,
    )


def _gpu(row):
    """The GPU's name; of a memory row by its platform."""
    if row.kind != "memory":
        return row.gpu
    words = row.gpu.lower().replace("gb200", "")
    return next((gpu for word, gpu in FACTS.platforms.items() if word in words), "A100-SXM-80GB")


def _place(row):
    """The pipeline rank whose memory a row has: SimuMax's names it, Megatron-LM's CI logs the
    last."""
    return 0 if row.gpu.endswith("rank 0") else row.pp - 1


def _sharded(row, workload, cut, assumed):
    """The strategy of FSDP, and of ZeRO-2, whose parameters stay gathered until backward."""
    if row.experts:
        raise NotModelled(f"ZeRO-{row.zero} with experts is not modelled")
    if row.pp > 1:
        raise NotModelled(f"ZeRO-{row.zero} inside a pipeline (pp={row.pp}) is not modelled")
    if row.recompute == "selective":
        assumed.append("of selective recomputation the time of attention's core")
    knobs = {"accumulation": int(row.microbatches), "recompute": row.recompute or "none"}
    if cut is None:
        strategy = AxoNN(x=row.tp, y=1, z=row.dp, keep=row.zero == 2, gather="block", **knobs)
        with suppress(ValueError):  # its shards are not padded
            strategy.check(workload)
            return strategy
    inner = Megatron(tp=row.tp) if row.tp > 1 else None
    inner = inner * cut if inner and cut else inner or cut
    block = min(2e-6 * workload.block_matrices / row.tp, 1000.0)  # MB, reduced at once
    strategy = DataParallel(row.dp, row.zero, block, inner, **knobs)
    strategy.check(workload)
    late = "; weights gathered after the update, none of it hidden" * (row.zero == 2)
    assumed.append(f"shards padded to a multiple of {row.dp * row.cp}{late}")
    return strategy


def _pipelined(row, assumed):
    """The strategy of Megatron-LM and of nanotron."""
    if not row.recompute:
        assumed.append("no recomputation, as none is stated")
    if row.recompute == "selective":
        assumed.append("nothing recomputed, for what selective recomputation repeats is small")
    if row.sp is None and row.tp > 1:
        assumed.append("sequence parallelism, as nothing is stated of it")
    order: dict[str, Any] = {"schedule": "1f1b"}
    layout, vpp = next((s for word, s in FACTS.layouts.items() if word in row.model), ("", row.vpp))
    if vpp > 1 and row.pp > 1:
        order = {"schedule": "interleaved_1f1b", "chunks": vpp}
    return Merak(
        pp=row.pp,
        tp=row.tp,
        dp=row.dp,
        microbatches=int(row.microbatches),
        recompute="full" if row.recompute == "full" else "none",
        layout=layout or _layout(row, assumed),
        zero=row.zero,
        sp=row.sp != 0 and row.tp > 1,
        **order,
    )


def _zero(row, assumed):
    """The stage of ZeRO that is stated, else that with which a framework's recipes train."""
    alone = row.kind == "memory" or row.dp * row.cp == 1
    usual = 0 if alone else FACTS.zero.get(profile_of(row.source), 0)
    if row.zero is None and usual:
        assumed.append(f"ZeRO-{usual}, as {row.framework} trains, for none is stated")
    return usual if row.zero is None else row.zero


def _layout(row, assumed):
    """The layout of a row's stages, as its framework cuts them.

    nanotron (``build_model`` in its models/base.py) ends a stage behind the first part with which
    the cost so far is more than the stage's share: 4 h^2 + 3 h f for a block, h V for the head,
    nothing for the norm before the head and the cast and the loss behind it. It takes the stage
    after the last part's end for that of the loss; where it is not, nearly all published runs
    failed, so these are refused.
    Megatron-DeepSpeed counts both ends as layers where BigScience's layers divide only so.
    """
    layers, pp = row.layers, row.pp
    if row.framework == "nanotron" and row.vocab and pp > 1:
        block, found, stage = 4 * row.hidden + 3 * (row.ffn or 4 * row.hidden), [0] * pp, 0
        whole = layers * block + row.vocab
        done = loss = 0
        for cost in (*(block,) * layers, 0, row.vocab, 0, 0):
            found[stage] += cost == block
            loss, done = stage, done + cost
            stage += done * pp > (stage + 1) * whole
        if stage != loss:
            raise NotModelled(
                f"pp={pp} for {layers} layers: nanotron puts the loss on stage {loss} and looks "
                f"for it on stage {stage}"
            )
        if 0 in found[:-1]:
            assumed.append("the head on the last stage, behind stages that have nothing")
        return tuple(found)
    if row.source.startswith("bigscience") and layers % pp and (layers + 2) % pp == 0:
        each = (layers + 2) // pp
        return (each - 1, *(each,) * (pp - 2), each - 1)
    return "even"
