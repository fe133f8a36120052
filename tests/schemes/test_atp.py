"""ATP on 2D meshes equals one process in float64, sends what the formula says to the byte, and
refuses what cannot be."""

import re
from dataclasses import replace
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import TINY, UNTIED, assert_equal, captured, named
from together import together

import tpviz as tv
from tpviz.schemes.strategy import gradient_ready_order

MESHES = [(d1, n // d1) for n in (1, 2, 4, 8) for d1 in (1, 2, 4, 8) if n % d1 == 0]
ORDERS = ("column", "row")
# The whole product of these is in bench/sweep_atp.py; here knobs and meshes meet in turn.
KNOBS = [
    {},
    {"attention": "A1"},
    {"sp": True},
    {"chunks": 2},
    {"chunks": 8, "sp": True},
    {"norm": "L2"},
    {"attention": "A1", "sp": True, "chunks": 4},
    {"chunks": 4, "chunking": "pipelined"},
    {"chunks": 32, "chunking": "tokens"},
    {"norm": "L2", "sp": True, "attention": "A1"},
]
PLACES = [
    *((mesh, order) for mesh in MESHES for order in ORDERS if 1 < prod(mesh) < 8),
    ((1, 1), "column"),
    ((4, 2), "column"),
    ((2, 4), "row"),
]
CASES = [
    (
        tv.ATP(mesh=mesh, order=order, **KNOBS[k % len(KNOBS)]),
        (TINY, UNTIED)[k // 2 % 2],
    )
    for k, (mesh, order) in enumerate(PLACES)
]
CHUNKS = [
    (tv.ATP(mesh=(2, 2), chunks=chunks, sp=chunks % 2 == 0), replace(TINY, batch=chunks))
    for chunks in (3, 6)
]
INSIDE = [{}, {"sp": True}, {"chunks": 4}, {"norm": "L2"}]
COMPOSED = [
    (
        tv.ATP(mesh=mesh, order=ORDERS[zero % 2], **INSIDE[zero])
        * tv.DataParallel(dp=2, zero=zero, bucket_mb=0.01),
        (TINY, UNTIED)[zero // 2],
    )
    for zero, mesh in enumerate([(2, 1), (1, 2), (2, 1), (2, 2)])
]


@pytest.mark.parametrize("strategy, workload", CASES, ids=named)
def test_equals_one_process(strategy, workload):
    assert_equal(strategy, workload, among=CASES + CHUNKS + COMPOSED)


@pytest.mark.parametrize("strategy, workload", CHUNKS, ids=named)
def test_any_number_of_chunks(strategy, workload):
    assert_equal(strategy, workload, among=CASES + CHUNKS + COMPOSED)


@pytest.mark.parametrize("strategy, workload", COMPOSED, ids=named)
def test_inside_data_parallelism(strategy, workload):
    assert_equal(strategy, workload, among=CASES + CHUNKS + COMPOSED)


def test_odd_sizes_and_three_steps():
    odd = tv.GPT(layers=2, hidden=18, heads=6, seq=6, batch=3, vocab=33, mlp_ratio=3)
    both = [
        (tv.ATP(mesh=(3, 2), sp=True), odd),
        (tv.ATP(mesh=(2, 3), order="row", chunks=3), odd),
    ]
    for strategy, workload in both:
        assert_equal(strategy, workload, steps=3, among=both)


def trained(strategy, workload, **more):
    """`run` with nothing but the training."""
    return tv.run(strategy, workload, memory=False, progress=False, **more)


def test_chunks_change_no_number():
    """A row of a product is summed in the same order whatever rows are beside it; the pipeline
    computes GELU a second time."""
    plain = tv.ATP(mesh=(2, 2))
    ways = [replace(plain, chunks=4, chunking=how) for how in ("batch", "tokens", "pipelined")]
    runs = together(lambda s: trained(s, TINY, steps=2), [plain, *ways])
    losses = {s: run.meta["losses"] for s, run in runs.items()}
    assert losses == dict.fromkeys(losses, losses[plain])


# -- what is sent --------------------------------------------------------------------------------
TABLE = {
    (8, 1): (7, 0),
    (4, 2): (3, 3),
    (2, 4): (1, 9),
    (1, 8): (0, 21),
    (4, 1): (6, 0),
    (2, 2): (2, 6),
    (1, 4): (0, 18),
}
"""Elements on the wire per rank and block, in b s h: over d1, over d2 (order column, A1 and A3)."""


def block_volumes(mesh, order, ledgers):
    """Elements of one more block over its d1 and d2, in b s h, from the ledgers without and with
    it."""
    names = ("d1", "d2") if order == "column" else ("d2", "d1")
    bsh = SEQUENCE.batch * SEQUENCE.seq * SEQUENCE.hidden * SEQUENCE.itemsize
    # LayerNorm's two norms a block, two sums of two numbers a token each way, float32
    tokens = SEQUENCE.batch * SEQUENCE.seq
    statistics = 4 * 2 * tokens * 4 * 2 * (mesh[1] - 1) / mesh[1]
    d1, d2 = (ledgers[1].total(axis=a)[2] - ledgers[0].total(axis=a)[2] for a in names)
    return d1 / bsh, (d2 - statistics) / bsh


SEQUENCE = replace(TINY, seq=16)
DEEPER = replace(SEQUENCE, layers=3)


@pytest.mark.parametrize("attention", ["A3", "A1"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mesh", TABLE)
def test_volumes_of_a_block(mesh, order, attention):
    """The table, predicted."""
    own = mesh if order == "column" else mesh[::-1]
    strategy = tv.ATP(mesh=own, order=order, attention=attention)
    volumes = block_volumes(mesh, order, [strategy.ledger(w) for w in (SEQUENCE, DEEPER)])
    assert volumes == pytest.approx(TABLE[mesh], rel=1e-12)


@pytest.mark.parametrize("order", ORDERS)
def test_volumes_of_a_block_captured_and_run(order):
    """On one mesh: that other meshes send what is predicted, `tv.verify` has seen above."""
    strategy = tv.ATP(mesh=(2, 2), order=order)
    runs = together(lambda w: trained(strategy, w, steps=1), [SEQUENCE, DEEPER])
    for ledgers in (
        [tv.capture(strategy, w).trace(0).ledger() for w in (SEQUENCE, DEEPER)],
        [run.ledger(step=0) for run in runs.values()],
    ):
        volumes = block_volumes((2, 2), order, ledgers)
        assert volumes == pytest.approx(TABLE[2, 2], rel=1e-12)


def test_ledgers_of_run_and_capture_are_the_formulas():
    strategies = [tv.ATP(mesh=(2, 2), **knobs) for knobs in KNOBS]
    runs = together(lambda s: trained(s, TINY, steps=1), strategies)
    for strategy, run in runs.items():
        expected = strategy.ledger(TINY)
        assert captured(strategy, TINY).trace(0).ledger() == expected
        assert run.ledger(step=0) == expected


@pytest.mark.parametrize("ratio, dtype", [(1, "bfloat16"), (3, "float64")])
def test_ledger_of_one_layer_and_any_ratio(ratio, dtype):
    """With an MLP as wide as the stream, down has the sizes of out, but gathers nothing."""
    w = replace(UNTIED, layers=1, mlp_ratio=ratio, dtype=dtype)
    for strategy in (
        tv.ATP(mesh=(2, 2)),
        tv.ATP(mesh=(2, 4), order="row", norm="L2"),
        tv.ATP(mesh=(1, 4), chunks=4, chunking="pipelined"),
    ):
        assert tv.capture(strategy, w).trace(0).ledger() == strategy.ledger(w)


def test_one_axis_is_megatron():
    for knobs in ({}, {"sp": True}):
        theirs = tv.Megatron(tp=4, **knobs)
        for ours in (tv.ATP(mesh=(4, 1), **knobs), tv.ATP(mesh=(1, 4), order="row", **knobs)):
            rows = [row[1:] for row in ours.ledger(TINY)]
            assert rows == [row[1:] for row in theirs.ledger(TINY)]
            assert ours.memory(TINY) == theirs.memory(TINY)


@pytest.mark.parametrize("workload", [TINY, UNTIED], ids=["tied", "untied"])
def test_gradients_arrive_as_in_one_process_where_there_is_one(workload):
    one = tv.DataParallel(dp=2, zero=0, bucket_mb=0.001)
    for knobs in ({}, {"sp": True, "norm": "L2"}, {"chunks": 4, "chunking": "pipelined"}):
        strategy = tv.ATP(mesh=(1, 1), **knobs)
        order = gradient_ready_order(tv.Megatron(tp=1), workload)
        assert gradient_ready_order(strategy, workload) == order
        assert (strategy * one).ledger(workload) == one.ledger(workload)


def test_released_norm_gathers_four_times_a_block():
    w = replace(TINY, layers=1)
    l1, l2 = (tv.ATP(mesh=(2, 2), norm=norm).ledger for norm in ("L1", "L2"))
    more = [(f(TINY).total(axis="d2")[2] - f(w).total(axis="d2")[2]) for f in (l1, l2)]
    statistics = 4 * 2 * TINY.batch * TINY.seq * 4
    bsh = TINY.batch * TINY.seq * TINY.hidden * 4
    assert more[1] - (more[0] - statistics) == 4 * bsh // 2


def test_chunks_are_labelled():
    trace = tv.capture(tv.ATP(mesh=(2, 2), chunks=4), TINY).trace(0)
    for layer, axis in (
        ("attention.qkv", "d2"),
        ("attention.out", "d1"),
        ("mlp.up", "d2"),
        ("mlp.down", "d1"),
    ):
        found = trace.select(kind="comm", layer=f"blocks.0.{layer}", phase="forward", axis=axis)
        assert [c for c in found["chunk"].tolist() if c >= 0] == [0, 1, 2, 3]


def test_ownership_names_what_a_rank_holds():
    from tpviz.schemes.ownership import local_shapes, ownership
    from tpviz.views.figures.mesh import mesh_scene

    strategy = tv.ATP(mesh=(2, 4))
    rows = ownership(strategy, TINY)
    notation = {r["name"].removeprefix("blocks.1."): r["notation"] for r in rows}
    assert notation["attention.qkv.weight"] == "W[3D_d1, D_d2]"
    assert notation["attention.out.weight"] == "W[D_d2, D_d1]"
    assert notation["attention.qkv.bias"] == "b[3D_d1d2]" and notation["norm1.weight"] == "b[D_d2]"
    held = local_shapes(strategy, TINY)
    assert held["blocks.0.attention.qkv.weight"] == (24, 4)
    assert held["blocks.0.attention.qkv.bias"] == (6,) and held["embed.token.weight"] == (16, 4)
    bias = next(
        p
        for p in mesh_scene(tv.Mesh(strategy.axes), rows)["parameters"]
        if p["name"] == "blocks.0.attention.qkv.bias"
    )
    places = [bias["blocks"][k]["box"][0] for k in bias["block_of"]]
    assert places == [rank / 8 for rank in range(8)]  # rank (i, j) has block 4 i + j


# -- the space -----------------------------------------------------------------------------------
def test_the_papers_space():
    w = replace(TINY, heads=8)
    assert [(s.mesh, s.order) for s in tv.ATP.meshes(w, 4)] == [
        ((4, 1), "column"),
        ((2, 2), "column"),
        ((2, 2), "row"),
        ((1, 4), "column"),
    ]
    assert [s.mesh for s in tv.ATP.meshes(w, 1)] == [(1, 1)]
    assert {s.attention for s in tv.ATP.meshes(replace(w, heads=4), 8)} == {"A1"}
    assert len(list(tv.ATP.meshes(w, 1024))) == 2 * 11 - 2
    assert {s.chunking for s in tv.ATP.space(replace(w, batch=3), 8) if s.chunks > 1} == {"tokens"}
    space = list(tv.ATP.space(w, 8))
    assert len(set(space)) == len(space) and {s.world_size for s in space} == {8}


# -- bad input -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "knobs, change, message",
    [
        (
            {"mesh": (4, 4)},
            {},
            "heads=8 does not split evenly over d1*d2=16: use d1*d2=8, or heads=16; "
            "or attention='A1'",
        ),
        (
            {"mesh": (16, 1), "attention": "A1"},
            {},
            "heads=8 does not split evenly over d1=16: use d1=8, or heads=16",
        ),
        ({"mesh": (3, 1)}, {}, "heads=8 does not split evenly over d1*d2=3: use d1*d2=2 or 4"),
        (
            {"mesh": (2, 3), "attention": "A1"},
            {},
            "hidden=16 does not split evenly over d2=3: use d2=2 or 4, or hidden=24",
        ),
        (
            {"mesh": (4, 2), "order": "row"},
            {"vocab": 33},
            "vocab=33 does not split evenly over d2=2: use d2=1, or vocab=32 or 34",
        ),
        (
            {"mesh": (2, 2), "sp": True},
            {"seq": 9},
            "seq=9 does not split evenly over d1=2: use d1=1, or seq=8 or 10",
        ),
        (
            {"chunks": 3},
            {},
            "batch=8 does not split evenly over chunks=3: use chunks=2 or 4, or batch=6 or 9",
        ),
        (
            {"chunks": 16},
            {},
            "batch=8 does not split evenly over chunks=16: use chunks=8, or batch=16",
        ),
        (
            {"chunks": 3, "chunking": "tokens"},
            {},
            "batch * seq=64 does not split evenly over chunks=3: "
            "use chunks=2 or 4, or batch * seq=48 or 72",
        ),
        (
            {"chunks": 2, "chunking": "tokens", "sp": True},
            {},
            "sp=True and chunking='tokens' are not "
            "possible together: use chunking='batch', or sp=False",
        ),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_are_named(knobs, change, message):
    workload, strategy = replace(TINY, **change), tv.ATP(**knobs)
    for ask in (
        strategy.check,
        strategy.ledger,
        lambda w: tv.run(strategy, w),
        lambda w: tv.verify(strategy, w),
    ):
        with pytest.raises(ValueError) as error:
            ask(workload)
        assert str(error.value) == message


@given(
    st.sampled_from([1, 2, 3, 4, 6, 8]),
    st.sampled_from([1, 2, 3, 5, 8]),
    st.sampled_from([4, 6, 9]),
    st.sampled_from([1, 3, 8]),
    st.sampled_from([30, 32, 33]),
    st.tuples(*[st.integers(1, 8)] * 2),
    st.sampled_from(ORDERS),
    st.sampled_from(["A3", "A1"]),
    st.booleans(),
    st.integers(1, 8),
)
def test_what_an_error_offers_is_possible(
    heads, size, seq, batch, vocab, mesh, order, attention, sp, chunks
):
    """Whatever value is taken, what follows is no error, or one that another knob is to blame for:
    no error about the value itself."""
    w = tv.GPT(hidden=heads * size, heads=heads, seq=seq, batch=batch, vocab=vocab)
    strategy = tv.ATP(mesh=mesh, order=order, attention=attention, sp=sp, chunks=chunks)
    before = _clashes(strategy, w)
    for name, value in _offers(strategy, w):
        if name == "d1*d2":  # of the meshes with so many ranks one at least
            tries = [(replace(strategy, mesh=(d, value // d)), w) for d in _divisors(value)]
        elif name in ("d1", "d2"):
            other = (value, mesh[1]) if name == "d1" else (mesh[0], value)
            tries = [(replace(strategy, mesh=other), w)]
        elif name in ("attention", "chunks"):
            tries = [(replace(strategy, **{name: value}), w)]
        else:
            tries = [(strategy, replace(w, **{name: value}))]
        assert any(_clashes(*one) < before for one in tries), (name, value)


def _offers(strategy, w):
    """[(knob, value)] of the message, if there is one."""
    try:
        strategy.check(w)
    except ValueError as error:
        head, _, offers = str(error).partition(": use ")
        assert "does not split" in head and offers
        found = [("attention", "A1")] if offers.endswith("; or attention='A1'") else []
        for name, values in re.findall(r"([a-z][a-z0-9*]*)=(\d+(?: or \d+)?)", offers):
            found += [(name, int(value)) for value in values.split(" or ")]
        return found
    return []


def _clashes(strategy, w):
    """What does not divide, said once more by hand."""
    at = strategy.layout
    parts = at.i * at.s if strategy.attention == "A3" else at.i
    bad = {
        "heads": w.heads % parts,
        "hidden": w.hidden % at.s,
        "vocab": w.vocab % at.i,
        "seq": strategy.sp and w.seq % at.i,
        "batch": w.batch % strategy.chunks,
    }
    return {name for name, rest in bad.items() if rest}


def _divisors(number):
    return [d for d in range(1, number + 1) if number % d == 0]


@pytest.mark.parametrize("mesh", [4, (2, 2, 2), "2x2", None])
def test_a_mesh_has_two_sizes(mesh):
    with pytest.raises(ValueError, match=r"must be two sizes \(d1, d2\)"):
        tv.ATP(mesh=mesh)


@pytest.mark.parametrize("mesh", [(0, 2), (2, -1), (2.5, 1), (True, 2)])
def test_sizes_of_the_mesh_are_whole_numbers(mesh):
    with pytest.raises(ValueError, match=r"d[12] of mesh"):
        tv.ATP(mesh=mesh)


def test_a_mesh_larger_than_the_cluster():
    with pytest.raises(ValueError, match="16 ranks do not fit the 8 devices"):
        tv.predict(tv.ATP(mesh=(8, 2), attention="A1"), TINY, tv.clusters.nvlink_pairs())
