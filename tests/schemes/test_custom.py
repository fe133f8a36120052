"""Schemes of the user's own: right ones are equal to one process, and of wrong ones it is said what
is wrong."""

from dataclasses import replace
from functools import partial

import own_schemes as own
import pytest
import torch
import torch.distributed as dist
from tiny import TINY

import tpviz as tv
from tpviz.ranks.rank_errors import RankError

SMALL = replace(TINY, hidden=8, heads=2, seq=4, batch=4, vocab=16)
NODE = tv.clusters.nvswitch(4)


def verified(axes, build, workload=SMALL, **formulas):
    return tv.verify(tv.Custom(axes, build, **formulas), workload, steps=2, progress=False)


def rows_of_data_parallel(w):
    shapes = w.parameter_shapes().values()
    sizes = [torch.Size(shape).numel() * w.itemsize for shape in shapes]
    return [("dp", "all_reduce", "sync", 1, size) for size in sizes]


@pytest.mark.parametrize(
    "axes, build, workload",
    [
        ({"dp": 2}, own.data_parallel, SMALL),
        ({"dp": 2}, own.buckets, SMALL),
        ({"dp": 2}, own.zero1, SMALL),
        ({"dp": 2}, own.ddp, SMALL),
        ({"tp": 2}, own.tensor_parallel, SMALL),
        ({"pp": 2}, own.pipeline, replace(SMALL, tied=False)),
        ({"dp": 2, "tp": 2}, own.both, SMALL),
        ({"tp": 2, "dp": 2}, own.both, SMALL),
        ({"dp": 1}, own.zero1, SMALL),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_schemes_by_hand_are_equal_to_one_process(axes, build, workload):
    found = verified(axes, build, workload)
    assert found.ok and found.ledger_ok is None, found
    assert "ledger: no formula given" in repr(found)


LLAMA = replace(SMALL, heads=4, kv_heads=2, rotary=True, norm="rms", gated=True, bias=False)
ORDER = tv.SequenceCut(2, "zigzag").order


@pytest.mark.parametrize(
    "workload", [SMALL, replace(LLAMA, seq=16, tied=False)], ids=["gpt", "llama"]
)
def test_sequences_in_another_order_of_chunks(workload):
    """A rank has the first and the last chunk: its tokens, logits and positions are found."""
    found = tv.verify(tv.Custom({"cp": 2}, own.zigzag, chunks={"cp": ORDER}), workload, steps=2)
    assert found.ok, found
    tokens = tv.SequenceCut(4, "zigzag").restored(torch.arange(16).unsqueeze(0)).argsort()
    four = tv.Custom({"cp": 4}, own.zigzag, chunks={"cp": tokens.flatten()})
    assert tv.verify(four, replace(workload, seq=16), steps=1).ok  # an index of each token


@pytest.mark.parametrize("wrong", ["mask", "positions"])
def test_mistakes_of_a_sequence_in_another_order(wrong):
    scheme = tv.Custom({"cp": 2}, partial(own.zigzag, wrong=wrong), chunks={"cp": ORDER})
    found = tv.verify(scheme, SMALL, steps=1)
    assert not found and "outputs" in found.wrong


def test_parameters_in_another_order_of_ranks():
    reversed_ranks = partial(own.tensor_parallel, wrong="order")
    assert tv.verify(tv.Custom({"tp": 2}, reversed_ranks, chunks={"tp": (1, 0)}), SMALL, steps=1).ok
    said = r"or say which chunks each rank has, as in tv.Custom\(..., chunks={'tp': \[0, 3, 1, 2\]}"
    with pytest.raises(RankError, match=said):
        verified({"tp": 2}, reversed_ranks)


def test_a_forward_that_is_recomputed_is_seen_once():
    def build(workload, mesh):
        model, group = tv.reference_model(workload), mesh.get_group("dp")

        def step(batch):
            own = [rows.chunk(group.size())[group.rank()] for rows in batch]
            with torch.no_grad():
                model(*own)  # dropped, and run again below
            loss = model(*own)
            loss.backward()
            for p in model.parameters():
                dist.all_reduce(p.grad, group=group)
                p.grad /= group.size()
            return loss

        return model, step

    assert verified({"dp": 2}, build).ok


def test_what_is_compared():
    whole, shards = verified({"dp": 2}, own.data_parallel), verified({"dp": 2}, own.zero1)
    names = SMALL.parameter_shapes()
    both = {"outputs", "losses", *(f"parameter {name}" for name in names)}
    assert shards.errors.keys() == both
    assert whole.errors.keys() == both | {f"gradient {name}" for name in names}
    assert ["0 gradients", "no rank keeps them", ""] in shards.to_table()


WRONG = [
    ({"dp": 2}, own.data_parallel, "missing", "gradient"),
    ({"dp": 2}, own.data_parallel, "sum", "gradient"),
    ({"dp": 2, "tp": 2}, own.both, "group", "gradient"),
    ({"tp": 2}, own.tensor_parallel, "forward", "outputs"),
    ({"tp": 2}, own.tensor_parallel, "backward", "gradient"),
    ({"dp": 2}, own.zero1, "stale", "parameter"),
]


@pytest.mark.parametrize("axes, build, wrong, what", WRONG, ids=[f"{w[2]}" for w in WRONG])
def test_mistakes_are_found(axes, build, wrong, what):
    found = verified(axes, partial(build, wrong=wrong))
    bad = found.wrong
    assert not found and bad and f"differing: {bad[0]}" in repr(found)
    assert any(name.startswith(what) for name in bad) and found.worst in repr(found)
    if what == "gradient":  # forward was right
        assert "outputs" not in bad
    if wrong == "backward":  # of what comes before the layer, not of the layer itself
        assert "gradient blocks.1.norm2.weight" in bad
        assert "gradient blocks.1.mlp.down.weight" not in bad


def test_a_sum_for_a_mean_is_off_by_one():
    found = verified({"dp": 2}, partial(own.data_parallel, wrong="sum"))
    wrong = [error for name, error in found.errors.items() if name.startswith("gradient")]
    assert wrong == pytest.approx([1.0] * len(wrong))  # twice as much


def test_a_formula_is_compared_exactly():
    good = verified({"dp": 2}, own.data_parallel, ledger=rows_of_data_parallel)
    assert good.ok and good.ledger_ok, good
    less = lambda w: rows_of_data_parallel(w)[1:]
    bad = verified({"dp": 2}, own.data_parallel, ledger=less)
    assert not bad.ok and bad.ledger_ok is False and bad.max_error < 1e-10
    assert "dp/all_reduce/sync: run has 28 x" in repr(bad)


def test_the_ledger_of_zero_by_hand():
    def rows(w):
        padded = sum(torch.Size(s).numel() for s in w.parameter_shapes().values()) * w.itemsize
        return [
            ("dp", "reduce_scatter", "sync", 1, padded),
            ("dp", "all_gather", "optimizer", 1, padded),
        ]

    assert verified({"dp": 2}, own.zero1, ledger=rows).ledger_ok


def test_a_function_of_a_notebook_cell():
    """Nobody can import it: ranks get its code."""
    cell = {"__name__": "__main__"}
    exec(
        "import tpviz as tv\n"
        "def helper(workload):\n    return tv.reference_model(workload)\n"
        "def build(workload, mesh):\n    return helper(workload)\n",
        cell,
    )
    assert verified({"dp": 2}, cell["build"]).ok  # all ranks do the same


def test_every_verb_takes_it():
    scheme = tv.Custom({"tp": 2}, own.tensor_parallel)
    trace = tv.run(scheme, TINY, steps=1, progress=False)
    assert trace.meta["title"].startswith("tensor_parallel tp 2: GPT of 2 layers")
    assert trace.memory(0).peaks["parameters"]
    captured = tv.capture(scheme, TINY)
    assert captured.ledger() == trace.ledger() and len(trace.ledger()) == 2
    simulated = tv.simulate(scheme, TINY, NODE, capture=captured)
    compared = tv.compare(scheme, TINY, NODE, run=False)
    assert compared.prediction is None and compared.badges == ("simulated",)
    assert compared.simulated.step_time == simulated.step_time
    whole = {"own": scheme, "ours": tv.Megatron(tp=2)}
    studied = tv.study(whole, TINY, NODE, sources=("predicted", "simulated"))
    assert "No formula, so not predicted: own." in studied.describe()
    assert tv.Timeline(trace).describe() and trace.meta["ownership"] == []


def test_it_runs_as_an_emulated_cluster():
    scheme, cluster = tv.Custom({"dp": 2}, own.data_parallel), tv.clusters.laptop(2)
    compared = tv.compare(scheme, SMALL, cluster, steps=1, emulate=False, progress=False)
    assert compared.measured and compared.badges[0] == "simulated"


def test_the_time_is_that_of_the_formula():
    def cost(workload, cluster):
        compute = workload.step_flops / 2 / cluster.device.flops[workload.dtype]
        return {"compute": compute, "dp": 3e-6}

    made = tv.predict(tv.Custom({"dp": 2}, own.data_parallel, cost=cost), TINY, NODE)
    compute = TINY.step_flops / 2 / NODE.device.flops["float32"]
    assert made.step_time == pytest.approx(compute + 3e-6)
    assert made.exposed == {"dp": pytest.approx(3e-6)}
    assert "There is no formula of its memory" in made.describe() and made.to_table()
    seconds = tv.Custom({"dp": 2}, own.data_parallel, cost=lambda w, c: 2)
    assert tv.predict(seconds, TINY, NODE).step_time == 2.0
    both = tv.compare(seconds, TINY, NODE, run=False)
    assert both.badges == ("predicted", "simulated") and both.to_svg() and both.describe()


def test_without_formulas_it_says_so():
    scheme = tv.Custom({"dp": 2}, own.data_parallel)
    with pytest.raises(NotImplementedError, match=r"Custom\(cost=...\), or use tv.simulate"):
        tv.predict(scheme, TINY, NODE)
    with pytest.raises(NotImplementedError, match=r"give Custom\(ledger=...\)"):
        scheme.ledger(TINY)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: tv.Custom({}, own.zero1), "at least one axis"),
        (lambda: tv.Custom({"dp": 0}, own.zero1), "axis dp=0 is too small"),
        (lambda: tv.Custom({"my axis": 2}, own.zero1), "must be a plain word"),
        (lambda: tv.Custom({"dp": 2}, 3), "build=3 is no function"),
        (
            lambda: tv.Custom({"cp": 4}, own.zigzag, chunks={"cp": (0, 3, 1)}),
            r"chunks=\(0, 3, 1\) of cp=4: give each of 0 to 3 once, 1 for each rank",
        ),
        (
            lambda: tv.Custom({"cp": 2}, own.zigzag, chunks={"cp": (0, 3, 1, 1)}),
            "give each of 0 to 3 once, 2 for each rank",
        ),
        (lambda: tv.Custom({"cp": 2}, own.zigzag, chunks={"tp": (0, 1)}), "axis of chunks='tp'"),
        (lambda: tv.Custom({"dp": 2}, own.zero1, ledger=[]), r"ledger=\[\] is no function"),
        (lambda: tv.Custom({"dp": 2}, own.zero1, cost=1.0), "cost=1.0 is no function"),
        (lambda: tv.DataParallel(dp=2, inner=tv.Custom({"dp": 2}, own.zero1)), "shares the batch"),
        (lambda: tv.Custom({"dp": 4096}, own.zero1) and verified({"dp": 4096}, own.zero1), "4096"),
        (lambda: tv.explore(SMALL, strategy=tv.Custom({"dp": 2}, own.zero1)), "no knobs to turn"),
        (lambda: tv.predict(tv.Custom({"dp": 8}, own.zero1), TINY, NODE), "8 ranks"),
    ],
)
def test_arguments_that_cannot_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("rows", [3, [("tp", "all_reduce", "sync", 1, 8)], [("dp", "all_reduce")]])
def test_ledgers_that_cannot_be(rows):
    scheme = tv.Custom({"dp": 2}, own.data_parallel, ledger=lambda w: rows)
    with pytest.raises(ValueError, match=r"a row is \(axis|return a list of rows"):
        tv.verify(scheme, SMALL)


