"""Advice that works: the rules that a plan offers for what it leaves whole are run as they are
printed, on models of which the layers are subclasses, fused in blocks of unequal width, or beside
experts that no export can follow."""

import re

import foreign
import pytest

import tpviz as tv

SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 20,
    "max_position_embeddings": 8,
}
GROUPED = {"num_key_value_heads": 2}


def causal(name, **more):
    transformers, config = foreign._family(name)
    make = getattr(transformers, f"{name}ForCausalLM")
    model = make(config(**{**SIZES, **foreign.COMMON, **more}))
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model


FALCON = {"new_decoder_architecture": True, "num_kv_heads": 2}
EXPERTS = {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}
ADVISED = [("Falcon", FALCON, 2, 4), ("Phi3", GROUPED, 0, 4), ("GraniteMoe", EXPERTS, 0, 2)]
AS_FALCON = [("GPTNeoX", {}, 2, 4), ("Phi", {}, 2, 4), ("Mistral", GROUPED, 2, 4)]


def plan_of(make, strategy, inputs, **how):
    """(number of pairs, all that is said) of a plan; 0 pairs of one that is refused."""
    try:
        report = tv.parallelize(make(), strategy, inputs, **how).report
    except ValueError as error:
        return 0, str(error)
    return len(report.pairs), repr(report).replace("\n ", "")


def advised(said):
    """The rules, as printed."""
    code = re.search(r"rules=(\[.*\]) would split", said.replace("\n", ""))
    return eval(code.group(1), {"tv": tv}) if code else None


def check(name, more, before, after):
    make, inputs = lambda: causal(name, **more), foreign.tokens(4)
    pairs, said = plan_of(make, tv.Megatron(tp=2), inputs)
    assert pairs == before
    rules = advised(said)
    found = tv.verify_parallel(make, tv.Megatron(tp=2), inputs, 1, rules=rules)
    assert found, found
    assert len(found.report.pairs) == after


@pytest.mark.parametrize("case", ADVISED, ids=[name for name, *_ in ADVISED])
def test_the_advice_splits_attention_and_is_equal(case):
    check(*case)


@pytest.mark.parametrize("case", AS_FALCON, ids=[name for name, *_ in AS_FALCON])
def test_other_families_as_falcon(case):
    """Attention alone is left whole, as of Falcon, under other names."""
    check(*case)
