"""Factors multiply: products drawn at random equal one process, with the ledger of the formula; and
a product is what its parts are called together."""

from dataclasses import replace

import pytest
from products import drawn

import tpviz as tv
from tpviz.schemes.advice import fits
from tpviz.verbs.room import need
from tpviz.verbs.written import strategy as written

W = tv.GPT(layers=4, hidden=16, heads=4, seq=8, batch=16, vocab=32)
BOX = tv.clusters.nvlink_pairs(pairs=4)
DRAWN, MORE = drawn(40)


@pytest.mark.parametrize("strategy, w", DRAWN, ids=range(len(DRAWN)))
def test_drawn_at_random(strategy, w):
    found = tv.verify(strategy, w, steps=1)
    assert found.ok and found.max_error < 1e-10, f"{strategy.short}\n{found}"


@pytest.mark.parametrize("strategy, w", MORE, ids=range(len(MORE)))
def test_more_drawn_at_random(strategy, w):
    test_drawn_at_random(strategy, w)


MERAKS = [
    {"schedule": "1f1b", "recompute": "none"},
    {"schedule": "interleaved_1f1b", "recompute": "full"},
    {"schedule": "zb_v", "recompute": "selective"},
    {"schedule": "shifted_critical_path", "recompute": "stage_aware", "subpipeline": 2},
]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("knobs", MERAKS, ids=lambda knobs: knobs["schedule"])
def test_merak_is_a_product(knobs, zero):
    """In ledger, time and memory, to the last digit."""
    merak = tv.Merak(pp=2, tp=2, dp=2, zero=zero, **knobs)
    if not fits(merak, W):
        with pytest.raises(ValueError, match="are not possible together"):
            merak.check(W)
        return
    made = tv.Megatron(tp=2) * tv.Pipeline(pp=2, **knobs) * tv.DataParallel(dp=2, zero=zero)
    assert made.axes == merak.axes
    for rank in range(8):
        assert made.ledger_of(W, rank) == merak.ledger_of(W, rank)
    one, other = tv.predict(made, W, BOX), tv.predict(merak, W, BOX)
    assert (one.step_time, one.segments) == (other.step_time, other.segments)
    assert made.memory(W) == merak.memory(W)
    half, node = replace(W, dtype="bfloat16"), tv.clusters.nvlink_pairs(pairs=4)
    assert need(made, half, node) == need(merak, half, node)


