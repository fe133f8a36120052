"""Sequences over ranks: every kind equals one process, its ledger and its time are those of the
formula, and chunks are balanced where they are said to be."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from products import drawn

import tpviz as tv
from tpviz.core.step import Kernel, flat
from tpviz.schemes.apart import apart
from tpviz.schemes.context.paper import imbalance, ring_bytes, ulysses_bytes
from tpviz.schemes.context.sequence import KINDS, SequenceCut
from tpviz.schemes.context.step import operations
from tpviz.schemes.gpt.kernels import attention
from tpviz.schemes.merak.strategy import as_merak
from tpviz.schemes.ownership import ownership
from tpviz.verbs.room import need
from tpviz.views.figures.mesh import share

W = tv.GPT(layers=2, hidden=32, heads=8, seq=16, batch=4, vocab=32)
LLAMA = tv.GPT(
    layers=2,
    hidden=32,
    heads=8,
    kv_heads=4,
    seq=16,
    batch=4,
    vocab=32,
    gated=True,
    norm="rms",
    rotary=True,
    bias=False,
    tied=False,
)
LONG = tv.GPT(layers=2, hidden=1024, heads=16, seq=4096, batch=8, vocab=1024)
BOX = tv.clusters.nvswitch(8)
DRAWN, MORE = drawn(30, context=True)


@pytest.mark.parametrize("strategy, w", DRAWN, ids=range(len(DRAWN)))
def test_drawn_at_random(strategy, w):
    found = tv.verify(strategy, w, steps=1)
    assert found.ok and found.max_error < 1e-10, f"{strategy.short}\n{found}"


@pytest.mark.parametrize("strategy, w", MORE, ids=range(len(MORE)))
def test_more_drawn_at_random(strategy, w):
    test_drawn_at_random(strategy, w)


@pytest.mark.parametrize("w", [W, LLAMA], ids=["gpt2", "llama"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "cp, ulysses, tp, sp",
    [(2, 1, 1, 0), (4, 1, 1, 0), (2, 1, 2, 0), (2, 1, 2, 1), (2, 2, 1, 0), (1, 4, 1, 0)],
)
def test_equals_one_process(kind, cp, ulysses, tp, sp, w):
    equal(kind, cp, ulysses, tp, sp, w)


@pytest.mark.parametrize("w", [W, LLAMA], ids=["gpt2", "llama"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "cp, ulysses, tp, sp",
    [(8, 1, 1, 0), (4, 1, 2, 1), (4, 2, 1, 0), (2, 4, 1, 0), (2, 2, 2, 0), (2, 2, 2, 1)],
)
def test_eight_ranks_equal_one_process(kind, cp, ulysses, tp, sp, w):
    equal(kind, cp, ulysses, tp, sp, w)


def equal(kind, cp, ulysses, tp, sp, w):
    """tv.verify of a ring's ``cp`` ranks, ``ulysses`` and ``tp``."""
    if kind == "ulysses" and (w.num_kv_heads < cp * tp or ulysses > 1):
        return  # refused, below
    strategy = tv.Context(cp=cp, kind=kind, ulysses=ulysses)
    strategy = tv.Megatron(tp=tp, sp=bool(sp)) * strategy if tp > 1 else strategy
    found = tv.verify(strategy, w, steps=2)
    assert found.ok and found.max_error < 1e-10, str(found)


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_is_the_factor_inside(kind):
    assert tv.Context(cp=1, kind=kind).ledger(W) == tv.DataParallel(dp=1).ledger(W)
    alone, inside = tv.Megatron(tp=2), tv.Megatron(tp=2) * tv.Context(cp=1, kind=kind)
    assert inside.ledger(W) == alone.ledger(W) and inside.memory(W) == alone.memory(W)


@pytest.mark.parametrize("kind, cp", list(product(KINDS[:3], (2, 3, 4, 8))))
def test_blocks_are_the_causal_triangle(kind, cp):
    """Each once, and no other; shared evenly where it is said."""
    cut = SequenceCut(cp, kind)
    found = [
        (cut.chunks(rank)[i], cut.chunks(other)[j], causal)
        for rank in range(cp)
        for other in cut.passing(rank)
        for i, j, causal in cut.blocks(rank, other)
    ]
    chunks = cp * cut.each
    assert sorted(found) == [(i, j, i == j) for i in range(chunks) for j in range(i + 1)]
    even = imbalance(kind, cp) == imbalance("ulysses", cp) == 1
    assert even == (kind != "ring")
    if not even:
        assert imbalance(kind, cp) == (2 * cp - 1) / cp


