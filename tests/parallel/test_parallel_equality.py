"""Models that tpviz did not write are the same models when split: everything in float64 against one
process. One world of four ranks, which keeps its imports; smaller meshes lie in it side by side."""

import foreign
import pytest
import torch

import tpviz as tv

RULE = tv.Pair(first="inward", second="outward", kind="attention", heads="count", fused="blocks")
PER_HEAD = tv.Pair(
    first="inward",
    second="outward",
    kind="attention",
    heads=foreign.HEADS,
    fused="heads",
    divide="count",
)
STRATEGIES = [
    tv.ATP(mesh=mesh, order=order)
    for order, mesh in (("column", (2, 2)), ("column", (4, 1)), ("column", (1, 4)), ("row", (2, 2)))
] + [
    tv.ATP(mesh=(4, 1), order="row", chunks=2),
    tv.ATP(mesh=(2, 2), chunks=2, chunking="tokens", order="row"),
    tv.ATP(mesh=(2, 2), attention="A1"),
    tv.Megatron(tp=4, chunks=2),
]
PAIRS_OF_RANKS = [
    tv.ATP(mesh=(2, 1)),
    tv.ATP(mesh=(1, 2)),
    tv.ATP(mesh=(1, 2), order="row"),
    tv.Megatron(tp=2),
]
FEW = STRATEGIES[0], STRATEGIES[2], STRATEGIES[3], STRATEGIES[4]


def every_mesh(make, inputs, strategies, rules=None, pairs_of_ranks=()):
    """[(strategy, error, where, how many split layers)] of one rank."""
    found = []
    for strategy in (*strategies, *pairs_of_ranks):
        mesh = None
        if strategy in pairs_of_ranks:
            mesh = tv.Mesh({"copies": 2, **strategy.axes}).device_mesh()
        v = tv.verify_parallel(make, strategy, inputs, rules=rules, mesh=mesh)
        found.append((repr(v), v.max_error, v.ok, sum(len(p.layers) for p in v.report.pairs)))
    return found


def check(layers, make, inputs, strategies=STRATEGIES, **more):
    for found in tv.launch(
        every_mesh, make, inputs, strategies, world_size=4, progress=False, timeout=150, **more
    ):
        assert all(ok for _, _, ok, *_ in found), found
        assert {count for *_, count in found} == {layers}


def test_mlps_found_in_the_graph():
    check(5, foreign.Gated, foreign.vectors(8), pairs_of_ranks=PAIRS_OF_RANKS)


def test_transformer_encoder():
    check(4, foreign.encoder, foreign.vectors(foreign.WIDTH))


@pytest.mark.parametrize(
    "per_head, rule", [(False, RULE), (True, PER_HEAD)], ids=["blocks", "heads"]
)
def test_attention_by_a_rule_of_the_user(per_head, rule):
    def make():
        return foreign.Attention(per_head)

    check(2, make, foreign.vectors(foreign.WIDTH), rules=[rule])


def test_gpt2():
    check(8, foreign.gpt2, foreign.tokens(), pairs_of_ranks=PAIRS_OF_RANKS)


def test_gpt2_by_its_own_attention():
    check(8, lambda: foreign.gpt2(attn_implementation="eager"), foreign.tokens(), FEW[:1])


def test_gpt2_cross_attention():
    inputs = {**foreign.tokens(), "encoder_hidden_states": foreign.vectors(foreign.WIDTH)}
    check(14, lambda: foreign.gpt2(add_cross_attention=True), inputs, FEW)


def test_llama_with_grouped_heads():
    check(14, foreign.llama, foreign.tokens(), [*FEW, tv.Megatron(tp=4)])


def test_llama_where_groups_divide_by_one_axis_only():
    """Two key and value heads: A3 becomes A1 on (2, 2), and (4, 1) leaves attention whole."""
    make = lambda: foreign.llama(kv=2)
    check(14, make, foreign.tokens(), FEW[:1])
    check(6, make, foreign.tokens(), [tv.ATP(mesh=(4, 1))])


def test_opt():
    check(12, foreign.opt, foreign.tokens(), FEW)


def test_bert():
    inputs = foreign.tokens()
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][1, 4:] = 0
    del inputs["use_cache"]
    check(12, foreign.bert, inputs, FEW)


def wrong_cut(rules, example):
    """The largest error when c_attn is cut as if it were [head][q, k, v], or what was raised."""
    try:
        found = tv.verify_parallel(
            foreign.gpt2, tv.ATP(mesh=(2, 2)), foreign.tokens() if example else None, rules=rules
        )
        return found.max_error
    except ValueError as error:
        return str(error)


def test_a_wrong_cut_of_q_k_v_is_noticed():
    rule = dict(
        first="*.attn.c_attn",
        second="*.attn.c_proj",
        kind="attention",
        head_size="head_dim",
        divide=["num_heads", "split_size"],
    )
    said = tv.launch(wrong_cut, [rule | {"fused": "heads"}], True, world_size=4, progress=False)
    assert all(text.startswith("output 0 changed by ") for text in said), said
    right = tv.launch(wrong_cut, [rule | {"fused": "blocks"}], True, world_size=4, progress=False)
    assert max(right) < 1e-10


def generated():
    torch.manual_seed(0)
    whole, model = foreign.llama(), foreign.llama()
    model.load_state_dict(whole.state_dict())
    split = tv.parallelize(model, tv.ATP(mesh=(2, 2)))
    start = foreign.tokens()["input_ids"][:, :3]
    tokens = [
        m.eval().generate(start, max_new_tokens=4, do_sample=False) for m in (whole, split.module)
    ]
    return torch.equal(*tokens)


def test_generates_the_same_with_a_cache_of_own_heads():
    assert tv.launch(generated, world_size=4, progress=False) == [True] * 4
