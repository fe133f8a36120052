"""Answers to AxoNN's bug zoo: one works from the evidence, others jump to conclusions."""

import numpy as np


def _wrong(errors):
    return [name for name, error in errors.items() if error > 1e-10]


def _forward(layer, evidence):
    if layer == "embed":
        few = len(evidence.ranks) < 4
        return "rows", "same rows along z" if few else "other rows along x"
    if "norm" in layer:
        return layer, "statistics of own features"
    return layer, "axes not exchanged" if evidence.ledger else "block of another layer"


def _gradient(name, evidence):
    layer, _, kind = name.rpartition(".")
    if kind == "bias":
        twice = any("run has 2 x" in line for line in evidence.ledger)
        return layer, "bias summed over z twice" if twice else "bias not summed over z"
    if evidence.unwaited:
        return layer, "scatter not waited for"
    if np.allclose(evidence.got * evidence.axes["z"], evidence.want):
        return layer, "gradient divided by z"
    return layer, "microbatch overwritten"


def diagnose(evidence):
    forward, gradients = _wrong(evidence.forward), _wrong(evidence.gradients)
    if forward:
        return _forward(forward[0], evidence)
    if len(gradients) > 1:
        return "clip", "copies counted in the norm"
    if gradients:
        return _gradient(gradients[0], evidence)
    return "order", "prefetched in the order of modules"


def diagnose_embed(evidence):
    return "embed", diagnose(evidence)[1]


def diagnose_last(evidence):
    return "head", diagnose(evidence)[1]


def diagnose_one_cause(evidence):
    place, cause = diagnose(evidence)
    wrong = "same rows along z"
    return place, "other rows along x" if cause == wrong else wrong


def diagnose_sync(evidence):
    return "sync", diagnose(evidence)[1]


def diagnose_new_cause(evidence):
    return diagnose(evidence)[0], "gremlins"


def diagnose_nothing(evidence):
    return diagnose(evidence)[0]


RIGHT = {"axonn_bugs": [diagnose]}

WRONG = {
    "axonn_bugs": [
        (diagnose_embed, "of embed is right|embed is not at fault"),
        (diagnose_last, "wrong before they reach head|head is not at fault"),
        (diagnose_one_cause, "the layer is right, but it is not '(same|other) rows along [xz]': "),
        (
            diagnose_sync,
            "there is no layer 'sync': use a name of evidence.forward, or 'rows', 'clip'",
        ),
        (diagnose_new_cause, "'gremlins' is none of the causes: statistics of own features; axes"),
        (diagnose_nothing, r"you returned '.*', not \(layer, cause\), two strings"),
    ]
}
