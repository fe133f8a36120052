"""Experts over ranks in models that tpviz did not write: equal to one process, with the ledger that
follows from the router's choices; what cannot be spread is said with what can."""

from functools import partial

import foreign
import pytest
import torch
from test_parallel_suggest import causal
from torch import nn

import tpviz as tv

SMALL = {"hidden_size": 16, "intermediate_size": 24, "num_key_value_heads": 2}


def mixtral(**more):
    return causal("Mixtral", num_local_experts=4, num_experts_per_tok=2, **SMALL, **more)


def qwen():
    how = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 12}
    return causal("Qwen3Moe", head_dim=4, norm_topk_prob=True, **how, **SMALL)


def deepseek():
    how = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
    low = dict.fromkeys(["q_lora_rank", "kv_lora_rank"], 8)
    sizes = dict.fromkeys(["qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"], 4)
    few = {"n_shared_experts": 1, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1}
    return causal("DeepseekV3", **how, **few, **low, **sizes, **SMALL | {"num_key_value_heads": 4})


def gpt_oss(**more):
    how = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 4}
    return causal("GptOss", sliding_window=4, **how, **SMALL | more)


def tokens(batch=8):
    return foreign.tokens(batch)


class Own(nn.Module):
    """Experts of nobody: any names, no Hugging Face, one of them never chosen."""

    def __init__(self):
        super().__init__()
        self.n_experts, self.act = 4, nn.ReLU()
        self.first = nn.Parameter(torch.randn(4, 6, 16) / 4)
        self.bias = nn.Parameter(torch.randn(4, 6))
        self.second = nn.Parameter(torch.randn(4, 16, 6) / 3)

    def forward(self, x, chosen, weights):
        y = torch.zeros_like(x)
        for e in range(self.n_experts):
            token, place = torch.where(chosen == e)
            hidden = self.act(x[token] @ self.first[e].t() + self.bias[e])
            given = hidden @ self.second[e].t() * weights[token, place, None]
            y = y.index_add(0, token, given)
        return y


class Mixture(nn.Module):
    """Of nobody, too. lists : experts in a list, chosen in here."""

    def __init__(self, lists=False):
        super().__init__()
        self.inward, self.router = nn.Linear(5, 16), nn.Linear(16, 4)
        make = lambda: nn.Linear(16, 16)
        self.experts = nn.ModuleList(make() for _ in range(4)) if lists else Own()

    def forward(self, x):
        x = self.inward(x.flatten(0, 1)).tanh()
        bias = torch.tensor(
            [0.0, 0.5, 0.0, -9.0], dtype=x.dtype
        )  # unequal loads, the last has none
        weights, chosen = (self.router(x) + bias).softmax(-1).topk(2)
        if isinstance(self.experts, nn.ModuleList):
            parts = [
                e(x) * (weights * (chosen == n)).sum(1, True) for n, e in enumerate(self.experts)
            ]
            return x + sum(parts)
        return x + self.experts(x, chosen, weights)


def verdicts(make, inputs, strategies):
    """[(the verdict, its error, whether it is equal)] of a rank."""
    found = []
    for strategy in strategies:
        v = tv.verify_parallel(make, strategy, inputs, 2)
        found.append((repr(v), v.max_error, v.ok))
    return found


def check(make, inputs, *strategies, world=4):
    job = verdicts, make, inputs, strategies
    for found in tv.launch(*job, world_size=world, progress=False, timeout=150):
        for said, error, ok in found:
            assert ok and error < 1e-10, said


ALONE = [tv.Experts(ep=4), tv.Experts(ep=2) * tv.DataParallel(dp=2)]
WITH_TP = tv.Megatron(tp=2) * tv.Experts(ep=2)
FAMILIES = [mixtral, qwen, deepseek, gpt_oss]


@pytest.mark.parametrize("make", FAMILIES, ids=lambda make: make.__name__)
def test_experts_equal_one_process(make):
    check(make, tokens(), *ALONE, WITH_TP)


@pytest.mark.parametrize("make", [qwen, gpt_oss], ids=lambda make: make.__name__)
def test_over_tp_alone_attention_has_norms_of_heads_and_sinks(make):
    """Of these a rank has a part of the gradient: they are summed, or gathered, exactly so."""
    check(make, tokens(), tv.Megatron(tp=2), world=2)
    report = tv.parallelize(make(), tv.Megatron(tp=2), tokens()).report
    kind, what = ("all_reduce", 2 * 4) if make is qwen else ("all_gather", 4)
    layers = sum(pair.kind == "attention" for pair in report.pairs)
    sent = lambda tokens: sum(
        row.payload_bytes for row in report.ledger(tokens).rows if row.collective == kind
    )
    assert layers == 2 and 2 * sent(1) - sent(2) == layers * what * 4  # the rest is of tokens
    assert f"{kind} tp (4 in all)" in report.describe()


def test_experts_of_ones_own():
    check(Mixture, foreign.vectors(5, 8), *ALONE)
    check(Mixture, foreign.vectors(5, 8), tv.Experts(ep=2), world=2)


def test_eight_ranks():
    check(mixtral, tokens(), WITH_TP * tv.DataParallel(dp=2), world=8)


