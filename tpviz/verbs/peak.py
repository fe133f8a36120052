"""Peak bytes of a rank of a framework's run, by contributor (derived from the frameworks' code).

A scheme's own memory (`schemes/*/memory.py`) is that of our programs, to the byte. Other frameworks
keep other tensors: here are those of Megatron-LM with Transformer Engine (and PyTorch's FSDP,
without the dummies and masks), and of nanotron. T
tokens of a microbatch, h hidden, f the MLP's width, u that of its first layer, q features of
q, k, v; t = tp, n = t with sequence parallelism and else 1; bytes in 16 bits:

=========================  ==============================  ===================================
kept of a block            Megatron-LM                     nanotron
=========================  ==============================  ===================================
norms: inputs, outputs     8 T h / n                       outputs perhaps whole, 4 T h
q, k, v, and the output    2 T (q + h) / t                 the same
attention "flash"          4 T N / t, and the output in    4 T N / t, and k and v in another
                           another layout, 2 T h / t       layout, 4 T h / t
attention "unfused"        scores 2 T N S / t; under
                           dropout 3 T N S / t more
MLP                        2 T (u + f) / t, activations    2 T (u + 2 f) / t
                           being one kernel
dropout's masks            2 T h / n
statistics of norms        4 T or 8 T / n each             the same
experts, of R rows         2 R (h + (u + f) / e)           the same
their router               6 T E / n'                      the same
=========================  ==============================  ===================================

R are the rows that a rank's experts compute, e the ranks that share one (`etp`), E all experts, n'
= t / e the parts of a sequence that ranks choose for. Weights of experts multiply their results
before the second product, so the results themselves are not kept; shared experts are as an MLP.

Besides, the last stage keeps its last norm and, in 32 bits, its logits. What is in memory for a
moment on top is the larger of the loss, of backward of the head, and of backward of a block. Full
recomputation keeps the input of every block, and all of the one in backward.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from tpviz.cluster.clock.cost import Memory
from tpviz.schemes.experts.cut import ExpertCut, cut_of
from tpviz.schemes.gpt.memory import statistics
from tpviz.schemes.pipeline.sharding import unit_numels
from tpviz.schemes.pipeline.step import num_local_parameters

if TYPE_CHECKING:
    from tpviz.core.workload import GPT
    from tpviz.schemes.merak.strategy import Merak

MiB = 1 << 20
HANDLE, ENGINE, LARGE = 65 * MiB // 8, 4 * MiB, 32 * MiB
"""Workspaces of cuBLAS: of a handle of PyTorch (`parseChosenWorkspaceSize`; it has two, of the
thread that runs forward and of autograd's), of Transformer Engine
(`get_cublas_workspace_size_bytes`); and of a handle on Hopper, of the engine from Hopper on."""
UNFUSED = {"Megatron-LM before FlashAttention": 2, "Megatron-DeepSpeed": 4}
"""Framework whose attention is unfused, with dropout -> bytes of a gradient. Of Megatron-LM's then
in float16 too: its copy in 32 bits is made where the activations are gone."""


@dataclass(frozen=True)
class TrainingRun:
    """What the memory of a run depends on, besides model and split.

    attention : "flash", "unfused", or "recomputed" (selectively). again : features of a token that
    attention keeps once more, in another layout. dropout : of attention and of the branches.
    fused_grads : weights' gradients are added up in their GEMMs, which leaves autograd a dummy
    gradient for every shape. fused_loss : the loss works in place, on logits in 16 bits. fused_mlp
    : the activation is one kernel. logits : bytes of a logit at the peak of the loss. summed :
    bytes of a gradient; master, moment : of the copy that AdamW updates, and of one of its two
    moments. shards : ranks that share what ZeRO's stage says. split : sequence
    parallelism; gathered : of which the inputs of GEMMs are kept whole. mask : batches have an
    attention mask. every_second : of the outputs of matrix products each second one is kept,
    attention's, and a block's input; the rest is computed again (torchtitan's "selective").
    at_once : what a stage recomputes is all there before its backward, as in our Merak, not one
    block after another. workspace : bytes that libraries keep.
    """

    attention: str = "flash"
    again: int = 0
    dropout: bool = False
    fused_grads: bool = False
    fused_loss: bool = False
    fused_mlp: bool = True
    logits: int = 6
    summed: float = 4
    master: float = 4
    moment: float = 4
    shards: int = 1
    split: bool = False
    gathered: bool = False
    mask: bool = False
    every_second: bool = False
    at_once: bool = False
    workspace: int = 0


class KeptBytes(NamedTuple):
    """Bytes of one microbatch on a stage: kept from forward to backward; added by its
    recomputation; added for a moment in forward, and in backward."""

    after_forward: float
    dropped: float
    in_forward: float
    in_backward: float


def run_by(framework: str, s: "Merak", w: "GPT", device: str) -> TrainingRun:
    """The default `TrainingRun` of a strategy under a framework. framework : one of
    `tpviz.cluster.profiles.frameworks`. device : its name."""
    hopper = any(name in device for name in ("H100", "H200"))
    handle = LARGE if hopper else HANDLE
    engine = LARGE if hopper or "B200" in device else ENGINE
    common = TrainingRun(
        attention="recomputed" if s.recompute == "selective" else "flash",
        shards=s.dp if s.zero_stage else 1,
        split=s.sequence_parallel,
        workspace=2 * handle,
    )
    if framework == "nanotron":
        return replace(
            common,
            again=2 * w.query_features * (not w.kv_heads),
            fused_mlp=False,
            logits=10,
            summed=6 if s.dp > 1 else 4,
            gathered=common.split and s.pp == 1,
        )
    if framework == "FSDP":
        second = s.recompute == "selective"
        return replace(common, attention="flash", fused_loss=True, every_second=second)
    if framework in UNFUSED:
        kept = "unfused" if common.attention == "flash" else common.attention
        return replace(common, attention=kept, dropout=True, summed=UNFUSED[framework])
    return replace(common, fused_grads=True, workspace=2 * handle + engine)


def peak(s: "Merak", w: "GPT", place: int, run: TrainingRun) -> Memory:
    """The `Memory` of the ranks whose index along pp is ``place``."""
    stages, moments = s.schedule_of(w).stages_of(place), s.schedule_of(w).moments[place]
    kept = _kept_by(s, w, stages, run)
    most = 0.0
    for (kind, stage, _), held in moments.items():
        mine = kept[stage]
        more = mine.in_forward if kind == "F" else 0.0 if kind == "R" else mine.in_backward
        now = max(
            sum(n * kept[at].after_forward + full * kept[at].dropped for at, n, full in counts)
            for counts in held
        )
        most = max(most, now + more)
    beside = _beside(s, w, run, s.stages - 1 in stages)
    return Memory(**states(s, w, stages, run), activations=round(most + beside))


def least_peak(s: "Merak", w: "GPT", place: int, run: TrainingRun) -> float:
    """A lower bound of `peak`'s total, for schedules that are 1F1B, interleaved or not: what is
    kept when the rank's first backward begins. With chunks each but the last has then seen pp
    microbatches or more, for 2 (pp - place - 1) + (v - 1) pp forwards of v chunks come before
    (Narayanan et al. 2021, arXiv 2104.04473, section 2.2)."""
    stages = range(place, s.stages, s.pp)
    *before, last = (one.after_forward for one in _kept_by(s, w, stages, run).values())
    late = 2 * (s.pp - place) - 1 if before else s.pp - place
    held = s.pp * sum(before) + min(late, s.pp, s.microbatches) * last
    beside = _beside(s, w, run, s.stages - 1 in stages)
    return int(sum(states(s, w, stages, run).values()) + held + beside) - 1


def states(s: "Merak", w: "GPT", stages: Iterable[int], run: TrainingRun) -> dict[str, float]:
    """Bytes of a rank's parameters, gradients and optimizer, of these stages.

    Parameters take 2 bytes, gradients ``run.summed``, the float32 copy and Adam's two moments 12,
    which ``run.shards`` ranks share as ZeRO's stage says (Rajbhandari et al. 2020, arXiv
    1910.02054, section 3.1). At ZeRO 2 and 3 the 16-bit gradients of the ends and of one block are
    whole beside, the block's once more in 32 bits to be reduced; at stage 3 the float32 copy takes
    the place of the parameters, whose ends and two blocks are gathered (as FSDP: derived).
    """
    numels = num_local_parameters(s, w)
    blocks = [block for stage in stages for block in s.blocks(w)[stage]]
    number = sum(numels[stage] for stage in stages)
    at = s.inside.layout
    number -= w.tied * (s.pp == 1) * w.vocab * w.hidden // (at.i * at.s)  # both ends share it
    cut, zero = cut_of(at, w), s.zero_stage
    mixed = sum(map(w.has_experts, blocks))
    whole, own = _of_experts(w, ExpertCut(1, at.i)), _of_experts(w, cut)
    number, experts = number - mixed * whole, mixed * own
    weights, gradients = 2 * (number + experts), run.summed * (number + experts)
    others = max(run.shards * cut.parts // cut.ep, 1) if run.shards > 1 else 1
    shared = number / run.shards + experts / others
    rest = (run.master + 2 * run.moment) * shared
    if zero > 1:
        each = {n: sum(unit_numels(s, w, f"blocks.{n}").values()) for n in blocks}
        each = {n: size + (own - whole) * w.has_experts(n) for n, size in each.items()}
        ends = max(number + experts - sum(each.values()), 0)
        block = max(each.values(), default=0)
        gradients = run.summed * shared + 2 * ends + 6 * block
        if zero == 3:
            weights = (run.master or 2) * shared + 2 * ends + 4 * block
            rest -= run.master * shared
    return {"parameters": weights, "gradients": gradients, "optimizer": round(rest)}


def _of_experts(w, cut):
    """Parameters of a block's experts on a rank, but for those that are shared."""
    return w.experts * w.hidden * (w.up_features + w.mlp_width) // (cut.ep * cut.etp)


def _shapes(w, tp, cut):
    """Elements of a rank's matrices of a block, of several experts one."""
    one = w.hidden * (w.up_features + w.mlp_width)
    attention = w.hidden * (w.qkv_features + w.query_features)
    others = attention + one * (w.shared_experts if w.experts else 1)
    return others / tp + one / cut.etp * (w.experts > 0)


def _beside(s, w, run, last):
    """What stays from step to step: libraries' workspaces, the dummy gradients, what the head
    gathers, and two batches of tokens, targets, positions and loss mask, perhaps with attention's
    mask."""
    local = s.local(w)
    tokens = local.batch * w.seq
    cut = cut_of(s.inside.layout, w)
    dummies = 2 * max(_shapes(kind, s.tp, cut) for kind, _ in w.kinds()) * run.fused_grads
    gathered = 2 * tokens * w.hidden * (run.split and last)
    return run.workspace + dummies + gathered + 2 * tokens * (28 + run.mask * w.seq)


def _kept_by(s, w, stages, run):
    """{stage: its `KeptBytes`}."""
    local, blocks, last = s.local(w), s.blocks(w), s.stages - 1
    again = s.recompute not in ("none", "selective")  # else no schedule need be made
    drops = s.num_recomputed(w) if again else [0] * s.stages
    found = {}
    for k in stages:
        kinds = local.kinds(blocks[k][drops[k] :]), local.kinds(blocks[k][: drops[k]])
        found[k] = _kept(local, s.tp, run, *kinds, not k, k == last)
    return found


@lru_cache(maxsize=4096)
def _kept(w, tp, run, stay, drop, first, last):
    """The `KeptBytes` of a stage, one microbatch of a replica being the workload. stay, drop : its
    blocks that keep all, and that are recomputed, as `GPT.kinds`."""
    tokens = w.batch * w.seq
    whole = 2 * tokens * w.hidden
    stream = whole // tp if run.split else whole
    kept = dropped = backward = 0
    for kinds, again in ((stay, False), (drop, True)):
        for kind, count in kinds:
            block, moment = _block(kind, tokens, stream, tp, run)
            stays = _second(kind, tokens, stream, tp) if run.every_second else block
            kept += count * (stream if again else stays)
            dropped += count * (block - stream) * (run.at_once and again)
            more = (block - (stream if again else stays)) * (not run.at_once)
            backward = max(backward, (moment + more) * (count > 0))
    embedding = run.dropout * first * stream / 2
    after, more = kept + embedding, 0.0
    weight = 2 * w.vocab * w.hidden / tp
    if first:  # the embedding's gradient, when its microbatch is gone
        backward = max(backward, weight + stream - after - dropped)
    if last:
        logits, norm = tokens * w.vocab / tp, 2 * stream + 4 * statistics(w) * tokens
        held = (2 if run.fused_loss else 4) * logits
        more = (run.logits - 4) * logits * (not run.fused_loss)
        head = (2 * logits - held) + weight + whole
        backward = max(backward - held - norm, more, head)
        after += norm + held
    return KeptBytes(after, dropped, more, backward)


def _second(w, tokens, stream, tp):
    """What a block keeps where of the outputs of matrix products each second one is kept."""
    products = w.qkv_features + w.up_features + 2 * w.hidden
    return stream + tokens * (2 * w.hidden + products + 4 * w.heads) / tp


def _block(w, tokens, stream, tp, run):
    """(what a block keeps, what its backward has besides for a moment)."""
    features = w.qkv_features + w.query_features
    of_mlp = w.up_features + w.mlp_width * (1 if run.fused_mlp else 1 + w.gated)
    features += of_mlp * (w.shared_experts if w.experts else 1)
    whole, rows = 2 * tokens * w.hidden, tokens * w.heads / tp
    inputs = 2 * (whole if run.gathered else stream)
    kept = 2 * stream + inputs + 2 * tokens * (features + run.again) / tp
    kept += 8 * statistics(w) * tokens * stream / whole
    if run.attention == "unfused":
        kept += (5 if run.dropout else 2) * rows * w.seq
    elif run.attention == "flash":
        kept += 4 * rows
    if run.dropout:
        kept += stream
    backward = stream + 2 * tokens * w.up_features / tp
    if w.experts:
        cut = w.cut or ExpertCut(1, tp, tp)
        rows = int(cut.loads(w, cut.at(w)).sum())
        kept += 2 * rows * (w.hidden + of_mlp / cut.etp) + 6 * tokens * w.experts / cut.parts
        backward = stream + 2 * rows * (w.hidden + w.up_features / cut.etp)
    return kept, backward