@pytest.mark.parametrize("kind", ["zigzag", "all_gather"])
def test_flops_of_every_rank_are_equal(kind):
    """Of the programs that ranks run."""
    program = tv.capture(tv.Context(cp=4, kind=kind), W)
    flops = {rank: program.trace(rank)["flops"].sum() for rank in range(4)}
    assert len(set(flops.values())) == 1
    one = SequenceCut(4, kind)
    part = tv.Context(cp=4, kind=kind).part(W)
    forward, backward = operations(one, part, 8, 8)
    whole = attention(W.batch, 8, W.seq, W.head_size, W.itemsize)
    for steps, all_of_it in zip((forward, backward), whole):
        mine = sum(o.flops for o in steps if isinstance(o, Kernel))
        assert 4 * mine == all_of_it.flops


FORMS = [{"kind": kind} for kind in KINDS] + [{"kind": kind, "ulysses": 2} for kind in KINDS[:3]]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(
    "make",
    [
        lambda c: c,
        lambda c: tv.Megatron(tp=2, sp=True) * c,
        lambda c: c * tv.DataParallel(dp=2, zero=3),
        lambda c: c * tv.DataParallel(dp=2, zero=1, accumulation=2),
    ],
)
def test_predicted_as_simulated(form, make):
    strategy = make(tv.Context(cp=2, **form))
    predicted, simulated = tv.predict(strategy, LONG, BOX), tv.simulate(strategy, LONG, BOX)
    # buckets of gradients in flight share links with attention's all-to-alls, which formulas omit
    near = 1e-3 if "dp" in strategy.axes and "ulysses" in form.values() | form.keys() else 1e-9
    assert simulated.step_time == pytest.approx(predicted.step_time, rel=near)


def test_stages_of_a_ring_in_order_run_ahead():
    """Ranks that have less to do are early at the next stage, which the formula leaves out."""
    strategy = tv.Context(cp=2, kind="ring") * tv.Pipeline(pp=2)
    predicted, simulated = tv.predict(strategy, LONG, BOX), tv.simulate(strategy, LONG, BOX)
    assert simulated.step_time == pytest.approx(predicted.step_time, rel=5e-3)


def test_ledger_by_hand():
    """A layer's messages, and the sum of all gradients."""
    one, item = W.one_layer, 4
    rows = {
        (r.collective, r.phase): (r.count, r.payload_bytes)
        for r in tv.Context(cp=4).ledger(one).rows
        if r.axis == "cp"
    }
    keys = ring_bytes(one, 4) // 3
    assert keys == 2 * 4 * 4 * 32 * item
    assert rows == {
        ("send", "forward"): (3, 3 * keys),
        ("recv", "forward"): (3, 3 * keys),
        ("send", "backward"): (7, 7 * keys),
        ("recv", "backward"): (7, 7 * keys),
        ("all_reduce", "sync"): (1, one.num_parameters * item),
    }
    both = tv.Context(cp=2, ulysses=2).ledger(one).rows
    exchanged = 2 * keys  # queries, keys and values, and the results
    assert {(r.axis, r.collective, r.phase): (r.count, r.payload_bytes) for r in both} == {
        ("cp", "send", "forward"): (1, keys),
        ("cp", "recv", "forward"): (1, keys),
        ("cp", "send", "backward"): (3, 3 * keys),
        ("cp", "recv", "backward"): (3, 3 * keys),
        ("ulysses", "all_to_all", "forward"): (2, exchanged),
        ("ulysses", "all_to_all", "backward"): (2, exchanged),
        ("cp*ulysses", "all_reduce", "sync"): (1, one.num_parameters * item),
    }
    ulysses = tv.Context(cp=4, kind="ulysses").ledger(one).rows
    sent = [r.wire_bytes for r in ulysses if (r.collective, r.phase) == ("all_to_all", "forward")]
    assert sent == [ulysses_bytes(one, 4)]


