"""What `tv.parallelize` plans and says: reports, reasons for what stays whole, errors."""

import foreign
import pytest
import torch
from torch import nn

import tpviz as tv
from tpviz.modules.rules import RULES


def mlp(width=16, inner=32, **kw):
    return nn.Sequential(nn.Linear(width, inner, **kw), nn.GELU(), nn.Linear(inner, width, **kw))


# -- plans and reports, outside of any world -------------------------------------------------------
def test_outside_of_a_world_it_is_a_plan():
    model, x = mlp(), torch.ones(2, 16)
    whole = model(x)
    planned = tv.parallelize(model, tv.ATP(mesh=(2, 2)))
    assert torch.equal(planned(x), whole) and model[0].weight.shape == (32, 16)
    assert planned.full_state_dict().keys() == model.state_dict().keys()
    report = planned.report
    assert not report.divided and (report.split, report.replicated) == (2 * 512 + 48, 0)
    assert report.held == 2 * 512 // 4 + 32 // 2 + 16 // 2
    assert repr(report) == repr(tv.parallelize(mlp(), tv.ATP(mesh=(2, 2))).report)
    assert "planned only" in repr(report) and "would be split" in report.describe()
    assert report._repr_html_().startswith("<table")


def test_table_of_a_pair():
    table = tv.parallelize(mlp(), tv.ATP(mesh=(2, 4), chunks=2)).report.to_table()
    assert table[1:] == [
        [
            "0",
            "0",
            "mlp",
            "nn.Sequential",
            "32 x 16",
            "16 x 4",
            "out d1, in d2",
            "all_reduce d2 (16) in 2 chunks",
            "all_gather d2 (16), all_reduce d1 (4)",
        ],
        [
            "0",
            "2",
            "mlp",
            "nn.Sequential",
            "16 x 32",
            "4 x 16",
            "out d2, in d1",
            "all_reduce d1 (4) in 2 chunks, all_gather d2 (16)",
            "all_reduce d2 (16)",
        ],
    ]


def reasons(model, strategy=None, inputs=None, rules=None):
    report = tv.parallelize(model, strategy or tv.ATP(mesh=(2, 2)), inputs, rules).report
    return {path: why for path, (*_, why) in report.left.items()}


def test_what_stays_whole_has_a_reason():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.pair = mlp()
            self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
            self.query = nn.Linear(16, 16)
            self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 16)
            self.before, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)
            self.odd, self.even = nn.Linear(16, 33), nn.Linear(33, 16)
            self.unused, self.hooked = nn.Linear(16, 16), nn.Linear(16, 16)
            self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))
            self.raw = nn.Linear(16, 16)
            self.head, self.embed = nn.Linear(16, 9), nn.Embedding(9, 16)
            self.head.weight = self.embed.weight
            self.hooked.register_forward_hook(lambda *_: None)

        def forward(self, x):
            x = self.pair(x) + self.attention(x, x, x)[0] + self.norm(self.before(x))
            q, k, v = (
                layer(x).unflatten(-1, (4, 4)).transpose(1, 2)
                for layer in (self.query, self.key, self.value)
            )
            x = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            x = x + self.even(self.odd(x).relu()) + self.normed(self.hooked(x))
            return self.head(nn.functional.linear(x, self.raw.weight))

    why = reasons(Model(), inputs=torch.ones(2, 3, 16))
    attention = "its output goes to attention"
    assert why == {
        "attention.out_proj": "nn.MultiheadAttention reads its weight without calling it",
        "query": attention,
        "key": attention,
        "value": attention,
        "before": "its output goes to layer_norm",
        **dict.fromkeys(
            ["odd", "even"],
            "width=33 does not split evenly over d1=2: use d1=1 or 3, or width=32 or 34",
        ),
        "unused": "the forward of example_inputs does not use it",
        "hooked": "it has its own hooks",
        "normed": "module type ParametrizedLinear is not known",
        "raw": "its weight is read elsewhere, by Model",
        "head": "its weight is tied to embed.weight",
    }


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: m.b(m.a(x).relu()) + m.a(x).sum(),  # used twice
        lambda m, x: (lambda h: m.b(h.relu()) + h)(m.a(x)),  # seen from outside
        lambda m, x: (lambda h: m.b(h) + h)(m.a(x).relu()),
        lambda m, x: m.b(m.a(x).softmax(-1)),  # mixes features
        lambda m, x: m.b(m.a(x) * m.scale),  # a parameter would see a part only
        lambda m, x: m.b(m.a(x) * x[..., :1]),  # so would the input's gradient
        lambda m, x: m.b(m.a(x).relu()).mean() * m.a(x),
        lambda m, x: m.b(m.a(x).flip(-1)),
    ],
)
def test_no_pair_where_features_meet(forward):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
            self.scale = nn.Parameter(torch.ones(8))

        def forward(self, x):
            return forward(self, x)

    with pytest.raises(ValueError, match="nothing in Model can be split: a: "):
        tv.parallelize(Model(), tv.ATP(mesh=(2, 2)), torch.ones(2, 8))


def test_where_export_fails_rules_remain(capfd):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down, self.other = nn.Linear(8, 8), nn.Linear(8, 8), mlp(8)

        def forward(self, x):
            return self.other(self.down(self.up(x).relu()) if float(x.detach().sum()) > 0 else x)

    planned = tv.parallelize(
        Model(), tv.ATP(mesh=(2, 2)), torch.ones(2, 8), rules={"first": "up", "second": "down"}
    )
    assert [pair.found for pair in planned.report.pairs] == ["your rule", "nn.Sequential"]
    assert planned.report.notes[-1].startswith("torch.export could not follow the model")
    assert capfd.readouterr() == ("", "")


