"""Models that tpviz did not write are the same models when split: everything in float64 against one
process. One world of four ranks, which keeps its imports; smaller meshes lie in it side by side.

Small models meet every strategy, Hugging Face's one or two each, so that every strategy meets one
of them; bench/sweep_foreign.py has them all.
"""

import foreign
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
COLUMN, TALL, WIDE, ROW, ROW_CHUNKS, ROW_TOKENS, A1, MEGATRON = STRATEGIES
PAIRS_OF_RANKS = [
    tv.ATP(mesh=(2, 1)),
    tv.ATP(mesh=(1, 2)),
    tv.ATP(mesh=(1, 2), order="row"),
    tv.Megatron(tp=2),
]


def every_mesh(make, inputs, strategies, rules, steps):
    """[(strategy, error, where, how many split layers)] of one rank."""
    found = []
    for strategy in strategies:
        mesh = None
        if strategy.world_size == 2:
            mesh = tv.Mesh({"copies": 2, **strategy.axes}).device_mesh()
        v = tv.verify_parallel(make, strategy, inputs, steps, rules=rules, mesh=mesh)
        found.append((repr(v), v.max_error, v.ok, sum(len(p.layers) for p in v.report.pairs)))
    return found


def check(layers, make, inputs, *strategies, rules=None, steps=1):
    job = every_mesh, make, inputs, strategies, rules, steps
    for found in tv.launch(*job, world_size=4, progress=False, timeout=150):
        assert all(ok for _, _, ok, *_ in found), found
        assert {count for *_, count in found} == {layers}


def test_mlps_found_in_the_graph():
    check(5, foreign.Gated, foreign.vectors(8), *STRATEGIES, *PAIRS_OF_RANKS)


def test_transformer_encoder():
    check(4, foreign.encoder, foreign.vectors(foreign.WIDTH), COLUMN, ROW_TOKENS, A1, MEGATRON)


def test_attention_by_a_rule_of_the_user():
    inputs = foreign.vectors(foreign.WIDTH)
    check(2, foreign.Attention, inputs, *STRATEGIES, rules=[RULE], steps=3)
    check(2, lambda: foreign.Attention(True), inputs, COLUMN, ROW, WIDE, A1, rules=[PER_HEAD])


def test_gpt2():
    check(8, foreign.gpt2, foreign.tokens(), COLUMN, PAIRS_OF_RANKS[2])


def test_gpt2_by_its_own_attention():
    check(8, lambda: foreign.gpt2(attn_implementation="eager"), foreign.tokens(), COLUMN)


def test_gpt2_cross_attention():
    check(14, lambda: foreign.gpt2(add_cross_attention=True), foreign.crossed(), ROW_CHUNKS)


def test_llama_with_grouped_heads():
    check(14, foreign.llama, foreign.tokens(), WIDE, MEGATRON)


def test_llama_where_groups_divide_by_one_axis_only():
    """Two key and value heads: A3 becomes A1 on (2, 2), and (4, 1) leaves attention whole."""
    make = lambda: foreign.llama(kv=2)
    check(14, make, foreign.tokens(), COLUMN)
    check(6, make, foreign.tokens(), TALL)


def test_opt():
    check(12, foreign.opt, foreign.tokens(), ROW)


def test_bert():
    check(12, foreign.bert, foreign.masked(), WIDE)


def cut_as(rules):
    """The largest error when c_attn is cut by these rules, or what was raised."""
    try:
        return tv.verify_parallel(
            foreign.gpt2, COLUMN, foreign.tokens(), steps=1, rules=rules
        ).max_error
    except ValueError as error:
        return str(error)


def test_a_wrong_cut_of_q_k_v_is_noticed():
    """As if it were [head][q, k, v]."""
    rule = dict(
        first="*.attn.c_attn",
        second="*.attn.c_proj",
        kind="attention",
        head_size="head_dim",
        divide=["num_heads", "split_size"],
    )
    both = lambda: [cut_as([rule | {"fused": fused}]) for fused in ("heads", "blocks")]
    for wrong, right in tv.launch(both, world_size=4, progress=False):
        assert wrong.startswith("output 0 changed by ") and right < 1e-10, (wrong, right)


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
