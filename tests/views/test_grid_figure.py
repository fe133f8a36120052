"""The film of a block on AxoNN's grid is the program's own, and so are its pictures."""

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import product
from math import prod
from random import Random

import pytest

import tpviz as tv
from tpviz.core.step import Collective, Overlapped
from tpviz.schemes.axonn.step import GatherWeight, Scatter, parts
from tpviz.views.figures import blocks
from tpviz.views.figures.film import film_svg
from tpviz.views.films.captions import LAYERS
from tpviz.views.widgets.grid import story

W = tv.GPT(layers=3, hidden=64, heads=16, seq=8, batch=64)
GRIDS = [
    (x, y, z, n // (x * y * z))
    for n in (1, 2, 4, 8, 16)
    for x, y, z in product((1, 2, 4, 8, 16), repeat=3)
    if n % (x * y * z) == 0
]
KNOBS = {
    "all": {},
    "yxz": {"order": "yxz"},
    "dropped": {"keep": False},
    "none": {"overlap": ()},
    "again": {"recompute": True},
    "core": {"recompute": "selective"},
    "four": {"accumulation": 4},
    "oar": {"overlap": ("oar",), "recompute": True, "keep": False},
    "oag": {"overlap": ("oag",), "keep": False},
    "ors": {"overlap": ("ors",), "accumulation": 2, "order": "yxz"},
}
SVG = "{http://www.w3.org/2000/svg}"


def axonn(sizes, **knobs):
    return tv.AxoNN(**dict(zip(("x", "y", "z", "data"), sizes)), **knobs)


@pytest.fixture(params=KNOBS)
def some(request):
    """A sample of grids with these knobs."""
    sample = [(2, 2, 2, 2), (1, 1, 4, 1), *Random(request.param).sample(GRIDS, 8)]
    return [story(axonn(sizes, **KNOBS[request.param]), W) for sizes in sample]


def stands_for(frame):
    """The operation of the program that a frame is."""
    if frame.kernels and frame.moves:
        return Overlapped(*frame.moves, *frame.kernels)
    [operation] = frame.kernels + frame.moves
    if isinstance(operation, Collective) and operation.axis == "z":
        return {"all_gather": GatherWeight, "reduce_scatter": Scatter}[operation.collective](
            operation.payload
        )
    return operation


# -- the film --------------------------------------------------------------------------------------
def test_every_operation_of_a_block_has_one_frame_in_the_programs_order(some):
    for found in some:
        s = found.strategy
        program = [
            o
            for part in parts(s, W)
            for o in part.operations
            if part.layer.startswith("blocks.1.")
            and not (s.z == 1 and isinstance(o, GatherWeight | Scatter))
        ]
        shown = [stands_for(frame) for frame in found.frames if frame.phase != "sync"]
        assert shown * s.accumulation == program
        phases = [part.phase for part in parts(s, W) if part.layer.startswith("blocks.1.")]
        assert {f.phase for f in found.frames} - {"sync"} == set(phases)


def test_the_running_total_ends_at_the_ledger_of_a_block(some):
    """What a model of one block more sends, of its microbatches one; and the sums at the end."""
    for found in some:
        s, total = found.strategy, dict.fromkeys(found.mesh.names, 0)
        for sign, w in ((1, replace(W, layers=4)), (-1, W)):
            for row in s.ledger(w):
                share = 1 if row.phase == "sync" else s.accumulation
                total[row.axis.removesuffix("_ahead")] += sign * row.wire_bytes / share
        assert blocks.running(found)[-1] == pytest.approx(total, rel=1e-12)


def test_tensors_have_the_sizes_of_the_programs_kernels_and_collectives(some):
    for found in some:
        sizes = found.mesh.axes
        for frame in found.frames:
            if len(frame.product) == 3:
                (m, k), (inner, n) = (t.local(sizes) for t in frame.product[:2])
                assert (k, frame.product[2].local(sizes)) == (inner, (m, n))
                assert frame.kernels[0].flops == 2 * m * k * n
            if frame.move:
                before, after = frame.moving
                moved = prod(blocks.payload_of(frame).local(sizes))
                assert moved * W.itemsize == frame.move.payload
                assert before.partial in ("", frame.move.axis)
                assert frame.move.axis not in (after.partial, *after.later)


def test_gradients_are_terms_of_sums_over_all_who_share_the_batch(some):
    """Over z and data; each sum takes one away, and the last one none is left."""
    for found in some:
        shares = [
            axis for axis in ("z", "data") if axis in found.mesh.axes and found.mesh.axes[axis] > 1
        ]
        for frame in found.frames:
            for tensor in frame.product + frame.moving:
                open_sums = [a for a in (tensor.partial, *tensor.later) if a in ("z", "data")]
                scattered = tensor.name == "dW" and "z" in tensor.axes
                if tensor.name == "dW" or (tensor in frame.moving[:1] and tensor.name == "db"):
                    assert open_sums == [a for a in shares if a != "z" or not scattered]
        ends = [f for f in found.frames if f.phase == "sync"]
        assert [f.move.axis for f in ends] == shares
        if ends:
            assert ends[-1].moving[1].partial == ""


def test_a_gemm_has_its_block_whole_and_the_end_finds_pieces(some):
    for found in some:
        s = found.strategy
        for frame, after in zip(found.frames, found.frames[1:]):
            if frame.product and frame.product[1].name in ("W", "Wᵀ"):
                assert frame.weights[frame.layer] == "block"
            if s.z > 1 and not s.keep and after.phase == "forward":
                held = [layer for layer, what in frame.weights.items() if what == "block"]
                assert held == [frame.layer] * (frame.layer in LAYERS)
        last = found.frames[-1]
        assert set(last.weights.values()) == {"piece" if s.z > 1 else "block"}
        assert set(last.gradients.values()) == {"piece" if s.z > 1 else "block"} or (
            s.z > 1 and "ors" in s.overlap and last.phase != "sync"
        )


def test_kept_weights_stay_from_forward_to_their_backward():
    frames = story(axonn((1, 1, 4, 1)), W).frames
    end = next(f for f in frames if f.phase == "backward")
    assert set(end.weights.values()) == {"block"}
    again = story(axonn((1, 1, 4, 1), recompute=True), W).frames
    between = next(f for f in again if f.phase == "recompute")
    assert [between.weights[layer] for layer in LAYERS] == ["block", "piece", "piece", "piece"]


def test_what_is_under_way_is_the_next_gather_and_scatters_not_waited_for(some):
    for found in some:
        s, frames = found.strategy, found.frames
        for number, frame in enumerate(frames):
            ahead = [f for f in frame.in_flight if f.collective == "all_gather"]
            following = next(
                (f for f in frames[number + 1 :] if f.move and f.move.collective == "all_gather"),
                None,
            )
            here = following and following.phase == frame.phase
            assert bool(ahead) <= (s.z > 1 and "oag" in s.overlap)
            if s.z > 1 and "oag" in s.overlap and here:
                assert [(f.layer, f.block) for f in ahead] == [(following.layer, 0)]
            elif ahead:  # other blocks' come between two phases, but for recompute and backward
                assert ahead[0].block in (1, -1) or frame.phase == "recompute"
                assert ahead[0].block != 0 or ahead[0].layer == following.layer
            scattered = [
                f.layer
                for f in frames[: number + 1]
                if f.move and f.move.collective == "reduce_scatter"
            ]
            leaving = {f.layer for f in frame.in_flight if f.collective == "reduce_scatter"}
            if frame.phase == "sync" or s.z == 1 or "ors" not in s.overlap:
                assert leaving == set()
            elif frame.phase != "forward":
                assert leaving == set(scattered)
            else:  # those of the microbatch before
                assert leaving == (set(LAYERS) if s.accumulation > 1 else set())


def test_gathers_ahead_reach_into_the_blocks_around():
    frames = story(axonn((1, 1, 2, 1), keep=False), W).frames
    seen = [(f.phase, f.in_flight[0].name) for f in frames if f.in_flight and f.in_flight[0].block]
    assert set(seen) == {
        ("forward", "W of qkv, next block"),
        ("backward", "W of down, block before"),
    }
    last = story(axonn((1, 1, 2, 1)), replace(W, layers=1)).frames
    assert ("Prefetched: the weights of head.",) in {tuple(blocks.in_flight(f)) for f in last}


def test_the_walk_by_hand_on_a_cube():
    found = story(axonn((2, 2, 2, 1)), W)
    lines = [(f.layer, blocks.sentence(f)) for f in found.frames]
    qkv = (
        "LN(X)[T_z, H_y] · W[H_y, 3H_x] → QKV[T_z, 3H_x] partial over y → all-reduce over y → "
        "QKV[T_z, 3H_x]"
    )
    assert lines[1:5] == [
        ("qkv", "W[H_y, 3H_xz] → all-gather over z → W[H_y, 3H_x]"),
        ("qkv", qkv),
        ("qkv", qkv),
        ("core", "QKV[T_z, 3H_x] → attention → A[T_z, H_x]"),
    ]
    back = lines.index(
        ("down", "dW[4H_x, H_y] partial over z → reduce-scatter over z → dW[4H_x, H_yz]")
    )
    assert lines[back - 1] == (
        "down",
        "GELU(U)ᵀ[4H_x, T_z] · dZ[T_z, H_y] → dW[4H_x, H_y] partial over z",
    )
    assert [blocks.symbols(f) for f in found.frames if f.move][:4] == [
        "2bs/z",
        "3h²/(y x)",
        "3bsh/(z x)",
        "h²/(x y)",
    ]
    assert lines[-1] == ("biases", "db[1, n_yx] partial over z → all-reduce over z → db[1, n_yx]")
    both = story(axonn((1, 1, 2, 2)), W).frames
    assert "dW[H, 3H] partial over z and data" in blocks.sentence(both[-4])
    assert blocks.sentence(both[-1]).startswith("dW, db[1, n_z] partial over data → all-reduce")
    assert "T_data·z" in blocks.sentence(both[1])


# -- pictures --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "sizes, knobs",
    [
        ((2, 2, 2, 1), {}),
        ((2, 2, 2, 2), {"recompute": True, "keep": False}),
        ((16, 1, 1, 1), {}),
        ((1, 16, 1, 1), {}),
        ((1, 1, 16, 1), {}),
        ((1, 1, 1, 16), {}),
        ((4, 1, 1, 4), {}),
        ((2, 2, 4, 1), {}),
        ((1, 1, 8, 2), {"order": "yxz"}),
        ((1, 1, 1, 1), {}),
    ],
    ids=str,
)
def test_every_frame_is_well_formed_and_inside_and_no_rank_hides_another(sizes, knobs):
    strategy = axonn(sizes, **knobs)
    scene = blocks.blocks_scene(story(strategy, W), strategy.world_size - 1)
    assert json.loads(json.dumps(scene)) == scene
    for step in range(0, len(scene["frames"]), 5):
        root = ElementTree.fromstring(film_svg(scene, step, "light"))
        for node in root.iter(f"{SVG}rect"):
            x, width = float(node.get("x")), float(node.get("width"))
            assert -50 <= x <= x + width <= scene["width"]
    for theme in ("dark", "auto", "page"):
        ElementTree.fromstring(film_svg(scene, 0, theme))
    boxes = [
        [float(v) for v in found]
        for found in re.findall(
            r"data-rank='\d+'.*?<rect x='([\d.]+)' y='([\d.]+)' width='([\d.]+)' height='([\d.]+)'",
            scene["common"],
        )
    ]
    assert len(boxes) == strategy.world_size
    for k, (x, y, w, h) in enumerate(boxes):
        assert x + w < 500
        assert y + h < scene["height"] - 30  # the legend
        for left, top, wide, high in boxes[:k]:
            assert x + w <= left or left + wide <= x or y + h <= top or top + high <= y