@pytest.mark.parametrize("seconds", ["soon", {"tp": 1.0}, [1.0]])
def test_costs_that_cannot_be(seconds):
    scheme = tv.Custom({"dp": 2}, own.data_parallel, cost=lambda w, c: seconds)
    with pytest.raises(ValueError, match="return seconds, as a number or as "):
        tv.predict(scheme, TINY, NODE)


def nothing(workload, mesh):
    return None


def a_number(workload, mesh):
    return tv.reference_model(workload), 3


def no_loss(workload, mesh):
    return tv.reference_model(workload), lambda batch: 1.5


def other_names(workload, mesh):
    return torch.nn.Sequential(tv.reference_model(workload))


def cut_unevenly(workload, mesh):
    model = tv.reference_model(workload)
    model.norm.weight = torch.nn.Parameter(model.norm.weight.detach()[:3].clone())
    return model


def other_start(workload, mesh):
    model = tv.reference_model(workload)
    torch.nn.init.zeros_(model.norm.weight)
    return model


def other_rows(workload, mesh):
    model, rank = tv.reference_model(workload), mesh.get_group("dp").rank()

    def step(batch):
        loss = model(*[rows[rank::2] for rows in batch])
        loss.backward()
        return loss

    return model, step


def no_forward(workload, mesh):
    return tv.reference_model(workload), lambda batch: torch.zeros(())


