"""Answers to Merak's bug zoo: one works from the evidence, others jump to conclusions."""

import numpy as np


def _first(errors):
    return next((name for name, error in errors.items() if error > 1e-10), "")


def _forward(layer, evidence):
    if layer == "embed":
        return "rows", "same rows for all replicas"
    if layer == "head":
        return layer, "copies that start apart"
    if layer.endswith("norm1"):
        return layer, "residual of the other half"
    return layer, "sum left out of forward" if evidence.ledger else "bias on every rank"


def _backward(layer, evidence):
    if layer == "head":
        share = np.allclose(evidence.got, 4 * evidence.want)
        return "loss", (
            "share of a microbatch left out" if share else "targets of another microbatch"
        )
    if layer.endswith("norm1"):
        return layer, "one buffer for all microbatches"
    return layer, "sum not waited for" if evidence.unwaited else "gradient not summed"


def _gradients(names, evidence):
    if len(names) == len(evidence.gradients):
        return "replicas", "replicas not summed"
    if names == ["embed.token.weight", "head.weight"]:
        return "ends", "copies not summed" if evidence.ledger else "copies averaged"
    if len(names) == 1:
        return names[0].removesuffix(".weight"), "microbatch overwritten"
    return ".".join(names[0].split(".")[:2]), "weights of a microbatch left out"


def diagnose(evidence):
    if layer := _first(evidence.forward):
        return _forward(layer, evidence)
    if layer := _first(evidence.recomputed):
        return layer, "another microbatch recomputed"
    if layer := _first(evidence.backward):
        return _backward(layer, evidence)
    return _gradients(
        [name for name, error in evidence.gradients.items() if error > 1e-10], evidence
    )


def diagnose_embed(evidence):
    return "embed", diagnose(evidence)[1]


def diagnose_last(evidence):
    return "head", diagnose(evidence)[1]


def diagnose_one_cause(evidence):
    place, cause = diagnose(evidence)
    wrong = "gradient not summed"
    return place, "sum not waited for" if cause == wrong else wrong


def diagnose_elsewhere(evidence):
    return "blocks.7.mlp.up", diagnose(evidence)[1]


def diagnose_new_cause(evidence):
    return diagnose(evidence)[0], "gremlins"


def diagnose_nothing(evidence):
    return diagnose(evidence)[0]


RIGHT = {"merak_bugs": [diagnose]}

WRONG = {
    "merak_bugs": [
        (diagnose_embed, "of embed is right|embed is not at fault|is not embed"),
        (diagnose_last, "wrong before they reach head|head is not at fault|of head is right"),
        (diagnose_one_cause, "the layer is right, but it is not 'gradient not summed': "),
        (
            diagnose_elsewhere,
            r"there is no 'blocks.7.mlp.up': use a name .*, a block \('blocks.0'\)",
        ),
        (diagnose_new_cause, "'gremlins' is none of the causes: residual of the other half; bias"),
        (diagnose_nothing, r"you returned '.*', not \(layer, cause\), two strings"),
    ]
}