@pytest.mark.parametrize("zero", range(4))
def test_buckets_of_one_replica_do_not_wait_for_the_ring(zero):
    """Their queue is not the ring's, although the ranks are the same: a pass of the ring goes on
    while gradients are summed, in the formula and in the program."""
    strategy = tv.Context(cp=4) * tv.DataParallel(dp=1, zero=zero, bucket_mb=0.05)
    w, box = replace(W, layers=3, hidden=64, seq=32), tv.clusters.nvlink_pairs(4)
    box = box.scale_model(hidden=64)
    assert {r.axis for r in strategy.ledger(w) if r.phase == "sync"} == {"dp*cp"}
    simulated = tv.simulate(strategy, w, box, contention=False).step_time
    assert tv.predict(strategy, w, box).step_time == pytest.approx(simulated, rel=1e-9)


def test_replicas_of_batch_and_sequences_are_one_group():
    both = tv.Context(cp=2, ulysses=2) * tv.DataParallel(dp=2, zero=1)
    assert both.replicas == ("dp*cp*ulysses", 8)
    made = tv.Context(cp=2) * tv.DataParallel(dp=2, zero=1)
    assert made.replicas == ("dp*cp", 4)
    assert {r.axis for r in made.ledger(W).rows if r.collective == "reduce_scatter"} == {"dp*cp"}
    alone = tv.DataParallel(dp=4, zero=1).memory(W)["optimizer"]
    assert made.memory(W)["optimizer"] == alone


def test_every_form_is_tried():
    """Each kind with Ulysses over any part of the ranks, once; a search leaves out "ring"."""
    forms = [(s.cp, s.kind, s.ulysses) for s in tv.Context.space(W, 4)]
    rings = [(4 // n, kind, n) for kind in KINDS[:3] for n in (1, 2)]
    assert sorted(forms) == sorted([*rings, (4, "ulysses", 1)])
    assert [(s.cp, s.kind, s.ulysses) for s in tv.Context.space(W, 1)] == [(1, "zigzag", 1)]
    factors = [f for made in tv.Context.layouts(W, 8) for f in made.factors]
    found = {(f.cp, f.kind, f.ulysses) for f in factors if isinstance(f, tv.Context)}
    assert {(2, "zigzag", 2), (2, "all_gather", 4), (8, "ulysses", 1)} < found
    assert "ring" not in {kind for _, kind, _ in found}


def test_the_last_rank_of_a_ring_in_order_sets_the_pace():
    """It has a block in each position; the others wait for it."""
    ring, zigzag = (tv.predict(tv.Context(cp=4, kind=k), LONG, BOX) for k in ("ring", "zigzag"))
    assert zigzag.step_time < ring.step_time
    work = [
        sum(o.flops for p, _ in flat(tv.Context(cp=4, kind=k).step(LONG)) for o in p.operations
            if isinstance(o, Kernel))
        for k in ("ring", "zigzag")
    ]  # fmt: skip
    assert work[0] > work[1]


def test_bfloat16_runs():
    half = tv.GPT(**{**vars(LLAMA), "dtype": "bfloat16"})
    losses = [
        tv.run(s, half, steps=2, warmup=0).meta["losses"]
        for s in (tv.Context(cp=2), tv.Context(cp=2, kind="all_gather"), tv.DataParallel(dp=2))
    ]
    assert losses[0] == pytest.approx(losses[2], rel=2e-2)
    assert losses[1] == pytest.approx(losses[2], rel=2e-2)


@pytest.mark.parametrize("cp", [2, 64])
def test_factors_that_share_the_batch_themselves_are_counted_in_16_bits(cp):
    """No data parallelism is put around them, when parts of sequences are counted as sequences."""
    plan = tv.AxoNN(x=4, z=2, gather="block", accumulation=2) * tv.Context(cp=cp)
    same = tv.Megatron(tp=4) * tv.Context(cp=cp) * tv.DataParallel(dp=2, zero=2, accumulation=2)
    workload = tv.models.llama3("8B", layers=4, batch=16)
    box = tv.clusters.as_run_by(tv.clusters.dgx("H100-SXM-80GB", plan.world_size), "Megatron-LM")
    held, others = (need(s, workload, box) for s in (plan, same))
    assert held["activations"] == others["activations"]
    assert held["parameters"] == others["parameters"]
    assert tv.predict(plan, workload, box).fits


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: tv.Context(kind="star"), "use 'zigzag', 'ring', 'all_gather' or 'ulysses'"),
        (lambda: tv.Context(cp=2) * tv.Context(cp=2), "one Context"),
        (lambda: tv.Merak() * tv.Megatron(), "Merak is a product of blocks, pipeline and data"),
        (lambda: tv.AxoNN(clip=1.0) * tv.Context(cp=2), "use clip=0.0"),
        (lambda: tv.Context(inner=3), "multiply the factors"),
        (lambda: tv.Context(2, "ulysses", 2), "use cp=4 without ulysses=2, or kind='zigzag'"),
        (
            lambda: tv.AxoNN(x=2) * tv.Context(cp=2) * tv.DataParallel(dp=2, zero=1),
            r"AxoNN shares the batch itself: use AxoNN\(data=2\)",
        ),
        (
            lambda: tv.Megatron(accumulation=2) * tv.Context(accumulation=4),
            "accumulation=4 around accumulation=2",
        ),
    ],
)
def test_what_does_not_multiply_says_why(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: tv.Context(cp=3), r"seq=16 .* 2\*cp=6: use 2\*cp=4 or 8, or seq=12 or 18"),
        (lambda: tv.Context(cp=3, kind="ring"), "seq=16 .* cp=3: use cp=2 or 4, or seq=15 or 18"),
        (
            lambda: tv.Context(cp=16, kind="ulysses"),
            "heads=8 does not split evenly over cp=16: use cp=8",
        ),
        (
            lambda: tv.Megatron(tp=4) * tv.Context(cp=4, kind="ulysses"),
            r"heads=8 .* cp\*tp=16: use heads=16",
        ),
        (
            lambda: tv.Context(cp=1, ulysses=16),
            "heads=8 does not split evenly over ulysses=16: use ulysses=8, or heads=16",
        ),
        (
            lambda: tv.Megatron(tp=2) * tv.Context(ulysses=8, cp=1),
            r"heads=8 .* ulysses\*tp=16: use heads=16",
        ),
        (lambda: tv.Context(cp=3, ulysses=2), r"seq=16 .* 2\*cp\*ulysses=12: use .*seq=12 or 24"),
        (
            lambda: tv.Context(cp=3, ulysses=2, kind="ring"),
            r"seq=16 .* cp\*ulysses=6: use cp\*ulysses=4 or 8, or seq=12 or 18",
        ),
        (
            lambda: tv.Megatron(tp=8, sp=True) * tv.Context(cp=4),
            "seq=16 over cp=4 leaves 4, which does not split evenly over tp=8",
        ),
        (lambda: tv.Context(cp=2) * tv.Pipeline(pp=2, subpipeline=1), "not those of"),
    ],
)
def test_sizes_that_do_not_fit_say_what_does(make, message):
    with pytest.raises(ValueError, match=message):
        make().check(W)


