"""The last exercises of notebooks 10 to 13: from the evidence to the place and the cause, in a bug
zoo. `zoo.examine` compares one step of a broken program with the same program without the fault,
layer by layer, on the same ranks; the first error gives the place, and the rest of the evidence the
cause.
"""

from .zoo import CASES, WRONG, Diagnosis


def _look(zoo: str, cause: str, table: str) -> str:
    """How to look at a known fault, before the question."""
    return (
        f"**Look first.** After `from tpviz.course import {zoo}` and `from "
        f'tpviz.course.zoo import examine`, `examine({zoo}.seed("{cause}"))` runs a program '
        "with this known fault on real ranks beside the right one, and prints where forward, "
        f"backward and gradients begin to differ, and the ledger's lines. {table} Look at two or "
        "three causes of the list below in this way. **Then diagnose.** "
    )


# --- atp_bugs ---
ATP_CAUSES = {
    "bias before the sum": "got - want is the same for all tokens, and the ledger is exact",
    "q, k, v as blocks": "got has the numbers of want in another order of the features",
    "output not summed": "the ledger misses an all-reduce in forward, of a whole activation",
    "gradient summed over the wrong axis": "the ledger has too much on one axis in backward, and "
    "too little on the other",
    "gradient not summed": "the ledger misses an all-reduce in backward, and nothing else",
    "statistics of own features": "the ledger misses all-reduces of two numbers per token, "
    "forward and backward",
    "chunks in the wrong order": "the sequences of got are those of want, in another order",
    "copies not summed": "no layer is wrong in either direction, and the ledger has no all-reduce "
    "in sync",
    "loss scaled twice": "forward and the ledger are right, and every gradient is a multiple of "
    "what it should be",
}
ATP = Diagnosis(
    title="The bug zoo: where, and why?",
    prompt=_look(
        "atp_zoo",
        "output not summed",
        "Its ledger misses an all-reduce in forward; which layer is wrong first?",
    )
    + f"{CASES} programs train with ATP, and each has one fault. The `evidence` compares a "
    "step with the right one: `evidence.forward`, `.backward`, `.gradients` are {name: error} in "
    f"the order of the step (an error above {WRONG} is no rounding), `.ledger` the lines in which "
    'the ledger differs from the formula (each ends in what "run has" and "formula has"), '
    "`.got` and `.want` rank 0's numbers where the first error is, with the sequences (or tokens) "
    'first and the features last. Return (layer, cause): the name of the layer, "sync" or '
    '"loss", and one of: ' + "; ".join(ATP_CAUSES) + ".",
    starter='''def atp_bugs(evidence):
    layer = max(evidence.forward, key=evidence.forward.get)  # the largest error?
    return layer, "bias before the sum"''',
    concept="An error propagates to everything after it, so look for its first place, not its "
    "size. Is forward right? Then check backward, then the rest of the step.",
    principle="If a layer's output is wrong first, it is that layer; else the first wrong "
    "gradient of an input. Then the ledger: a missing all-reduce, one on another axis, or "
    "neither; if it is exact, compare got with want: shifted, permuted, or multiplied?",
    shape="A chain of conditions: forward, then backward, then gradients. In each the first "
    "name with an error above 1e-10 gives the layer. Lines of `.ledger` and two or three "
    "comparisons of `.got` with `.want` give the cause.",
    success="`tv.verify` and its ledger detect every one of them; the first wrong place locates "
    "it.",
    zoo="atp_zoo",
    shows=ATP_CAUSES,
    outside={
        "sync": "all layers are right, forward and backward. What comes after backward?",
        "loss": "forward is right, and in backward even its first layer gets a wrong gradient. "
        "What comes before it?",
    },
    unknown='there is no layer {place!r}: use a name of evidence.forward, or "sync" or "loss" '
    "where no layer is at fault.",
)