def test_the_numbers_of_a_product_are_merak_s():
    """The same losses and gradients, bit by bit: it is the same program."""
    merak = tv.Merak(pp=2, tp=2, dp=1, schedule="1f1b", recompute="none")
    made = tv.Pipeline(pp=2) * tv.Megatron(tp=2)
    losses = [tv.run(s, W, steps=2, warmup=0).meta["losses"] for s in (made, merak)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: tv.Megatron(tp=2) * tv.ATP(), "at most one factor that cuts blocks"),
        (lambda: tv.Pipeline(pp=2) * tv.Pipeline(pp=2), "one Pipeline and one DataParallel"),
        (lambda: tv.Merak() * tv.Megatron(tp=2), "Merak is a product of blocks, pipeline and data"),
        (
            lambda: tv.Pipeline(pp=2) * tv.Megatron(tp=2, accumulation=2),
            r"use Pipeline\(microbatches=8\) and accumulation=1",
        ),
        (
            lambda: tv.Pipeline(pp=2) * tv.DataParallel(dp=2, bucket_mb=1.0),
            "summed by stages, not in buckets; use bucket_mb=0.25",
        ),
        (
            lambda: tv.DataParallel(dp=2, inner=tv.Pipeline(pp=2)),
            r"multiply them, Pipeline\(...\) \* DataParallel\(...\)",
        ),
        (
            lambda: (tv.Pipeline(pp=2) * tv.Megatron(tp=2)).with_order("tp"),
            "must name each axis of pp, tp once, innermost first: use 'tp-pp'",
        ),
        (lambda: tv.Pipeline(inner=tv.Merak()), "multiply the factors, or give a TensorParallel"),
        (lambda: tv.Pipeline(data=3), "multiply the factors, or give a DataParallel"),
        (lambda: tv.Pipeline(pp=2) * tv.AxoNN(x=2, clip=1.0), "use clip=0.0"),
        (
            lambda: tv.Pipeline(pp=2) * tv.Megatron(tp=2, recompute="full"),
            r"use Pipeline\(recompute='full'\)",
        ),
        (lambda: tv.Megatron(tp=2).with_order("tp"), "which orders its ranks itself, tp: order"),
        (lambda: tv.AxoNN(x=2).with_order("x-y"), "ranks itself, x-y-z-data: .* with Context"),
        (
            lambda: tv.Experts(ep=2).with_order("tp-dp").axes,
            "order='tp-dp' must name each axis of ep",
        ),
    ],
)
def test_what_does_not_multiply_says_which_factors_and_why(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("made", [tv.ATP(), tv.AxoNN(x=2), tv.Megatron(tp=2), tv.T3(tp=2)])
def test_the_product_that_a_factor_without_order_advises_takes_one(made):
    with pytest.raises(ValueError, match=r"such as that with (\w+\(\w+=2\))") as refused:
        made.with_order("-".join(made.axes))
    product = made * written(str(refused.value).rpartition(" with ")[2])
    order = [*product.axes]
    assert [*product.with_order("-".join(order)).axes] == order[::-1]


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: tv.AxoNN(x=2, z=1) * tv.Pipeline(pp=2, schedule="zb_h1"),
            r"use ATP\(mesh=\(2, 1\), attention='A1'\), or schedule='1f1b'",
        ),
        (
            lambda: tv.T3(tp=2, gather="consumer") * tv.Pipeline(pp=2, schedule="zb_h1"),
            "use gather='after'",
        ),
        (
            lambda: tv.Pipeline(pp=2) * tv.DataParallel(zero=3, reshard_after_forward=False),
            "each pass of a stage gathers parameters; use reshard_after_forward=True",
        ),
        (
            lambda: tv.AxoNN(x=1, z=2) * tv.Pipeline(pp=2) * tv.DataParallel(dp=2, zero=1),
            "shards over z already: use zero=0, or z=1",
        ),
        (lambda: tv.ATP() * tv.Pipeline(subpipeline=2), "not those of ATP"),
        (lambda: tv.Megatron(tp=2) * tv.Pipeline(pp=8), "layers=4 are fewer than the 8 stages"),
    ],
)
def test_products_that_do_not_fit_say_what_does(make, message):
    with pytest.raises(ValueError, match=message):
        make().check(W)


def test_the_order_of_axes_decides_which_links_they_have():
    """Replicas that are neighbours send over the fast links, tensor parallelism over the slow."""
    made = tv.Megatron(tp=2) * tv.DataParallel(dp=2)
    other = made.with_order("dp-tp")
    assert (list(made.axes), list(other.axes)) == (["dp", "tp"], ["tp", "dp"])
    pairs = tv.clusters.nvlink_pairs(pairs=2)
    assert tv.predict(made, W, pairs).step_time < tv.predict(other, W, pairs).step_time
    assert made.ledger(W) == other.ledger(W)
    assert other.short == "(Megatron(tp=2) * DataParallel(dp=2)).with_order('dp-tp')"
    assert list(made.with_order("tp-cp-ep-dp-pp").axes) == ["dp", "tp"]  # Megatron-LM's words


def test_a_backward_split_on_one_rank_alone_recomputes_on_all():
    """The formula's second stage recomputed nothing where its split is not the first one's."""
    order = "F0 F1 B0 B1\nF0 I0 W0 F1 I1 W1"
    w = tv.GPT(layers=2, hidden=32, heads=4, seq=8, batch=8, vocab=64)
    merak = tv.Merak(pp=2, tp=2, microbatches=2, schedule=order, recompute="selective")
    box = tv.clusters.nvswitch(4)
    simulated = tv.simulate(merak, w, box).step_time
    assert tv.predict(merak, w, box).step_time == pytest.approx(simulated, rel=1e-9)


def test_gradients_are_summed_over_token_axes_that_do_not_cut_the_parameter():
    """AxoNN shares the batch over z and data, and z cuts weights; tp shares the sequence."""
    names, summed = set(W.parameter_shapes()), tv.AxoNN(x=1, y=1, z=2, data=2).summed(W)
    assert set(summed["data"]) == names and set(summed) == {"z", "data"}
    cut = {n for n in names if n.endswith("weight") and "norm" not in n and "position" not in n}
    assert set(summed["z"]) == names - cut
    at = tv.Megatron(tp=2, sp=True)
    assert set(at.summed(W)["tp"]) == names - set(at.splits(W))
    assert not tv.Megatron(tp=2).summed(W) and not tv.AxoNN(x=2, y=2, z=1, data=1).summed(W)