def test_fewer_heads_of_keys_than_ranks():
    with pytest.raises(ValueError, match="kv_heads=4 does not split evenly over cp=8: use cp=4"):
        tv.Context(cp=8, kind="ulysses").check(LLAMA)


def test_merak_is_its_product_with_context():
    plan = tv.Merak(pp=2, tp=2, dp=2, microbatches=2, schedule="1f1b", zero=1, sp=True)
    cut = tv.Context(cp=2, kind="all_gather")
    made = plan * cut
    factors = tv.Megatron(tp=2, sp=True), tv.Pipeline(pp=2, microbatches=2, recompute="full")
    assert made == factors[0] * cut * factors[1] * tv.DataParallel(dp=2, zero=1) == cut * plan
    without, again = apart(made, tv.Context)
    assert as_merak(without) == plan and again == cut
    assert apart(plan, tv.Context) == (plan, None)


@pytest.mark.parametrize("make", [lambda c: c, lambda c: tv.Megatron(tp=2) * c])
@pytest.mark.parametrize("around", [1, tv.DataParallel(dp=2, zero=3)])
def test_what_is_left_without_it_accumulates_and_recomputes_as_before(make, around):
    knobs = {"accumulation": 2, "recompute": "full"}
    made = make(tv.Context(cp=2, **knobs))
    made = made * around if around != 1 else made
    without, cut = apart(made, tv.Context)
    assert cut == tv.Context(cp=2)
    assert without.accumulation == 2 and without.inside.recompute == "full"
    assert without.axes == {a: n for a, n in {"dp": 1, **made.axes}.items() if a != "cp"}
    w = tv.GPT(**{**vars(LONG), "dtype": "bfloat16"})
    real = tv.clusters.as_run_by(tv.clusters.dgx("H100-SXM-80GB", 8))
    plain = make(tv.Context(cp=2, accumulation=2))
    plain = plain * around if around != 1 else plain
    assert need(made, w, real)["activations"] < need(plain, w, real)["activations"]