def forgets_its_loss(workload, mesh):
    model = tv.reference_model(workload)
    return model, lambda batch: model(*batch).backward()


@pytest.mark.parametrize(
    "build, message",
    [
        (nothing, "nothing returned NoneType: return model"),
        (a_number, r"a_number returned \(ReferenceGPT, int\): return model"),
        (no_loss, "the step of no_loss returned float: return the mean loss"),
        (other_names, "no rank has a parameter 'embed.token.weight'"),
        (cut_unevenly, r"norm.weight has the shape \(3,\) on this rank"),
        (other_start, "norm.weight on the ranks are no even parts"),
        (
            partial(own.tensor_parallel, wrong="order"),
            "are no even parts of the whole, in the order",
        ),
        (other_rows, "tokens on the ranks are no even parts"),
        (forgets_its_loss, "the step of forgets_its_loss returned no loss on any rank"),
        (no_forward, "no rank called both its model's embed"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_builds_that_return_the_wrong_thing(build, message):
    axes = {"tp": 2} if isinstance(build, partial) else {"dp": 2}
    with pytest.raises(RankError, match=message):
        verified(axes, build)


def test_a_learning_rate_that_nobody_would_take():
    with pytest.raises(RankError, match="but zero1 has an optimizer of its own"):
        tv.run(tv.Custom({"dp": 2}, own.zero1), SMALL, lr=0.1, progress=False)
    trace = tv.run(tv.Custom({"dp": 2}, own.data_parallel), SMALL, lr=0.1, steps=2, progress=False)
    assert trace.meta["losses"] == pytest.approx(
        tv.run(tv.DataParallel(dp=2), SMALL, lr=0.1, steps=2, progress=False).meta["losses"]
    )


def routed(workload, mesh):
    """`own.data_parallel` with what the reference lacks."""
    model, step = own.data_parallel(workload, mesh)
    rank = mesh.get_group("dp").rank()
    model.router = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.router.weight, float(rank))
    torch.nn.init.ones_(model.router.bias)
    model.register_buffer("table", torch.ones(2))
    if rank == 1:
        model.register_buffer("spare", torch.ones(2))
    return model, partial(with_router, model, step)


def with_router(model, step, batch):
    sum(p.sum() for p in model.router.parameters()).backward()
    return step(batch)


def test_what_the_reference_lacks_is_named():
    found = verified({"dp": 2}, routed)
    assert found.ok and found.not_compared == (
        "parameter router.weight (differs between ranks)",
        "parameter router.bias",
        "buffer table",
        "input gradient",
        "buffer spare (on ranks 1)",
    )
    assert found.to_table()[-1] == [
        "not compared",
        "",
        ", ".join(found.not_compared[:4]) + ", and 1 more",
    ]
    assert "router.weight" in repr(found) and "router.weight" in found._repr_html_()
    assert not tv.verify(tv.DataParallel(dp=2), SMALL, 1, progress=False).not_compared
