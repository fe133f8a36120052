"""The last exercises of notebooks 03 to 06: from the evidence to the place and the cause, in a bug
zoo. `zoo.examine` lays one step of a broken program beside that of the same program without the
fault, layer by layer, on the same ranks; what is wrong first tells the place, and the rest of the
evidence the cause.
"""

from .zoo import CASES, WRONG, Diagnosis

# --- atp_bugs ---
ATP_CAUSES = {
    "bias before the sum": "got - want is the same for all tokens, and the ledger is exact",
    "q, k, v as blocks": "got has the numbers of want in another order of the features",
    "output not summed": "the ledger misses a sum in forward, of a whole activation",
    "gradient summed over the wrong axis": "the ledger has too much on one axis in backward, and "
    "too little on the other",
    "gradient not summed": "the ledger misses a sum in backward, and nothing else",
    "statistics of own features": "the ledger misses sums of two numbers a token, both ways",
    "chunks in the wrong order": "the sequences of got are those of want, in another order",
    "copies not summed": "no layer is wrong in either direction, and the ledger has no sum in sync",
    "loss scaled twice": "forward and the ledger are right, and every gradient is a multiple of "
    "what it should be",
}
ATP = Diagnosis(
    title="The bug zoo: where, and why?",
    prompt=f"{CASES} programs train with ATP, and each has one fault. The `evidence` lays a step "
    "beside the right one: `evidence.forward`, `.backward`, `.gradients` are {name: error} "
    f"in the order of the step (an error above {WRONG} is no rounding), `.ledger` the lines "
    'in which the ledger differs from the formula (each ends in what "run has" and '
    '"formula has"), `.got` and `.want` rank 0\'s numbers where the first error is, with '
    "the sequences (or tokens) first and the features last. Return (layer, cause): the name "
    'of the layer, "sync" or "loss", and one of: ' + "; ".join(ATP_CAUSES) + ".",
    starter='''def atp_bugs(evidence):
    layer = max(evidence.forward, key=evidence.forward.get)  # the largest error?
    return layer, "bias before the sum"''',
    concept="An error spreads to all that comes after it: its size says nothing, its first place "
    "everything. Is forward right? Then go through backward, then through what follows it.",
    principle="If a layer's output is wrong first, it is that layer; else the first wrong gradient "
    "of an input. Then the ledger: a missing sum, one on another axis, or none of this; and where "
    "it is exact, compare got with want: shifted, permuted, or multiplied?",
    answer="Forward wrong: ledger differs > statistics (norms) or output not summed; else all of "
    "`got - want` the same over the tokens > bias; `np.sort` of both along the features equal > q, "
    "k, v as blocks; else chunks. Backward wrong: ledger with two or more lines on two axes > "
    'wrong axis; one line > not summed; none > loss scaled twice, at "loss". Else copies not '
    'summed, at "sync".',
    success="`tv.verify` and its ledger flag every one of them; the first wrong place "
    "does the rest.",
    zoo="atp_zoo",
    shows=ATP_CAUSES,
    outside={
        "sync": "nothing is wrong in any layer, forward or backward. What comes after backward?",
        "loss": "forward is right, and in backward even the first layer already gets a wrong "
        "gradient. What comes before it?",
    },
    unknown='there is no layer {place!r}: use a name of evidence.forward, or "sync" or "loss" '
    "where no layer is at fault.",
)


