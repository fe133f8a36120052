"""Peak bytes of a rank of a framework's run, by contributor (derived from the frameworks' code).

A scheme's own memory (`schemes/*/memory.py`) is that of our programs, to the byte. Other frameworks
keep other tensors: here are those of Megatron-LM with Transformer Engine, and of nanotron. T
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
=========================  ==============================  ===================================

Besides, the last stage keeps its last norm and, in 32 bits, its logits. What is in memory for a
moment on top is the larger of the loss, of backward of the head, and of backward of a block.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tpviz.cost import Memory
from tpviz.schemes.gpt.memory import statistics
from tpviz.schemes.merak.step import num_local_parameters

if TYPE_CHECKING:
    from tpviz.schemes.merak.strategy import Merak
    from tpviz.workload import GPT

MiB = 1 << 20
HANDLE, ENGINE, LARGE = 65 * MiB // 8, 4 * MiB, 32 * MiB
"""Workspaces of cuBLAS: of a handle of PyTorch (`parseChosenWorkspaceSize`; it has two, of the
thread that runs forward and of autograd's), of Transformer Engine
(`get_cublas_workspace_size_bytes`); and of a handle on Hopper, of the engine from Hopper on."""


@dataclass(frozen=True)
class Run:
    """What the memory of a run depends on, besides model and split.

    attention : "flash", "unfused", or "recomputed" (selectively). again : features of a token that
    attention keeps once more, in another layout. dropout : of attention and of the branches.
    fused_grads : weights' gradients are added up in their GEMMs, which leaves autograd a dummy
    gradient for every shape. fused_loss : the loss works in place, on logits in 16 bits. fused_mlp
    : the activation is one kernel. logits : bytes of a logit at the peak of the loss. summed :
    bytes of a gradient. shards : ranks that share the optimizer's state. split : sequence
    parallelism; gathered : of which the inputs of GEMMs are kept whole. mask : batches have an
    attention mask. workspace : bytes that libraries keep.
    """

    attention: str = "flash"
    again: int = 0
    dropout: bool = False
    fused_grads: bool = False
    fused_loss: bool = False
    fused_mlp: bool = True
    logits: int = 6
    summed: int = 4
    shards: int = 1
    split: bool = False
    gathered: bool = False
    mask: bool = False
    workspace: int = 0


class Kept(NamedTuple):
    """Bytes of one microbatch on a stage: from forward to backward; more where it is recomputed;
    for a moment more in forward; the same in backward."""

    after_forward: float
    dropped: float
    in_forward: float
    in_backward: float


def peak(s: "Merak", w: "GPT", place: int, run: Run) -> Memory:
    """The `Memory` of the ranks whose index along pp is ``place``.

    Parameters take 2 bytes, gradients ``run.summed``, the float32 copy and Adam's two moments 12,
    which ``run.shards`` ranks share (Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1).
    """
    schedule = s.schedule_of(w)
    stages = schedule.stages_of(place)
    number = sum(num_local_parameters(s, w)[stage] for stage in stages)
    number -= w.tied * (s.pp == 1) * w.vocab * w.hidden // s.tp  # both ends share it
    kept = {stage: _kept(s, w, stage, run) for stage in stages}
    most = 0.0
    for (kind, stage, _), moments in schedule.moments[place].items():
        mine = kept[stage]
        more = mine.in_forward if kind == "F" else 0.0 if kind == "R" else mine.in_backward
        held = max(
            sum(n * kept[at].after_forward + full * kept[at].dropped for at, n, full in counts)
            for counts in moments
        )
        most = max(most, held + more)
    return Memory(
        parameters=2 * number,
        gradients=run.summed * number,
        optimizer=round(12 * number / run.shards),
        activations=round(most + _beside(s, w, run, s.stages - 1 in stages)),
    )


def _beside(s, w, run, last):
    """What stays from step to step: libraries' workspaces, the dummy gradients, what the head
    gathers, and two batches of tokens, targets, positions and loss mask, perhaps with attention's
    mask."""
    local = s.local(w)
    tokens = local.batch * w.seq
    dummies = 2 * w.block_matrices / s.tp * run.fused_grads
    gathered = 2 * tokens * w.hidden * (run.split and last)
    return run.workspace + dummies + gathered + 2 * tokens * (28 + run.mask * w.seq)


def _kept(s, w, stage, run):
    """The `Kept` of a stage."""
    local, tp = s.local(w), s.tp
    tokens = local.batch * w.seq
    whole = 2 * tokens * w.hidden
    stream = whole // tp if run.split else whole
    count, drop = len(s.blocks(w)[stage]), s.num_recomputed(w)[stage]
    block, backward = _block(w, tokens, stream, tp, run)
    backward *= count > 0
    embedding = run.dropout * (stage == 0) * stream / 2
    after, more = (count - drop) * block + drop * stream + embedding, 0.0
    weight = 2 * w.vocab * w.hidden / tp
    if stage == 0:  # the embedding's gradient, when its microbatch is gone
        backward = max(backward, weight + stream - after - drop * (block - stream))
    if stage == s.stages - 1:
        logits, norm = tokens * w.vocab / tp, 2 * stream + 4 * statistics(w) * tokens
        held = (2 if run.fused_loss else 4) * logits
        more = (run.logits - 4) * logits * (not run.fused_loss)
        head = (2 * logits - held) + weight + whole
        backward = max(backward - held - norm, more, head)
        after += norm + held
    return Kept(after, drop * (block - stream), more, backward)


def _block(w, tokens, stream, tp, run):
    """(what a block keeps, what its backward has besides for a moment)."""
    features = w.qkv_features + w.hidden + w.up_features
    features += w.mlp_width * (1 if run.fused_mlp else 1 + w.gated)
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
    return kept, stream + 2 * tokens * w.up_features / tp
