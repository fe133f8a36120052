"""Answers to the bug zoo: one that works from the evidence, and those that jump to conclusions."""

import numpy as np


def _place(evidence):
    for errors in (evidence.forward, evidence.backward):
        wrong = [name for name, error in errors.items() if error > 1e-10]
        if wrong:
            return wrong[0], "forward" if errors is evidence.forward else "backward"
    return "sync", "sync"


def _wrong_forward(layer, evidence):
    if evidence.ledger:
        return "statistics of own features" if "norm" in layer else "output not summed"
    shift = evidence.got - evidence.want
    if np.ptp(shift.reshape(-1, shift.shape[-1]), axis=0).max() < 1e-10:
        return "bias before the sum"
    if np.allclose(np.sort(evidence.got), np.sort(evidence.want), rtol=0, atol=1e-12):
        return "q, k, v as blocks"
    return "chunks in the wrong order"


def diagnose(evidence):
    layer, way = _place(evidence)
    if way == "sync":
        return "sync", "copies not summed"
    if way == "forward":
        return layer, _wrong_forward(layer, evidence)
    if not evidence.ledger:
        return "loss", "loss scaled twice"
    axes = {line.split("/")[0] for line in evidence.ledger}
    return layer, "gradient summed over the wrong axis" if len(axes) > 1 else "gradient not summed"


def _largest(errors):
    return max(errors, key=errors.get)


def diagnose_by_size(evidence):
    """The largest error is not where it comes from."""
    tables = evidence.forward, evidence.backward, evidence.gradients
    name = _largest(next(errors for errors in tables if max(errors.values()) > 1e-10))
    return name if name in evidence.forward else name.rpartition(".")[0], diagnose(evidence)[1]


def diagnose_last(evidence):
    return "head", diagnose(evidence)[1]


def diagnose_first_layer(evidence):
    return "embed", diagnose(evidence)[1]


def diagnose_one_cause(evidence):
    return diagnose(evidence)[0], "chunks in the wrong order"


def diagnose_nothing(evidence):
    return diagnose(evidence)[0]


def diagnose_new_cause(evidence):
    return diagnose(evidence)[0], "gremlins"


def diagnose_new_layer(evidence):
    return "blocks.7.mlp", diagnose(evidence)[1]


RIGHT = {"atp_bugs": [diagnose]}

WRONG = {
    "atp_bugs": [
        (diagnose_by_size, "wrong before they reach|the fault comes|is not at fault"),
        (diagnose_last, "wrong before they reach head|head is not at fault|it is not head"),
        (diagnose_first_layer, "of embed is right|embed is not at fault|it is not embed"),
        (diagnose_one_cause, "the layer is right, but it is not 'chunks in the wrong order': "),
        (diagnose_nothing, r"you returned '.*', not \(layer, cause\), two strings"),
        (diagnose_new_cause, "'gremlins' is none of the causes: bias before the sum; q, k, v"),
        (diagnose_new_layer, "there is no layer 'blocks.7.mlp'"),
    ]
}