def trained(make, strategy, inputs):
    """(largest relative error of gradients after two microbatches, twice made complete; norms)"""
    torch.manual_seed(0)
    whole, model = make().double().eval(), make().double().eval()
    model.load_state_dict(whole.state_dict())
    split = tv.parallelize(model, strategy, inputs)
    for held in (split.no_sync(), *[torch.enable_grad()] * 2):
        with held:
            foreign.weighted(split(**split.rows(inputs))).backward()
        foreign.weighted(whole(**inputs)).backward()
    found = split.full_gradients()
    expected = {name: p.grad for name, p in whole.named_parameters() if p.grad is not None}
    off = max(float((found[n] - g).abs().max() / g.abs().max()) for n, g in expected.items())
    same = set(split.full_state_dict()) == set(whole.state_dict())
    norms = split.clip_grad_norm_(1.0), nn.utils.clip_grad_norm_(whole.parameters(), 1.0)
    return off, *map(float, norms), same


@pytest.mark.parametrize("strategy", [ALONE[1], WITH_TP], ids=lambda s: s.short)
def test_gradients_of_experts_are_no_ep_times_too_large(strategy):
    """Relative, whatever float32 the model computes in."""
    job = trained, mixtral, strategy, tokens()
    for off, norm, whole, same in tv.launch(*job, world_size=4, progress=False):
        assert off < 1e-10 and norm == pytest.approx(whole, rel=1e-10) and same


# -- what a plan says ------------------------------------------------------------------------------
PHASES = "forward", "backward"


def test_a_plan_says_where_experts_and_rows_go():
    report = tv.parallelize(mixtral(), WITH_TP, tokens()).report
    header, *rows = report.experts_table
    assert header[1:4] == ["in all", "a rank's", "of each token"] and len(rows) == 2
    assert all(row[1:4] == ["4", "2", "2"] for row in rows)
    assert "4 experts, 2 of them on each rank, 2 for each token" in report.describe()
    moved = [row for row in report.ledger(24, 4).rows if row.collective == "all_to_all_v"]
    forward = sum(int(sent) + int(got) for *_, sent, got in rows) * 16 * 4
    assert {row.phase: row.payload_bytes for row in moved} == dict.fromkeys(PHASES, forward)
    with pytest.raises(ValueError, match=r"tokens=7: .* use tokens=24"):
        report.ledger(7)
    experts = sum(p.numel() for n, p in mixtral().named_parameters() if "experts" in n)
    assert report.held == report.split // 2 and report.split > experts


def test_over_tp_alone_experts_stay_whole():
    rows = tv.parallelize(mixtral(), tv.Megatron(tp=2), tokens()).report.left_table()
    assert [row[1] for row in rows if "tv.Experts(ep=...)" in row[-1]] == ["MixtralExperts"] * 2
    check(mixtral, tokens(), tv.Megatron(tp=2), world=2)


CANNOT = [
    (mixtral, ALONE[0], None, "without example_inputs: give a batch"),
    (mixtral, tv.Experts(ep=3), tokens(6), "experts=4 .* ep=3: use ep=2 or 4"),
    (mixtral, ALONE[1], tokens(6), r"batch=6 does not split evenly over dp\*ep=4"),
    (mixtral, tv.Megatron(tp=2) * tv.Experts(ep=2, etp=2), tokens(), "use etp=1"),
    (mixtral, ALONE[0] * tv.Context(cp=2), tokens(), "use Experts.* without Context, or Context"),
    (mixtral, tv.Experts(ep=2, recompute="full"), tokens(), "recompute with the model's own means"),
    (mixtral, tv.Experts(ep=2) * tv.DataParallel(dp=2, zero=1), tokens(), "optimizer states"),
    (mixtral, tv.Experts(ep=2) * tv.DataParallel(dp=2, gradients="int8"), tokens(), "a DDP hook"),
    (mixtral, tv.Experts(ep=2) * tv.DataParallel(dp=4, within=2), tokens(), "have one level"),
    (mixtral, tv.DiLoCo(workers=2) * tv.Experts(ep=2), tokens(), "parallelize splits layers only"),
    (foreign.llama, ALONE[0], tokens(), "no experts to spread: .* num_experts and forward"),
    (partial(Mixture, True), ALONE[0], foreign.vectors(5), "experts in a list .* hold them as"),
]


@pytest.mark.parametrize("make, strategy, inputs, message", CANNOT)
def test_what_cannot_be_spread_says_what_can(make, strategy, inputs, message):
    with pytest.raises(ValueError, match=message):
        tv.parallelize(make(), strategy, inputs)


def test_where_attention_cannot_be_split_experts_are_named():
    """One head of keys goes to one rank."""
    make = partial(gpt_oss, num_key_value_heads=1)
    with pytest.raises(ValueError, match=r"its experts can be spread: tv.Experts\(ep=2\)$"):
        tv.parallelize(make(), tv.Megatron(tp=2), tokens())
    assert tv.parallelize(make(), tv.Experts(ep=2), tokens()).report.held
    with pytest.raises(ValueError, match=r"sinks is between .* use Megatron\(tp=4\) or ATP"):
        tv.parallelize(gpt_oss(), tv.ATP(mesh=(2, 2)), tokens())


def balanced():
    try:
        tv.parallelize(mixtral(output_router_logits=True), tv.Experts(ep=2), labelled())
    except ValueError as error:
        return str(error)


def labelled():
    return tokens() | {"labels": tokens()["input_ids"]}


def test_a_loss_of_balance_is_noticed():
    for said in tv.launch(balanced, world_size=2, progress=False):
        assert "use output_router_logits=False" in said
    check(mixtral, labelled(), tv.Experts(ep=2), world=2)