@pytest.mark.parametrize("order, neighbour", [("xyz", "x"), ("yxz", "y")])
def test_ranks_stand_by_their_coordinates_in_either_order(order, neighbour):
    """x to the right, y down, z up and to the right, replicas side by side."""
    strategy = axonn((2, 2, 2, 2), order=order)
    found = story(strategy, W)
    common = blocks.blocks_scene(found)["common"]
    at = {
        int(r): (float(x), float(y))
        for r, x, y in re.findall(r"data-rank='(\d+)'.*?<rect x='([\d.]+)' y='([\d.]+)'", common)
    }
    rank = found.mesh.rank
    origin = {"x": 0, "y": 0, "z": 0, "data": 0}
    step = {
        axis: [b - a for a, b in zip(at[0], at[rank(**(origin | {axis: 1}))])] for axis in origin
    }
    assert step["x"][0] > 0 == step["x"][1]
    assert step["y"][1] > 0 == step["y"][0]
    assert step["z"][0] > 0 > step["z"][1]
    assert step["data"][0] > step["x"][0] + step["z"][0]
    assert step["data"][1] == 0
    assert rank(**(origin | {neighbour: 1})) == 1


@pytest.mark.parametrize("sizes", [(2, 2, 2, 1), (1, 1, 1, 1)])
def test_the_legend_says_how_cuts_are_written(sizes):
    scene = blocks.blocks_scene(story(axonn(sizes), W))
    assert "A[I_z, J_x]: rows of A cut over z, columns over x." in scene["help"]


