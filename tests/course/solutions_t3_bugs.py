"""Answers to T3's bug zoo: one that works from the evidence, and those that jump to conclusions."""

import numpy as np


def _first(errors):
    return next((name for name, error in errors.items() if error > 1e-10), "")


def _of_parts(evidence):
    """The cause, from what wrong tiles are made of."""
    size = evidence.axes["tp"]
    for (chunk, _), parts in evidence.sums.items():
        if parts is None:
            off = evidence.got - evidence.want
            same = np.allclose(off, off.reshape(-1, off.shape[-1])[0], atol=1e-12)
            return "bias on every rank" if same else "memory not zeroed"
        ranks = {rank for rank, _ in parts}
        if any(other != chunk for _, other in parts):
            own = evidence.sums[0, 0].get((0, 0))
            return "ring in the other direction" if own else "all ranks begin with chunk 0"
        if len(ranks) == size:
            continue  # this one is right
        return {1: "gathered before the last update"}.get(len(ranks)) or (
            "sent before added" if (chunk - 1) % size in ranks else "triggered after one update"
        )


def diagnose(evidence):
    layer = _first(evidence.forward) or _first(evidence.backward)
    wrong = [name for name, error in evidence.gradients.items() if error > 1e-10]
    if layer and not evidence.sums:
        return layer, "pieces in the order they came"
    if layer and evidence.unwaited:
        return layer, "message not waited for"
    if layer:
        return layer, "last tile left out" if evidence.ledger else _of_parts(evidence)
    if len(wrong) > 1:
        return "sync", "copies not summed"
    layer, _, _ = wrong[0].rpartition(".")
    return layer, "bias's gradient summed" if evidence.ledger else "weight's gradient of one chunk"


def diagnose_embed(evidence):
    return "embed", diagnose(evidence)[1]


def diagnose_elsewhere(evidence):
    return "blocks.7.mlp.up", diagnose(evidence)[1]


def diagnose_one_cause(evidence):
    place, cause = diagnose(evidence)
    wrong = "sent before added"
    return place, "message not waited for" if cause == wrong else wrong


def diagnose_new_cause(evidence):
    return diagnose(evidence)[0], "gremlins"


RIGHT = {"t3_bugs": [diagnose]}

WRONG = {
    "t3_bugs": [
        (diagnose_embed, "of embed is right|embed is not at fault|is not embed|before they reach"),
        (diagnose_elsewhere, "there is no 'blocks.7.mlp.up': use a name of evidence.forward"),
        (diagnose_one_cause, "the layer is right, but it is not "),
        (
            diagnose_new_cause,
            "'gremlins' is none of the causes: all ranks begin with chunk 0; ring",
        ),
    ]
}