@pytest.mark.parametrize("order", ["", "dp-cp-tp"])
def test_what_a_rank_keeps_under_zero_3_is_drawn_over_both_axes(order):
    """Where it is in its group of dp and cp is the part that it keeps."""
    made = tv.Megatron(tp=2) * tv.Context(cp=2) * tv.DataParallel(dp=2, zero=3)
    made = made.with_order(order) if order else made
    mesh = tv.Mesh(made.axes)
    for rank in range(8):
        place = mesh.group(rank, "dp*cp").index(rank)
        assert mesh.index_along(mesh.coords(rank), "dp*cp") == place
    view = tv.MeshView(mesh, ownership=ownership(made, W))
    [weight] = [p for p in view.scene["parameters"] if p["name"] == "blocks.0.mlp.up.weight"]
    assert sum(share(weight, rank) for rank in range(8)) == pytest.approx(1, abs=1e-5)


REFUSED = [
    (
        tv.Context(cp=2, accumulation=3),
        W,
        "batch=4 does not split evenly over accumulation=3: "
        "use accumulation=2 or 4, or batch=3 or 6",
    ),
    (
        tv.Context(cp=2),
        replace(W, seq=18, documents=(9, 9)),
        "seq=18 does not split evenly over 2*cp=4: use 2*cp=2 or 6",
    ),
    (
        tv.Context(cp=2) * tv.DataParallel(dp=2),
        replace(W, seq=7),
        "seq=7 does not split evenly over 2*cp=4: use seq=4 or 8",
    ),
]


@pytest.mark.parametrize("strategy, w, message", REFUSED, ids=lambda x: getattr(x, "short", ""))
def test_advice_works(strategy, w, message):
    with pytest.raises(ValueError) as error:
        strategy.check(w)
    assert str(error.value) == message


def test_advice_on_a_factor_is_tried_with_those_around_it():
    """Four heads fit the mesh alone, and not the exchange of heads around it."""
    made = tv.ATP(mesh=(1, 2)) * tv.Context(cp=1, ulysses=3)
    w = replace(W, heads=5, hidden=60, seq=12)
    with pytest.raises(ValueError, match=r"heads=5 .* d1\*d2=2: use ") as error:
        made.check(w)
    assert "heads=4" not in str(error.value)
    for around in (tv.Context(cp=2), tv.DataParallel(dp=2), tv.Pipeline(pp=2)):
        product = tv.ATP(mesh=(2, 2)) * around
        meshes = [make().axes for make in product.variants("d1*d2", 2)]
        assert meshes and all(axes["d1"] * axes["d2"] == 2 for axes in meshes)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: SequenceCut(2, "ring").chunks(5), "rank=5 is too large: .* is 1"),
        (lambda: SequenceCut(2, "zigzag").work((3, 6)), "seq=9 does not split"),
        (lambda: SequenceCut(2, "zigzag").restored(torch.arange(10)[None]), "seq=10 does not"),
        (lambda: tv.Custom({"cp": 2}, print, chunks={"cp": 5}), "chunks of cp must be numbers"),
        (
            lambda: tv.Custom({"cp": 2}, print, chunks={"cp": "0312"}),
            "chunks of cp must be numbers",
        ),
        (lambda: tv.Custom({"cp": 2}, print, chunks={"cp": (0.0, 1.0)}), "chunks of cp must be"),
        (lambda: tv.Custom({"cp": 2}, print, chunks={"cp": (True, False)}), "not True"),
        (lambda: tv.Custom({"cp": 2}, print, chunks=(0, 3, 1, 2)), "use chunks={'cp': ...}"),
        (lambda: replace(W, documents={5, 11}), "documents must be lengths"),
        (lambda: replace(W, documents=(5.0, 11.0)), "documents must be lengths"),
        (lambda: tv.reference_model(W, attention=3), "attention=3 is no function"),
        (lambda: tv.reference_model(W, [0, 1]), "tensor of int64"),
        (
            lambda: tv.reference_model(replace(W, documents=(5, 11)), torch.arange(8)),
            "give reference_model an attention",
        ),
        (lambda: tv.Context(cp=2) * tv.Context(cp=2), r"combine Context\(cp=2\) with Context"),
    ],
)
def test_what_is_no_part_says_what_is(make, message):
    with pytest.raises(ValueError, match=message):
        make()
