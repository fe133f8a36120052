"""Answers to the bug zoo of context parallelism: one that works from the evidence, and those that
jump to conclusions."""


def _first(errors):
    return next((name for name, error in errors.items() if error > 1e-10), "")


def diagnose(evidence):
    layer = _first(evidence.forward)
    if not layer:
        layer = _first(evidence.backward)
        return (layer, "gradients not sent home") if layer else ("ring", "last hop sent in vain")
    if layer == "embed":
        return layer, "positions not shifted"
    wrong = {rank: [bad for _, bad in row] for rank, row in evidence.tokens.items()}
    if any(wrong[0]):
        return layer, "own block not masked"
    return layer, "log-sum-exp not rescaled" if wrong[1][-1] else "own mask on every block"


def diagnose_largest(evidence):
    place, cause = diagnose(evidence)
    tables = evidence.forward, evidence.backward
    errors = next((e for e in tables if max(e.values()) > 1e-10), evidence.forward)
    return max(errors, key=errors.get) if place != "ring" else "head", cause


def diagnose_qkv(evidence):
    return "blocks.1.attention.qkv", diagnose(evidence)[1]


def diagnose_one_cause(evidence):
    place, cause = diagnose(evidence)
    wrong = "log-sum-exp not rescaled"
    return place, "own mask on every block" if cause == wrong else wrong


def diagnose_new_cause(evidence):
    return diagnose(evidence)[0], "gremlins"


RIGHT = {"context_bugs": [diagnose]}

WRONG = {
    "context_bugs": [
        (diagnose_largest, "wrong before they reach|is not at fault|the fault comes"),
        (diagnose_qkv, "wrong before they reach|is not at fault|the fault comes"),
        (diagnose_one_cause, "the layer is right, but it is not "),
        (diagnose_new_cause, "'gremlins' is none of the causes: positions not shifted; own mask"),
    ]
}
