"""`tv.parallelize` on ranks: replicas that agree, ledgers, DDP around it, and small matters."""

import foreign
import pytest
import torch
from together import each
from torch import nn

import tpviz as tv
from tpviz.modules.rules import Pair


def mlp(width=16, inner=32):
    return nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))


def launched(fn, *args):
    return tv.launch(fn, *args, world_size=4, progress=False)


def test_a_module_used_in_two_places_is_split_in_both():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = self.two = mlp()

        def forward(self, x):
            return self.two(self.one(x))

    for v in launched(lambda: tv.verify_parallel(Model, tv.ATP(mesh=(2, 2)), torch.ones(2, 16))):
        assert v.ok and len(v.report.pairs) == 1, v


def refused(make, strategy, seed_by_rank=False, broadcast=False):
    import torch.distributed as dist

    torch.manual_seed(dist.get_rank() if seed_by_rank else 0)
    try:
        return tv.parallelize(make(), strategy, broadcast=broadcast).full_state_dict()
    except ValueError as error:
        return str(error)


def uneven():
    import torch.distributed as dist

    return mlp(inner=32 + 16 * dist.get_rank())


def test_ranks_must_agree():
    for said in launched(refused, mlp, tv.ATP(mesh=(2, 2)), True):
        assert said.startswith("the ranks start from different numbers: 0.weight differs (4 of 4")
    for said in launched(refused, uneven, tv.ATP(mesh=(2, 2))):
        assert said.startswith("the ranks have different models")
    for said in launched(refused, mlp, tv.ATP(mesh=(2, 1))):
        assert said == (
            "ATP(mesh=(2, 1)) is for 2 ranks, this world has 4: change one of them, or "
            "give mesh= with more axes"
        )


def transposed():
    model = mlp()
    model[0].weight.data = model[0].weight.data.t().contiguous().t()
    return model


@pytest.mark.parametrize(
    "strategy", [tv.ATP(mesh=(2, 2)), tv.AxoNN(2, 1, 1, 2)], ids=lambda s: s.short
)
def test_broadcast_makes_ranks_agree(strategy):
    torch.manual_seed(0)
    first = transposed().state_dict()
    for full in launched(refused, transposed, strategy, True, True):
        assert all(torch.equal(full[name], first[name]) for name in first)


class Undecided(nn.Module):
    """What it does depends on the numbers it is given: no graph follows it."""

    def __init__(self):
        super().__init__()
        self.inner = mlp()

    def forward(self, x):
        return self.inner(x) if x.sum() > 0 else x


def planned(make):
    """(how often this rank has made a graph, what its report says)."""
    from unittest.mock import patch

    from tpviz.modules import plan

    torch.manual_seed(0)
    with patch.object(plan, "LinearFlow", wraps=plan.LinearFlow) as flow:
        report = tv.parallelize(make(), tv.ATP(mesh=(2, 2)), torch.ones(2, 16)).report
    return flow.call_count, repr((report.pairs, report.left, report.notes))


def test_the_first_rank_makes_the_graph_for_all():
    for make, words in ((mlp, "those of the whole model"), (Undecided, "could not follow")):
        counts, said = zip(*launched(planned, make))
        assert counts == (1, 0, 0, 0) and words in said[0] and len(set(said)) == 1, said


def sent(strategy, make, rules, dtype):
    torch.manual_seed(0)
    model = tv.parallelize(make().to(dtype), strategy, rules=rules)
    width = 16
    x = torch.ones(4, foreign.TOKENS, width, dtype=dtype, requires_grad=True)
    with tv.record() as recorder, recorder.step():
        model(x).sum().backward()
    return recorder.trace.ledger(), model.report.ledger(4 * foreign.TOKENS, dtype.itemsize)