# --- axonn_bugs ---
AXONN_CAUSES = {
    "statistics of own features": "the ledger misses all-reduces of two numbers per token over y, "
    "forward and backward",
    "axes not exchanged": "the ledger has an all-reduce over y where the formula has it over x, "
    "in forward",
    "block of another layer": "a layer is wrong in forward, yet the ledger is exact",
    "bias not summed over z": "one bias is wrong, and the all-reduce over z in sync is smaller",
    "bias summed over z twice": "one bias is wrong, and z has one more all-reduce in sync",
    "gradient divided by z": "one weight is wrong, and its gradient is 1/z of the right one",
    "scatter not waited for": "one weight is wrong, and a reduce-scatter was never waited for",
    "microbatch overwritten": "one weight is wrong; its gradient is no multiple of the right one, "
    "and no wait is missing",
    "same rows along z": "the output of embed is wrong, but not on the ranks of z = 0",
    "other rows along x": "the output of embed is wrong on all ranks",
    "copies counted in the norm": "all gradients are wrong by one factor, after a right backward",
    "prefetched in the order of modules": "no number is wrong, and gathers were not prefetched",
}
AXONN = Diagnosis(
    title="The bug zoo of the grid: where, and why?",
    prompt=_look(
        "axonn_zoo",
        "bias not summed over z",
        "No layer is wrong in forward; read the table of gradients.",
    )
    + f"{CASES} programs train with AxoNN on 4 ranks, and each has one fault. The `evidence` "
    "is as in `atp_bugs`: `.forward`, `.backward`, `.gradients` are {name: error} in the order of "
    f"the step (an error above {WRONG} is no rounding), `.ledger` the lines that differ from the "
    "formula. `.ranks` has the coordinates of the ranks where the first error is, `.got` and "
    "`.want` the numbers there (of a gradient: the whole one), `.unwaited` the collectives never "
    "waited for, `.misses` the gathers not prefetched in time. Return (place, cause): the name of "
    'a layer, or "rows" (which rows a rank takes), "clip" or "order" (of gathers); and one '
    "of: " + "; ".join(AXONN_CAUSES) + ".",
    starter='''def axonn_bugs(evidence):
    layer = max(evidence.forward, key=evidence.forward.get)  # the largest error?
    return layer, "axes not exchanged"''',
    concept="Go through the step in its order: rows, layers forward, layers backward, gradients. "
    "The first wrong place is the answer; no wrong place is an answer too.",
    principle="Forward wrong: embed means rows, else it is that layer, and the ledger says which "
    "cause. Only gradients wrong: all of them means clipping; else the parameter's name has the "
    "layer (a bias or a weight), and the ledger, `.unwaited` and got / want tell how.",
    shape="A chain of conditions: forward, then gradients, then nothing wrong at all. The "
    "first name with an error above 1e-10 gives the place. `.ranks`, `.ledger`, "
    "`.unwaited`, and `.got / .want` give the cause.",
    success="A test of a parallel program must do the same: compare numbers by layer and by rank, "
    "the ledger, the waits, and the prefetches.",
    zoo="axonn_zoo",
    shows=AXONN_CAUSES,
    outside={
        "rows": "the output of embed is wrong already, and embed has no fault: what is its input?",
        "clip": "forward and backward are right in all layers, and yet every gradient is wrong. "
        "Which operation changes all of them?",
        "order": "no number is wrong, in any layer. Look at misses and at the ledger.",
    },
    unknown="there is no layer {place!r}: use a name of evidence.forward, or 'rows', 'clip', "
    "'order' where no layer is at fault.",
    unsure="parameter has a wrong gradient?",
)


