"""The film of a block is the program's own: bytes, FLOPs, layouts; and its pictures."""

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from math import prod

import pytest

import tpviz as tv
from tpviz.core.step import Kernel
from tpviz.schemes.gpt.step import BLOCK
from tpviz.schemes.grid.step import pieces
from tpviz.views.figures import blocks as figure
from tpviz.views.figures.blocks_matrix import plain
from tpviz.views.figures.film import film_svg
from tpviz.views.widgets.blocks import story

W = tv.GPT(layers=1, hidden=64, heads=16, seq=32, batch=8)
SHAPES = [(a, n // a) for n in (1, 2, 4, 8, 16) for a in (1, 2, 4, 8, 16) if a <= n]
KNOBS = {
    "plain": {},
    "A1": {"attention": "A1"},
    "L2": {"norm": "L2"},
    "sp": {"sp": True},
    "all": {"attention": "A1", "norm": "L2", "sp": True, "chunks": 4},
    "chunks": {"chunks": 2},
    "tokens": {"chunks": 4, "chunking": "tokens"},
    "many": {"chunks": 64, "chunking": "tokens"},
    "pipelined": {"chunks": 4, "chunking": "pipelined"},
    "long": {"chunks": 16, "chunking": "pipelined", "norm": "L2"},
}
EVERY = {
    f"{a} x {b}": [
        tv.ATP(mesh=(a, b), order=order, **knobs)
        for order in ("column", "row")
        for knobs in KNOBS.values()
    ]
    for a, b in SHAPES
}
EVERY["Megatron"] = [
    tv.Megatron(tp=tp, **knobs) for tp in (1, 2, 8) for knobs in ({}, {"sp": True}, {"chunks": 4})
]
SVG = "{http://www.w3.org/2000/svg}"


def short(strategy):
    return strategy.short


def one_block(strategy):
    """{axis: bytes sent by a block}: what a model of two blocks sends more than one of one."""
    found = {}
    for axis in strategy.axes:
        of = [
            sum(
                row.wire_bytes
                for row in strategy.ledger(replace(W, layers=n))
                if row.axis == axis and row.phase != "sync"
            )
            for n in (1, 2)
        ]
        found[axis] = of[1] - of[0]
    return found


def flops_of(op):
    if isinstance(op, Kernel):
        return op.flops
    own = sum(field.flops for field in op if isinstance(field, Kernel))
    return own * getattr(op, "count", 1) if not callable(getattr(op, "count", 1)) else own


@pytest.mark.parametrize("shape", EVERY)
def test_the_film_is_the_programs_own(shape):
    for strategy in EVERY[shape]:
        film = story(strategy, W)
        sent = figure.running(film)[-1]
        assert sent == pytest.approx(one_block(strategy), rel=1e-12), strategy
        tensors_have_the_sizes_of_kernels_and_collectives(film)
        at = strategy.layout
        flops = sum(flops_of(op) for part in BLOCK for op in pieces(at, W)[part])
        assert sum(figure.work(frame)[0] for frame in film.frames) == flops, strategy
        it_ends_in_the_layout_in_which_it_began(at, film.frames)


def tensors_have_the_sizes_of_kernels_and_collectives(film):
    sizes = film.mesh.axes
    for frame in film.frames:
        if len(frame.product) == 3:
            (m, k), (inner, n) = (t.local(sizes) for t in frame.product[:2])
            count = frame.chunk[1] if frame.chunk else 1
            assert k == inner
            assert frame.product[2].local(sizes) == (m, n)
            assert frame.kernels[0].flops * count == 2 * m * k * n
        if frame.move:
            chunks = frame.moved_chunk[1] if frame.moved_chunk else 1
            moved = prod(figure.payload_of(frame).local(sizes))
            assert moved // chunks * 4 == frame.move.payload
            assert frame.moving[0].partial in ("", frame.move.axis)


def it_ends_in_the_layout_in_which_it_began(at, frames):
    """And every weight's gradient lies as the weight does."""
    stream = ({at.inside} if at.sp else set()) | ({at.stream} if at.s > 1 and not at.l2 else set())
    for phase in ("forward", "backward"):
        last = [f for f in frames if f.phase == phase and (f.moving or f.product)][-1]
        if last.layer.startswith("norm") and last.moving[0].cols.letters == "2":
            last = [f for f in frames if f.layer in ("down", "qkv") and f.phase == phase][-1]
        result = last.moving[1] if last.moving else last.product[-1]
        if result.name == "dW":
            continue
        assert set(result.axes) == stream, last
    weights = {
        f.layer: f.product[1] for f in frames if f.phase == "forward" and len(f.product) == 3
    }
    assert set(weights) == {"qkv", "out", "up", "down"}
    for frame in frames:
        if frame.product and frame.product[-1].name == "dW":
            assert frame.product[-1][1:3] == weights[frame.layer][1:3]


def test_the_walk_by_hand_on_two_by_two():
    """Column order, A3: the table of the module `step`, line by line."""
    found = story(tv.ATP(mesh=(2, 2)), W)
    lines = [(f.layer, figure.sentence(f)) for f in found.frames if f.phase == "forward"]
    qkv = (
        "LN(X)[T, H_d2] · W[H_d2, 3H_d1] → QKV[T, 3H_d1] partial over d2 → reduce-scatter over "
        "d2 → QKV[T, 3H_d1d2]"
    )
    assert lines[1:4] == [
        ("qkv", qkv),
        ("qkv", qkv),
        ("core", "QKV[T, 3H_d1d2] → attention → A[T, H_d1d2]"),
    ]
    assert lines[4] == ("out", "A[T, H_d1d2] → all-gather over d2 → A[T, H_d1]")
    assert lines[5][1] == (
        "A[T, H_d1] · W[H_d1, H_d2] → Z[T, H_d2] partial over d1 → all-reduce over d1 → Z[T, H_d2]"
    )
    words = [figure.symbols(f) for f in found.frames if f.move]
    assert words == [
        "2bs",
        "3bsh/d1",
        "bsh/d1",
        "bsh/d2",
        "2bs",
        "4bsh/d1",
        "bsh/d2",
        "4bsh/d1",
        "bsh/d2",
        "2bs",
        "bsh/d1",
        "3bsh/d1",
        "bsh/d2",
        "2bs",
    ]
    row = story(tv.ATP(mesh=(2, 2), order="row"), W)
    swap = {"d1": "d2", "d2": "d1"}
    assert [re.sub("d[12]", lambda m: swap[m[0]], figure.sentence(f)) for f in row.frames] == [
        figure.sentence(f) for f in found.frames
    ]


def test_sequence_parallelism_cuts_rows_and_chunks_say_their_part():
    frames = story(tv.ATP(mesh=(2, 2), sp=True, chunks=2), W).frames
    assert plain(frames[1].moving[0]) == "LN(X)[T_d1, H_d2]"
    both = next(f for f in frames if f.chunk and f.move)
    assert (both.chunk, both.moved_chunk) == ((1, 2, 2), (0, 2, 2))
    assert figure.symbols(both) == "3bsh/(2 d1)"
    assert "(chunk 2 of 2) while reduce-scatter of chunk 1 over d2" in figure.does(both)


def test_many_chunks_share_a_frame():
    for knobs in ("many", "long"):
        frames = story(tv.ATP(mesh=(4, 2), **KNOBS[knobs]), W).frames
        assert len(frames) < 50
        assert any("such steps, shown as one" in f.words for f in frames)


# -- pictures --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "strategy",
    [
        tv.ATP(),
        tv.ATP(mesh=(4, 4), sp=True, chunks=2),
        tv.ATP(mesh=(16, 1)),
        tv.ATP(mesh=(1, 16), norm="L2"),
        tv.Megatron(tp=8),
    ],
    ids=short,
)
def test_every_frame_is_well_formed_and_inside(strategy):
    scene = figure.blocks_scene(story(strategy, W), strategy.world_size - 1)
    assert json.loads(json.dumps(scene)) == scene
    for step in range(len(scene["frames"])):
        root = ElementTree.fromstring(film_svg(scene, step, "light"))
        for node in root.iter(f"{SVG}rect"):
            x, width = float(node.get("x")), float(node.get("width"))
            assert -3 <= x <= x + width <= scene["width"] + 3
    for theme in ("dark", "auto", "page"):
        ElementTree.fromstring(film_svg(scene, 0, theme))


def test_groups_are_ringed_partial_sums_are_sheets_and_ranks_of_blocks_named():
    found = story(tv.ATP(mesh=(4, 2)), W)
    scene = figure.blocks_scene(found, 3)
    for number, frame in enumerate(found.frames):
        rings = scene["frames"][number].count("tpv-flow")
        assert rings == (len(found.mesh.groups(frame.move.axis)) if frame.move else 0)
        tensors = frame.product + frame.moving
        sheer = "data-partial" in scene["frames"][number]
        assert sheer == any(t.partial for t in tensors)
    texts = set(re.findall(r">(\d(?:,\d)*)<", scene["frames"][1]))
    assert {*map(str, range(8)), "0,2,4,6", "1,3,5,7"} <= texts
    many = figure.blocks_scene(story(tv.ATP(mesh=(8, 2)), tv.GPT(hidden=64, heads=16)), 0)
    assert ">8 ranks<" in many["frames"][1]


def test_the_chosen_rank_has_its_own_blocks():
    scenes = [figure.blocks_scene(story(tv.ATP(), W), rank) for rank in range(4)]
    assert len({scene["frames"][1] for scene in scenes}) == 4
    assert figure.blocks_scene(story(tv.ATP(), W), 2) == scenes[2]


def test_table_and_words():
    found = story(tv.ATP(), W)
    head, *rows = figure.to_table(found)
    assert (len(rows), head[-2:]) == (len(found.frames), ["sent over d1", "sent over d2"])
    sums = [sum(float(row[i].replace(",", "")) for row in rows) for i in (-2, -1)]
    assert sums == pytest.approx(list(one_block(tv.ATP()).values()), rel=1e-5)
    assert "Rank 1 is at d1 0, d2 1." in (figure.describe(found, 1))


def test_what_cannot_be_shown():
    with pytest.raises(ValueError, match=r"mesh 8 x 4 has 32 ranks: this view shows at most 16"):
        figure.blocks_scene(story(tv.ATP(mesh=(8, 4), attention="A1"), W))
    with pytest.raises(ValueError, match=r"rank 4 is not in this mesh of 4: use 0 to 3"):
        figure.blocks_scene(story(tv.ATP(), W), 4)
    scene = figure.blocks_scene(story(tv.ATP(), W))
    with pytest.raises(ValueError, match=r"step=24 is not in this view: use 0 to 23"):
        film_svg(scene, 24)


def test_the_scrubber_leads_to_each_layer_and_names_all():
    film = story(tv.ATP(mesh=(2, 2)), W)
    scene = figure.blocks_scene(film)
    firsts = [i for i, f in enumerate(film.frames) if not i or film.frames[i - 1][:2] != f[:2]]
    assert re.findall(r"data-step='(\d+)'", scene["common"]) == [str(i) for i in firsts]
    for name in ("LN1", "qkv", "core", "out", "LN2", "up", "down"):
        assert scene["common"].count(f">{name}<") == 2  # forward and backward
    assert "<title>forward, queries, keys and values: from step 2</title>" in scene["common"]
    assert re.findall(r"role='group' aria-label='(\w+)'", scene["common"]) == [
        "forward",
        "backward",
    ]


@pytest.mark.parametrize("strategy", [tv.ATP(mesh=(2, 2)), tv.ATP(mesh=(2, 4))], ids=short)
def test_every_sheet_of_a_sum_names_its_ranks(strategy):
    """And what stands under a matrix that is cut is a block's size, not the matrix's."""
    found = story(strategy, W)
    number = next(i for i, f in enumerate(found.frames) if f.product and f.product[-1].partial)
    drawn = figure.blocks_scene(found)["frames"][number]
    sheets = re.findall(r"<g transform='translate\(0,0\)'>(.*?)</g>", drawn)
    assert len(sheets) == strategy.axes[found.frames[number].product[-1].partial] - 1
    behind = [set(re.findall(r">(\d)</text>", sheet)) for sheet in sheets]
    front = {"0", str(strategy.axes["d2"])}
    assert set().union(*behind) == {str(rank) for rank in range(strategy.world_size)} - front
    assert f">rank 0: 256 × {64 // strategy.axes['d2']}</text>" in drawn


def test_sheets_fall_together_where_they_are_reduced():
    film = story(tv.ATP(mesh=(2, 2)), W)
    scene = figure.blocks_scene(film)
    for frame, picture in zip(film.frames, scene["frames"]):
        falls = picture.count("data-path='[0, 0, -8.0, 8.0, -16, 16]'")
        assert falls == sum(bool(t.partial) for t in frame.moving)