def test_ledger_of_an_mlp_by_hand():
    B, S, width, inner = 4, foreign.TOKENS, 16, 32
    expected = tv.Ledger.of(
        [
            ("d2", "all_reduce", "forward", 2, B * S * inner // 2 * 4 // 2, 2),
            ("d1", "all_reduce", "forward", 2, B * S * width // 2 * 4 // 2, 2),
            ("d2", "all_gather", "forward", 1, B * S * width * 4, 2),
            ("d2", "all_reduce", "backward", 1, B * S * inner // 2 * 4, 2),
            ("d1", "all_reduce", "backward", 1, B * S * width // 2 * 4, 2),
            ("d2", "all_gather", "backward", 1, B * S * width * 4, 2),
        ]
    )
    for measured, formula in launched(
        sent, tv.ATP(mesh=(2, 2), chunks=2), mlp, None, torch.float32
    ):
        assert measured == formula == expected, measured.diff(expected)


class GatedOnly(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(a, b) for a, b in ((16, 32), (16, 32), (32, 16)))

    def forward(self, x):
        return self.down(self.gate(x).relu() * self.up(x))


def test_first_layers_send_together_for_their_input():
    rule = [Pair(first=["gate", "up"], second="down")]
    for measured, formula in launched(sent, tv.ATP(mesh=(2, 2)), GatedOnly, rule, torch.float64):
        assert measured == formula, measured.diff(formula)
        assert measured.total(phase="backward", axis="d1")[:2] == (1, 24 * 16 // 2 * 8)
        assert measured.total(phase="forward", axis="d2", collective="all_reduce")[0] == 2


class Watched(GatedOnly):
    """Reads its first layers more often than in turn, without gradients and after a change."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, x):
        x = x * self.scale
        with torch.no_grad():
            y = x.clone()
            constant = self.gate(y) * self.up(y.mul_(2))
            self.gate(x)
        first = self.gate(x)
        return self.down(first * self.up(x) + self.gate(x) + constant) + super().forward(x)


def test_first_layers_that_are_not_called_in_turn():
    for v in launched(
        lambda: tv.verify_parallel(
            Watched,
            tv.ATP(mesh=(2, 2)),
            foreign.vectors(16),
            rules={"first": ["gate", "up"], "second": "down"},
        )
    ):
        assert v.ok, v


def test_ledger_of_attention_is_the_reports():
    rule = Pair(first="inward", second="outward", kind="attention", heads="count", fused="blocks")
    strategies = (
        tv.ATP(mesh=(2, 2)),
        tv.ATP(mesh=(4, 1), order="row"),
        tv.ATP(mesh=(2, 2), attention="A1"),
        tv.ATP(mesh=(1, 4)),
        tv.Megatron(tp=4, chunks=2),
    )
    cases = [(strategy, foreign.Attention, rule, torch.float64) for strategy in strategies]
    for case, found in each(sent, cases).items():
        for measured, formula in found:
            assert len(formula) and measured == formula, (case, measured.diff(formula))


def data_parallel():
    """Largest difference of the gradients under DDP around a split model from one process's."""
    mesh = tv.Mesh({"dp": 2, "d1": 2, "d2": 1}).device_mesh()
    torch.manual_seed(0)
    whole, model = foreign.Gated().double().eval(), foreign.Gated().double().eval()
    model.load_state_dict(whole.state_dict())
    x = foreign.vectors(8)
    split = tv.parallelize(model, tv.ATP(mesh=(2, 1)), x, mesh=mesh)
    around = nn.parallel.DistributedDataParallel(split, process_group=mesh.get_group("dp"))
    around(x.chunk(2)[mesh.get_local_rank("dp")]).square().mean().backward()
    whole(x).square().mean().backward()
    found = split.full_gradients()
    return max(float((found[name] - p.grad).abs().max()) for name, p in whole.named_parameters())


def test_ddp_around_a_split_model():
    assert max(launched(data_parallel)) < 1e-12


def small_matters():
    """(in inference, under autocast, of one vector, frozen, wrong mesh, short state dict)."""
    torch.manual_seed(0)
    whole, model = foreign.encoder().eval(), foreign.encoder().eval()
    model.load_state_dict(whole.state_dict())
    model.layers[0].linear1.weight.requires_grad_(False)
    split = tv.parallelize(model, tv.ATP(mesh=(2, 2)))
    x = foreign.vectors(16).float()
    padded = torch.zeros(4, foreign.TOKENS, dtype=torch.bool)
    with torch.no_grad():
        close = torch.allclose(split(x), whole(x), atol=1e-5)
        mask = {"src_key_padding_mask": padded}
        close &= torch.allclose(split(x, **mask), whole(x, **mask), atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, expected = split(x), whole(x)
    y.float().sum().backward()
    rough = torch.allclose(y.float(), expected.float(), atol=0.1)
    frozen = model.layers[0].linear1.weight.grad is None
    vector = tv.parallelize(mlp(), tv.ATP(mesh=(2, 2), chunks=2))(torch.ones(16)).shape == (16,)
    full = split.full_state_dict()
    same = all(torch.equal(full[name], value) for name, value in whole.state_dict().items())
    try:
        mesh = tv.Mesh({"dp": 2, "d1": 2}).device_mesh()
        tv.parallelize(mlp(), tv.ATP(mesh=(2, 1)), mesh=mesh)
    except ValueError as error:
        said = str(error)
    return close, rough, frozen, vector, same, said


def test_small_matters():
    for *good, said in launched(small_matters):
        assert all(good), good
        assert said == "the mesh has {'dp': 2, 'd1': 2}, but ATP(mesh=(2, 1)) needs d2=1"


def test_verification_reads_as_a_table():
    found = tv.verify_parallel(mlp, tv.Megatron(tp=4), torch.ones(2, 16), steps=1)
    assert found and repr(found).startswith("equal (tolerance 1e-10): Sequential by Megatron(tp=4)")
    assert [row[0] for row in found.to_table()] == [
        "compared",
        "outputs",
        "4 gradients",
        "4 parameters",
    ]