# --- merak_bugs ---
MERAK_CAUSES = {
    "residual of the other half": "norm1 is wrong in forward though the block before it is right, "
    "and in the second half of the rows only",
    "bias on every rank": "a layer with an all-reduce is wrong in forward, yet the ledger is exact",
    "sum left out of forward": "a layer with an all-reduce is wrong, and the ledger misses it in "
    "forward",
    "copies that start apart": "of all layers only head is wrong in forward",
    "another microbatch recomputed": "forward is right, and recomputation is wrong, except in the "
    "last microbatch",
    "one buffer for all microbatches": "the first layer of a stage gives a wrong gradient for what "
    "it received; forward is right, and nothing is recomputed",
    "gradient not summed": "the gradient of a layer's input is wrong, and the ledger misses an "
    "all-reduce",
    "sum not waited for": "the gradient of a layer's input is wrong; the ledger has its "
    "all-reduce, which was never waited for",
    "microbatch overwritten": "one weight's gradient is wrong",
    "weights of a microbatch left out": "the gradients of all linear layers of a block are wrong, "
    "those of its norms are right",
    "same rows for all replicas": "the output of embed is wrong already",
    "share of a microbatch left out": "backward is wrong from head on: got is a multiple of want",
    "targets of another microbatch": "backward is wrong from head on; got is no multiple of want",
    "copies not summed": "only the shared weight's gradients are wrong, and the ledger misses the "
    "all-reduce over the ends",
    "copies averaged": "only the shared weight's gradients are wrong: half of the right ones",
    "replicas not summed": "backward is right, every gradient is wrong, and the ledger misses the "
    "all-reduce over dp",
}
MERAK = Diagnosis(
    title="The bug zoo of the pipeline: where, and why?",
    prompt=_look(
        "merak_zoo", "gradient not summed", "Forward is right; read backward from its first entry."
    )
    + f"{CASES} programs train with Merak on 4 ranks, a step in 4 microbatches, and each has "
    "one fault. The `evidence` is as in `atp_bugs`: `.forward`, `.backward`, `.gradients` are "
    f"{{name: error}} in the order of the step (an error above {WRONG} is no rounding), `.ledger` "
    "the lines that differ from the formula. `.recomputed` is the recomputed forward, if any; "
    "`.microbatches` are those in which the first error is, `.got` and `.want` the numbers there "
    "(rows first), and `.unwaited` tells whether a collective was never waited for. Return "
    '(place, cause): the name of a layer, of a block ("blocks.0") where all its weights are at '
    'fault, or "rows" (of a replica), "loss", "ends" (all-reduces of the shared weight) or '
    '"replicas" (all-reduces over dp); and one of: ' + "; ".join(MERAK_CAUSES) + ".",
    starter='''def merak_bugs(evidence):
    layer = max(evidence.forward, key=evidence.forward.get)  # the largest error?
    return layer, "bias on every rank"''',
    concept="Go through the step in its order: forward, recomputation, backward, gradients. The "
    "first wrong place is the answer; later ones are wrong because of it.",
    principle="Forward wrong: the layer says which cause, and for mlp.down the ledger. "
    "Recomputation wrong: the first layer. Backward wrong: head means the loss, norm1 the buffer, "
    "another layer its all-reduce. Only gradients: which parameters, and which collective does "
    "the ledger miss?",
    shape="A chain of conditions: forward, recomputation, backward, gradients. The first name "
    "with an error above 1e-10 gives the place. `.ledger`, `.unwaited`, the set of wrong "
    "parameters and a factor between `.got` and `.want` give the cause.",
    success="With each of them the loss still goes down. A test that compares a step with one "
    "process, layer by layer and microbatch by microbatch, detects them all.",
    zoo="merak_zoo",
    shows=MERAK_CAUSES,
    outside={
        "rows": "the output of embed is wrong already, and embed has no fault: what is its input?",
        "loss": "forward is right to the end, and backward is wrong from its start. What is "
        "between them?",
        "ends": "forward and backward are right in all layers. The gradients of two parameters "
        "are wrong, which share one weight, on two stages.",
        "replicas": "forward and backward are right in all layers, and yet every gradient is "
        "wrong. What comes after backward?",
    },
    unknown="there is no {place!r}: use a name of evidence.forward, a block ('blocks.0') where all "
    "of it is at fault, or 'rows', 'loss', 'ends', 'replicas' where no layer is.",
    blocks=True,
    unsure="parameters have a wrong gradient?",
)


