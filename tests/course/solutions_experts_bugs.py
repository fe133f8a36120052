"""Answers to the bug zoo of expert parallelism: one that works from the evidence, and those that
jump to conclusions."""


def _first(errors):
    return next((name for name, error in errors.items() if error > 1e-10), "")


def diagnose(evidence):
    layer, parameter = _first(evidence.forward), _first(evidence.gradients)
    if layer:
        tokens = [has for row in evidence.tokens.values() for has in enumerate(row)]
        if any(whose is None for _, (whose, _) in tokens):
            return layer, "rows not sorted by expert"
        if any(whose != place for place, (whose, _) in tokens):
            return layer, "rows in the wrong order"
        dropped = any(times == 0 for _, (_, times) in tokens)
        return layer, "rows above the mean dropped" if dropped else "combine without weights"
    if not evidence.ledger:
        return parameter[: parameter.index("mlp") + 3], "expert's gradient over ep"
    routers = [name for name, e in evidence.gradients.items() if e > 1e-10 and "router" in name]
    return "sync", "router not in sync" if routers else "experts added over ep"


def diagnose_largest(evidence):
    errors = evidence.forward
    return max(errors, key=errors.get) if _first(errors) else "head", diagnose(evidence)[1]


def diagnose_attention(evidence):
    return "blocks.1.attention", diagnose(evidence)[1]


def diagnose_one_cause(evidence):
    place, cause = diagnose(evidence)
    wrong = "rows in the wrong order"
    return place, "combine without weights" if cause == wrong else wrong


def diagnose_new_cause(evidence):
    return diagnose(evidence)[0], "gremlins"


RIGHT = {"experts_bugs": [diagnose]}

WRONG = {
    "experts_bugs": [
        (diagnose_largest, "wrong before they reach|is not at fault|the fault comes|of one block"),
        (diagnose_attention, "wrong before|is not at fault|the fault comes|of one block|is right"),
        (diagnose_one_cause, "the layer is right, but it is not "),
        (diagnose_new_cause, "'gremlins' is none of the causes: combine without weights; rows"),
    ]
}