# --- axonn_bugs ---
AXONN_CAUSES = {
    "statistics of own features": "the ledger misses sums of two numbers a token over y, both ways",
    "axes not exchanged": "the ledger has a sum over y where the formula has it over x, in forward",
    "block of another layer": "a layer is wrong in forward, yet the ledger is exact",
    "bias not summed over z": "one bias is wrong, and what z sums in sync is smaller",
    "bias summed over z twice": "one bias is wrong, and z sums once more in sync",
    "gradient divided by z": "one weight is wrong, and its gradient is 1/z of the right one",
    "scatter not waited for": "one weight is wrong, and there is a scatter nobody waited for",
    "microbatch overwritten": "one weight is wrong; its gradient is no multiple of the right one, "
    "and all was waited for",
    "same rows along z": "what comes out of embed is wrong, but not on the ranks of z = 0",
    "other rows along x": "what comes out of embed is wrong on all ranks",
    "copies counted in the norm": "all gradients are wrong by one factor, after a right backward",
    "sent for in the order of modules": "no number is wrong, and gathers were not foreseen",
}
AXONN = Diagnosis(
    title="The bug zoo of the grid: where, and why?",
    prompt=f"{CASES} programs train with AxoNN on 4 ranks, and each has one fault. The `evidence` "
    "is as in `atp_bugs`: `.forward`, `.backward`, `.gradients` are {name: error} in the order of "
    f"the step (an error above {WRONG} is no rounding), `.ledger` the lines that differ from the "
    "formula. `.ranks` has the coordinates of the ranks where the first error is, `.got` and "
    "`.want` the numbers there (of a gradient: the whole one), `.unwaited` what was never waited "
    "for, `.misses` the gathers not sent for in time. Return (place, cause): the name of a layer, "
    'or "rows" (which rows a rank takes), "clip" or "order" (of gathers); and one of: '
    + "; ".join(AXONN_CAUSES)
    + ".",
    starter='''def axonn_bugs(evidence):
    layer = max(evidence.forward, key=evidence.forward.get)  # the largest error?
    return layer, "axes not exchanged"''',
    concept="Go through the step in its order: rows, layers forward, layers backward, gradients. "
    "The first place that is wrong is the one; no place wrong is an answer too.",
    principle="Forward wrong: embed means rows, else it is that layer, and the ledger says which "
    "cause. Only gradients wrong: all of them means clipping; else the parameter's name has the "
    "layer (a bias or a weight), and the ledger, `.unwaited` and got / want tell how.",
    answer="embed: `len(evidence.ranks) < 4` > same rows, else other rows. A norm > statistics; "
    'another layer: a ledger that differs > axes, exact > block. One bias: "run has 2 x" in the '
    "ledger > twice, else > not summed. One weight: unwaited > not waited for; `np.allclose(got * "
    'evidence.axes["z"], want)` > divided; else overwritten. All > clip; none > order.',
    success="What you did is what a test of a parallel program must do: numbers by layer and by "
    "rank, the ledger, what was waited for, and what was asked for in vain.",
    zoo="axonn_zoo",
    shows=AXONN_CAUSES,
    outside={
        "rows": "what comes out of embed is wrong already, and no fault is in embed: what goes in?",
        "clip": "forward and backward are right in all layers, and yet every gradient is wrong. "
        "What touches all of them?",
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
    "bias on every rank": "a layer with a sum is wrong in forward, yet the ledger is exact",
    "sum left out of forward": "a layer with a sum is wrong, and the ledger misses it in forward",
    "copies that start apart": "of all layers only head is wrong in forward",
    "another microbatch recomputed": "forward is right, and what is recomputed is not; not in the "
    "last microbatch",
    "one buffer for all microbatches": "the first layer of a stage gives a wrong gradient for what "
    "it received; forward is right, and nothing is recomputed",
    "gradient not summed": "the gradient of a layer's input is wrong, and the ledger misses a sum",
    "sum not waited for": "the gradient of a layer's input is wrong; the ledger has its sum, which "
    "nobody waited for",
    "microbatch overwritten": "one weight's gradient is wrong",
    "weights of a microbatch left out": "the gradients of all linear layers of a block are wrong, "
    "those of its norms are right",
    "same rows for all replicas": "what comes out of embed is wrong already",
    "share of a microbatch left out": "backward is wrong from head on: got is a multiple of want",
    "targets of another microbatch": "backward is wrong from head on; got is no multiple of want",
    "copies not summed": "only the shared weight's gradients are wrong, and the ledger misses the "
    "sum over the ends",
    "copies averaged": "only the shared weight's gradients are wrong: half of what they should be",
    "replicas not summed": "backward is right, every gradient is wrong, and the ledger misses the "
    "sum over dp",
}
MERAK = Diagnosis(
    title="The bug zoo of the pipeline: where, and why?",
    prompt=f"{CASES} programs train with Merak on 4 ranks, a step in 4 microbatches, and each has "
    "one fault. The `evidence` is as in `atp_bugs`: `.forward`, `.backward`, `.gradients` "
    f"are {{name: error}} in the order of the step (an error above {WRONG} is no rounding), "
    "`.ledger` the lines that differ from the formula. `.recomputed` is forward done again, "
    "where it is; `.microbatches` are those in which the first error is, `.got` and `.want` "
    "the numbers there (rows first), and `.unwaited` says whether a collective was never "
    'waited for. Return (place, cause): the name of a layer, of a block ("blocks.0") '
    'where all its weights are at fault, or "rows" (of a replica), "loss", "ends" '
    '(sums of the shared weight) or "replicas" (sums over dp); and one of: '
    + "; ".join(MERAK_CAUSES)
    + ".",
    starter='''def merak_bugs(evidence):
    layer = max(evidence.forward, key=evidence.forward.get)  # the largest error?
    return layer, "bias on every rank"''',
    concept="Go through the step in its order: forward, recomputation, backward, gradients. The "
    "first place that is wrong is the one; what comes after it is wrong because of it.",
    principle="Forward wrong: the layer says which cause, and for mlp.down the ledger. "
    "Recomputation wrong: the first layer. Backward wrong: head means the loss, norm1 the buffer, "
    "another layer its sum. Only gradients: which parameters, and what does the ledger miss?",
    answer="embed > same rows; norm1 > residual; head > start apart; out or down: ledger > left "
    "out, else bias. Backward at head: `np.allclose(got, 4 * want)` > share, else targets; at qkv "
    "or up: unwaited > not waited for, else not summed. Gradients: `embed.token.weight` and "
    "`head.weight`: ledger > not summed, else averaged; one weight > overwritten; all of the "
    "linear layers of one block > left out; everything > replicas.",
    success="Not one of them keeps the loss from going down. A test that compares a step with one "
    "process, layer by layer and microbatch by microbatch, sees them all.",
    zoo="merak_zoo",
    shows=MERAK_CAUSES,
    outside={
        "rows": "what comes out of embed is wrong already, and no fault is in embed: what goes in?",
        "loss": "forward is right to the end, and backward is wrong from its beginning. What is "
        "between them?",
        "ends": "forward and backward are right in all layers. The gradients of two parameters are "
        "wrong, which are one weight, on two stages.",
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
    "triggered after one update": "in each tile of chunk c are only the parts of rank c and of "
    "c + 1, the last that sent it on: it went before what came to it",
    "sent before added": "in each tile of chunk c are only the parts of rank c and of c - 1, where "
    "it set out: those between passed it on and did not add theirs",
    "memory not zeroed": "tiles are no sum of parts, and got - want changes from token to token: "
    "other numbers were there",
    "last tile left out": "the last tile of a chunk has nothing in it, and the ledger misses its "
    "messages",
    "message not waited for": "tiles have the owner's part alone, and a message was not waited for",
    "gathered before the last update": "the rank's own chunk is right, and of the others it has "
    "the owner's part alone; everything was waited for",
    "bias on every rank": "got - want is the same for all tokens: no part of a sum",
    "bias's gradient summed": "one bias's gradient is wrong, and the ledger has a sum too much",
    "pieces in the order they came": "a layer's output has the right rows in another order, and "
    "all before it is right",
    "weight's gradient of one chunk": "one weight's gradient is wrong, and the ledger is exact",
    "copies not summed": "all that is replicated has a wrong gradient, and the ledger misses its "
    "sum",
}
T3 = Diagnosis(
    title="The bug zoo of fused sums: where, and why?",
    prompt=f"{CASES} programs train with T3 on 4 ranks, and each has one fault. The `evidence` is "
    "as in `atp_bugs`: `.forward`, `.backward`, `.gradients` are {name: error} in the order "
    f"of the step (an error above {WRONG} is no rounding), `.ledger` the lines that differ "
    "from the formula, `.got` and `.want` the numbers where the first error is, on "
    "`.rank`. If that is in a sum over the ranks, `.sums` takes it apart: {(chunk, tile): "
    "{(rank, chunk): times}}, whose part of which chunk is in each tile; None where it is "
    "no sum of the ranks' parts. `.unwaited` says whether a message was never waited for. "
    'Return (place, cause): the name of a layer, or "sync"; and one of: '
    + "; ".join(T3_CAUSES)
    + ".",
    starter='''def t3_bugs(evidence):
    layer = max(evidence.forward, key=evidence.forward.get)  # the largest error?
    return layer, "sent before added"''',
    concept="A chunk sets out at rank c - 1 and goes down to rank c; each rank adds its part. "
    "Follow one wrong tile: whose part is in it, and whose is not?",
    principle="Forward or backward wrong: the first wrong layer. Then `.unwaited`, `.ledger`, and "
    "the parts of a wrong tile; where they are None, `got - want`. Only gradients wrong: look at "
    "the ledger, in backward and in sync.",
    answer="At out, down, qkv, up: unwaited > not waited for; ledger > last tile; None > bias if "
    "`got - want` is the same for all tokens, else not zeroed; for a wrong tile of chunk c, parts "
    "of other chunks > direction if (0, 0) is in chunk 0, else all begin with it; ranks c and c+1 "
    "> triggered; c and c-1 > before added; c > gathered. No `.sums` > pieces. Gradients: no "
    'ledger > one chunk; a bias alone > bias\'s gradient; else "sync".',
    success="The sum of a tile says by itself who is missing. T3's tracker counts updates so that "
    "nobody is; software that counts them can say so, too.",
    zoo="t3_zoo",
    shows=T3_CAUSES,
    outside={"sync": ""},
    unknown='there is no {place!r}: use a name of evidence.forward, or "sync" where no layer is at '
    "fault.",
    unsure="parameters have a wrong gradient, of one layer or of many?",
)