def test_a_layer_used_in_two_places_may_have_two_partners():
    a, b = nn.Linear(8, 8), nn.Linear(8, 8)
    for model, why in (
        (nn.Sequential(a, nn.ReLU(), b, nn.LayerNorm(8), a, nn.LayerNorm(8)), "layer_norm, l"),
        (nn.Sequential(a, nn.ReLU(), b, nn.ReLU(), b, nn.ReLU(), a), "linear, output"),
    ):
        for inputs, said in (
            (None, "it or its partner is in several places of the model"),
            (torch.ones(2, 8), f"its output goes to {why}"),
        ):
            with pytest.raises(ValueError, match=f"be split: 0: {said}"):
                tv.parallelize(model, tv.ATP(), inputs)


# -- errors ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "strategy, message",
    [
        (tv.Megatron(tp=2, sp=True), "sp=True is not possible here: between pairs"),
        (tv.ATP(sp=True), "sp=True is not possible here: between pairs"),
        (tv.ATP(chunks=2, chunking="pipelined"), "chunking='pipelined' needs the operations"),
        (tv.DataParallel(dp=2), "wrap the result: torch.nn.parallel.DistributedDataParallel"),
        (
            tv.Megatron(tp=2) * tv.DataParallel(dp=2),
            r"parallelize\(model, Megatron\(tp=2\), mesh=mesh",
        ),
        ("ATP", r"parallelize works with ATP\(...\), Megatron\(...\) and .* two, not 'ATP'"),
    ],
)
def test_strategies_that_cannot_be(strategy, message):
    with pytest.raises(ValueError, match=message):
        tv.parallelize(mlp(), strategy)


@pytest.mark.parametrize(
    "rules, message",
    [
        ({"first": "*.up"}, r"rule {'first': '\*.up'}: use .* or a dict with first, second"),
        ({"first": "*.up", "second": "*.down"}, r"matches nothing; linear layers are 0, 2$"),
        ({"first": "*.up", "second": "down"}, "with equally many"),
        ({"first": "0", "second": "2", "sort": 1}, "or a dict with first, second and perhaps kind"),
        ({"first": "0", "second": "2", "kind": "moe"}, "kind='moe' is not possible: use 'mlp' or"),
        ({"first": "0", "second": "2", "kind": "attention"}, "needs one of them"),
        ({"first": "0", "second": "2", "heads": 4}, "'mlp' none"),
        ({"first": "0", "second": "2", "fused": "yes"}, "fused='yes' is not possible"),
        ({"first": "0", "second": "1"}, "2: no rule names it.*1: module type GELU is not known"),
        ({"first": "0", "second": "0"}, "0: it is in two pairs"),
        (
            {"first": "0", "second": "2", "kind": "attention", "heads": 3},
            "in_features=32 does not split evenly over heads=3: use heads=2 or 4",
        ),
        ({"first": "0", "second": "2", "kind": "attention", "heads": "n"}, "heads='n' gives None"),
        (
            {"first": "0", "second": "2", "kind": "attention", "heads": 1},
            "heads=1 does not split evenly over d1=2: use d1=1, or heads=2",
        ),
        (
            {"first": "0", "second": "2", "kind": "attention", "heads": 4, "divide": "n"},
            "the model has no number 'n' to divide",
        ),
    ],
)
def test_rules_that_cannot_be(rules, message):
    with pytest.raises((ValueError, TypeError), match=message):
        tv.parallelize(mlp(), tv.ATP(mesh=(2, 2)), rules=rules)


@pytest.mark.parametrize("strategy", [tv.Merak(pp=2, microbatches=2), tv.ATP(mesh=(2, 2))])
def test_options_of_easy_mode_elsewhere(strategy):
    with pytest.raises(ValueError, match="easy=True is a mode of AxoNN: use AxoNN"):
        tv.parallelize(mlp(), strategy, torch.ones(4, 16), easy=True)
    with pytest.raises(ValueError, match="a promise about easy mode"):
        tv.parallelize(mlp(), strategy, torch.ones(4, 16), equal_rows=True)


def test_a_verification_needs_inputs():
    with pytest.raises(ValueError, match="example_inputs=None: give a batch"):
        tv.verify_parallel(mlp, tv.ATP(mesh=(2, 2)), None)


def test_nothing_to_split():
    with pytest.raises(ValueError, match="nothing in LayerNorm can be split: it has no linear lay"):
        tv.parallelize(nn.LayerNorm(4), tv.ATP())
    with pytest.raises(ValueError, match="nothing in Linear can be split: it: it is the whole mod"):
        tv.parallelize(nn.Linear(4, 4), tv.ATP())
    with pytest.raises(ValueError, match="in_features=15 does not split evenly over d2=4: "):
        tv.parallelize(mlp(15), tv.ATP(mesh=(1, 4)))


def test_other_parameters_near_a_users_pair_are_noted():
    model = foreign.Gated()
    notes = tv.parallelize(
        model, tv.ATP(), rules=[{"first": ["gate", "value"], "second": "back"}]
    ).report.notes
    assert notes[0].startswith("the model has parameters outside your rule's layers (last.")
    one = nn.Sequential(mlp(), nn.LayerNorm(16))
    assert not [
        note
        for note in tv.parallelize(
            one, tv.ATP(), torch.ones(2, 16), rules=[{"first": "*.0", "second": "*.2"}]
        ).report.notes
        if "beside" in note
    ]


def test_every_known_rule_has_an_owner():
    assert all(rule.owner for rule in RULES)