# --- t3_bugs ---
T3_CAUSES = {
    "all ranks begin with chunk 0": "tiles have parts of other chunks in them, even rank 0's own "
    "part of its chunk",
    "ring in the other direction": "tiles have parts of other chunks in them, but each owner's own "
    "part is right",
    "triggered after one update": "in each tile of chunk c are only the parts of rank c and of c "
    "+ 1, the last rank to forward it: it was sent before the partial sum arrived",
    "sent before added": "in each tile of chunk c are only the parts of rank c and of c - 1, "
    "where it started: the ranks between forwarded it without adding their own",
    "memory not zeroed": "tiles are no sum of parts, and got - want varies by token: the memory "
    "held other numbers",
    "last tile left out": "the last tile of a chunk is zero, and the ledger misses its messages",
    "message not waited for": "tiles have only the owner's part, and a message was not waited for",
    "gathered before the last update": "the rank's own chunk is right, and of the others it has "
    "only the owner's part; no wait is missing",
    "bias on every rank": "got - want is the same for all tokens: no part of a sum",
    "bias's gradient summed": "one bias's gradient is wrong, and the ledger has an extra "
    "all-reduce",
    "pieces in the order they came": "a layer's output has the right rows in another order, and "
    "all before it is right",
    "weight's gradient of one chunk": "one weight's gradient is wrong, and the ledger is exact",
    "copies not summed": "all replicated parameters have a wrong gradient, and the ledger misses "
    "their all-reduce",
}
T3 = Diagnosis(
    title="The bug zoo of fused reduce-scatters: where, and why?",
    prompt=_look(
        "t3_zoo",
        "triggered after one update",
        "Its `.sums` has the table of the ranks' parts in each tile.",
    )
    + f"{CASES} programs train with T3 on 4 ranks, and each has one fault. The `evidence` is "
    "as in `atp_bugs`: `.forward`, `.backward`, `.gradients` are {name: error} in the order of "
    f"the step (an error above {WRONG} is no rounding), `.ledger` the lines that differ from the "
    "formula, `.got` and `.want` the numbers where the first error is, on `.rank`. If that is in "
    "a reduce-scatter, `.sums` decomposes it: {(chunk, tile): {(rank, chunk): times}}, which "
    "rank's part of which chunk is in each tile; None if it is no sum of the ranks' parts. "
    "`.unwaited` tells whether a message was never waited for. Return (place, cause): the name of "
    'a layer, or "sync"; and one of: ' + "; ".join(T3_CAUSES) + ".",
    starter='''def t3_bugs(evidence):
    layer = max(evidence.forward, key=evidence.forward.get)  # the largest error?
    return layer, "sent before added"''',
    concept="A chunk starts at rank c - 1 and moves down to rank c; each rank adds its part. "
    "Follow one wrong tile: which ranks' parts are in it, and which are missing?",
    principle="Forward or backward wrong: the first wrong layer. Then `.unwaited`, `.ledger`, and "
    "the parts of a wrong tile; where they are None, `got - want`. Only gradients wrong: look at "
    "the ledger, in backward and in sync.",
    shape="A chain of conditions: forward or backward wrong, gradients wrong. `.unwaited` and "
    "`.ledger` come first; then the set of ranks whose parts one wrong tile of `.sums` "
    "has, relative to its chunk; where there is none, `.got - .want`.",
    success="The sum of a tile shows which rank is missing. T3's tracker counts updates so that "
    "none is; software can count them too.",
    zoo="t3_zoo",
    shows=T3_CAUSES,
    outside={"sync": ""},
    unknown='there is no {place!r}: use a name of evidence.forward, or "sync" where no layer is at '
    "fault.",
    unsure="parameters have a wrong gradient, of one layer or of many?",
)