def test_groups_flow_and_partial_sums_are_sheets():
    found = story(axonn((2, 2, 2, 1)), W)
    scene = blocks.blocks_scene(found, 3)
    for frame, picture in zip(found.frames, scene["frames"]):
        lit = re.findall(r"data-group='(\w+)'", picture)
        assert lit == ([frame.move.axis] * 4 if frame.move else [])
        assert ("data-partial" in picture) == any(t.partial for t in frame.product + frame.moving)


def test_terms_of_two_sums_are_said():
    found = story(axonn((1, 1, 4, 2)), W)
    number = next(
        n for n, f in enumerate(found.frames) if f.product[2:] and f.product[2].name == "dW"
    )
    picture = blocks.blocks_scene(found)["frames"][number]
    assert "4 sheets, over z, 2 over data<" in picture


def test_known_schemes_are_said():
    def lit(*sizes, **knobs):
        scene = blocks.blocks_scene(story(axonn(sizes, **knobs), W))
        return [note.split("same cut as ")[1] for note in scene["notes"]]

    assert lit(4, 1, 1, 1) == ["Megatron-LM"]
    assert lit(1, 1, 4, 1, keep=False) == ["FSDP (ZeRO-3)"]
    assert lit(1, 2, 2, 2) == []


def test_table_and_words():
    found = story(axonn((1, 1, 2, 2), accumulation=4), W)
    head, *rows = blocks.to_table(found)
    assert (len(rows), head[-3:]) == (
        len(found.frames),
        ["sent over data", "sent over z", "in flight"],
    )
    words = blocks.describe(found, 1)
    assert "64 x 8 tokens, in microbatches of 16" in words
    assert "As a known scheme: HSDP. On rings a rank sends" in words
    assert "Rank 1 is at data 0, z 1." in words


def test_pieces_that_end_within_a_feature_are_counted_not_measured():
    odd = tv.GPT(layers=1, hidden=18, heads=3, seq=4, batch=4, vocab=252, mlp_ratio=3)
    scene = blocks.blocks_scene(story(axonn((3, 1, 4, 1)), odd))
    assert "81 numbers" in scene["frames"][0]  # 18 x 54 over x=3, then z=4


def test_what_cannot_be_shown():
    with pytest.raises(ValueError, match=r"mesh 4 x 4 x 2 has 32 ranks: this view shows at most"):
        story(axonn((2, 4, 4, 1)), W)
    with pytest.raises(ValueError, match=r"rank 4 is not in this mesh of 4: use 0 to 3"):
        blocks.blocks_scene(story(axonn((2, 1, 2, 1)), W), 4)
    with pytest.raises(ValueError, match=r"GridView shows tv.AxoNN, not ATP"):
        story(tv.ATP(), W)
