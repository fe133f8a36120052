"""Workload, mesh, strategy and checks: sizes, data, coordinates, knobs, and errors with the nearest
values."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tpviz as tv
from tpviz.core.checks import divides
from tpviz.schemes.knobs import knob
from tpviz.schemes.strategy import Strategy


# -- workload ----
@pytest.mark.parametrize("tied", [True, False])
def test_counts_equal_the_real_model(tied):
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from tpviz.schemes.gpt.program import batch_of, reference_program

    workload = tv.GPT(
        layers=3, hidden=48, heads=6, seq=20, batch=2, vocab=300, tied=tied, mlp_ratio=3
    )
    program = reference_program(workload)
    assert {n: tuple(p.shape) for n, p in program.named.items()} == workload.parameter_shapes()
    assert sum(p.numel() for p in program.named.values()) == workload.num_parameters
    plain = sdpa_kernel(SDPBackend.MATH)  # attention as matrix products, which the counter knows
    with FlopCounterMode(display=False) as counter, torch.no_grad(), plain:
        program.forward(batch_of(workload, 0))
    assert 3 * counter.get_total_flops() == workload.step_flops


def test_parameter_formula_of_the_docstring():
    w = tv.GPT(layers=2, hidden=64, seq=32, vocab=256)
    h, r = w.hidden, w.mlp_ratio
    formula = w.vocab * h + w.seq * h + w.layers * ((4 + 2 * r) * h * h + (9 + r) * h) + 2 * h
    assert w.num_parameters == formula == 118528
    assert replace(w, tied=False).num_parameters == formula + w.vocab * h


def test_text_is_the_same_every_time_and_targets_are_shifted():
    w = tv.GPT(seq=200, batch=3)
    inputs, targets = w.tokens(5)
    again = w.tokens(5)
    assert inputs.shape == targets.shape == (3, 200) and inputs.dtype == np.int64
    assert (inputs == again[0]).all() and (targets == again[1]).all()
    assert (inputs[:, 1:] == targets[:, :-1]).all()
    assert not (inputs == w.tokens(6)[0]).all()
    assert not (inputs == replace(w, seed=1).tokens(5)[0]).all()
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics)).encode()
    assert bytes(inputs[0].tolist()) in text


def test_small_vocabulary_keeps_the_frequent_bytes():
    small, full = tv.GPT(vocab=16, seq=400), tv.GPT(vocab=256, seq=400)
    tokens, data = small.tokens(0)[0], full.tokens(0)[0]
    assert tokens.max() == 15 and tokens.min() == 0
    assert (tokens[data == ord(" ")] == 0).all()  # the most frequent byte of English text
    assert len(np.unique(data[tokens == 15])) > 10  # the rest shares the last token


@pytest.mark.parametrize(
    "sizes, message",
    [
        (
            {"heads": 5},
            "hidden=64 does not split evenly over heads=5: use heads=4 or 8, or hidden=60 or 65",
        ),
        ({"layers": 0}, "layers=0 is too small: the least that works is 1"),
        ({"vocab": 1}, "vocab=1 is too small: the least that works is 2"),
        ({"batch": 2.5}, "batch must be a whole number, not 2.5"),
        ({"seq": True}, "seq must be a whole number, not True"),
        ({"seed": -1}, "seed=-1 is too small"),
        ({"layers": np.array([2])}, "layers must be a whole number, not array([2])"),
        ({"tied": 1}, "tied=1 is not possible: use True or False"),
        (
            {"dtype": "float16"},
            "dtype='float16' is not possible: use 'float32', 'float64' or 'bfloat16'",
        ),
    ],
)
def test_bad_sizes_are_named_with_the_nearest_that_work(sizes, message):
    with pytest.raises(ValueError) as error:
        tv.GPT(**sizes)
    assert message in str(error.value)


def test_a_sequence_longer_than_the_text_is_refused():
    with pytest.raises(ValueError, match="longer than the text"):
        tv.GPT(seq=10_000_000, batch=1).tokens(0)


# -- mesh ----
axes = st.dictionaries(st.sampled_from(["pp", "dp", "cp", "tp"]), st.integers(1, 4), min_size=1)


@given(axes)
@settings(max_examples=60, deadline=None)
def test_coordinates_and_groups_agree(sizes):
    mesh = tv.Mesh(sizes)
    ranks = np.arange(mesh.size).reshape(mesh.shape)
    for rank in range(mesh.size):
        coords = mesh.coords(rank)
        assert mesh.rank(**coords) == rank
        assert ranks[tuple(coords.values())] == rank
    for dim, axis in enumerate(mesh.names):
        groups = mesh.groups(axis)
        lines = np.moveaxis(ranks, dim, -1).reshape(-1, sizes[axis])
        assert sorted(groups) == sorted(lines.tolist())
        assert all(mesh.group(r, axis) == g for g in groups for r in g)


def test_mesh_is_a_value():
    mesh = tv.Mesh(axes={"dp": 2, "tp": 4})
    assert mesh == tv.Mesh({"dp": 2, "tp": 4}) and hash(mesh) == hash(tv.Mesh({"dp": 2, "tp": 4}))
    assert (mesh.size, mesh.shape, mesh.names) == (8, (2, 4), ("dp", "tp"))
    assert mesh.group(6, "tp") == [4, 5, 6, 7] and mesh.group(6, "dp") == [2, 6]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: tv.Mesh({}), "at least one axis"),
        (lambda: tv.Mesh({"tp": 0}), "axis tp=0 is too small"),
        (lambda: tv.Mesh({"t p": 2}), "must be a plain word"),
        (lambda: tv.Mesh({"tp": 2}).coords(2), "rank 2 is not in this mesh of 2: use 0 to 1"),
        (lambda: tv.Mesh({"tp": 2}).group(0, "dp"), "no axis 'dp' in this mesh: use tp"),
        (lambda: tv.Mesh({"tp": 2}).rank(tp=5), "tp=5 is outside axis tp: use 0 to 1"),
        (lambda: tv.Mesh(4), 'at least one axis, as in Mesh({"tp": 4}), not 4'),
        (lambda: tv.Mesh({"tp": 2}).coords(0.5), "rank must be a whole number, not 0.5"),
        (lambda: tv.Mesh({"tp": 2}).rank(tp=0.5), "tp must be a whole number, not 0.5"),
        (lambda: tv.Mesh({"tp": 2, "dp": 2}).rank(tp=1), "give every axis of tp, dp, not tp"),
    ],
)
def test_mesh_errors(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert message in str(error.value)


def test_device_mesh_has_the_same_groups_and_names_its_axes():
    def look(axes):
        import torch.distributed as dist

        from tpviz.core.mesh import Mesh

        mesh = Mesh(axes).device_mesh()
        assert Mesh(axes).device_mesh() is mesh  # groups are made once
        groups = {a: mesh.get_group(a) for a in axes}
        return {
            a: (dist.get_process_group_ranks(g), g.group_desc, mesh.get_local_rank(a))
            for a, g in groups.items()
        }

    for axes in ({"tp": 4}, {"dp": 2, "tp": 2}):
        mesh = tv.Mesh(axes)
        for rank, found in enumerate(tv.launch(look, axes, world_size=4)):
            assert found == {
                a: (mesh.group(rank, a), f"mesh_{a}", mesh.coords(rank)[a]) for a in axes
            }


# -- strategy ----
def test_strategies_are_listed_frozen_values():
    found = tv.strategies()
    assert found["Megatron"] is tv.Megatron and found["DataParallel"] is tv.DataParallel
    assert tv.Megatron(tp=2) == tv.Megatron(2) and hash(tv.Megatron(tp=2)) == hash(tv.Megatron(2))
    with pytest.raises(FrozenInstanceError):
        tv.Megatron(tp=2).tp = 4


def test_combining_works_in_either_order_and_dp_is_outside():
    both = tv.Megatron(tp=2, sp=True) * tv.DataParallel(dp=4, zero=1)
    assert both == tv.DataParallel(dp=4, zero=1) * tv.Megatron(tp=2, sp=True)
    assert both.inner == tv.Megatron(tp=2, sp=True)
    assert list(both.axes.items()) == [("dp", 4), ("tp", 2)] and both.world_size == 8
    from tpviz import DataParallel, Megatron  # noqa: F401, used by eval

    assert eval(repr(both)) == both


@pytest.mark.parametrize(
    "left, right",
    [
        (tv.Megatron(tp=2), tv.Megatron(tp=2)),
        (tv.DataParallel(dp=2), tv.DataParallel(dp=2)),
        (tv.DataParallel(dp=2, inner=tv.Megatron(tp=2)), tv.Megatron(tp=2)),
        (tv.Megatron(tp=2), 3),
        (tv.Megatron(tp=2), None),
        (tv.DataParallel(dp=2), tv.Megatron),
    ],
)
def test_what_cannot_be_combined(left, right):
    with pytest.raises(ValueError, match="cannot combine"):
        left * right


@pytest.mark.parametrize(
    "make, kind, message",
    [
        (lambda: tv.Megatron(pt=2), TypeError, "Megatron has no knob 'pt'; its knobs are tp, sp"),
        (lambda: tv.DataParallel(zer=2), TypeError, "its knobs are dp, zero, bucket_mb, inner"),
        (lambda: tv.Megatron(tp=0), ValueError, "tp=0 is too small: the least that works is 1"),
        (lambda: tv.Megatron(tp=65), ValueError, "tp=65 is too large: the most that works is 64"),
        (lambda: tv.Megatron(tp="4"), ValueError, "tp must be a whole number, not '4'"),
        (lambda: tv.Megatron(sp=2), ValueError, "sp=2 is not possible: use True or False"),
        (lambda: tv.DataParallel(zero=4), ValueError, "zero=4 is not possible: use 0, 1, 2 or 3"),
        (lambda: tv.DataParallel(zero=True), ValueError, "zero=True is not possible"),
        (lambda: tv.DataParallel(bucket_mb=0), ValueError, "the nearest that works is 0.001"),
        (
            lambda: tv.DataParallel(bucket_mb="1"),
            ValueError,
            "bucket_mb must be a number from 0.001 to 1000.0, not '1'",
        ),
        (lambda: tv.DataParallel(bucket_mb=float("nan")), ValueError, "must be a number"),
        (lambda: tv.DataParallel(inner=3), ValueError, "inner=3 is not possible"),
        (lambda: tv.DataParallel(inner=tv.DataParallel()), ValueError, "without a dp axis"),
    ],
)
def test_bad_knobs(make, kind, message):
    with pytest.raises(kind) as error:
        make()
    assert message in str(error.value)


def test_knobs_carry_what_a_widget_needs():
    from dataclasses import fields

    knobs = {f.name: f.metadata for f in fields(tv.DataParallel) if f.metadata}
    words = "dp zero bucket_mb accumulation recompute offload shard reshard_after_forward"
    assert [*knobs] == [*words.split(), "gradients", "within"]
    assert knobs["zero"]["choices"] == (0, 1, 2, 3) and knobs["dp"]["low"] == 1
    assert all(k["help"] for k in knobs.values())
    assert issubclass(tv.DataParallel, Strategy) and knob(1, help="x").default == 1


def test_divides_offers_only_what_exists():
    divides("a", 6, "b", 3)
    with pytest.raises(ValueError, match=r"^a=2 does not split evenly over b=8: use b=2, or a=8$"):
        divides("a", 2, "b", 8)


def test_divides_offers_only_what_fits_the_other_sizes_too():
    with pytest.raises(ValueError, match="tp=4: use tp=2, or seq=28 or 32"):
        tv.Megatron(tp=4, sp=True).check(tv.GPT(seq=30))  # 3 and 5 divide 30, but not 4 heads


def test_numpy_values_are_kept_as_plain_ones():
    plain = tv.DataParallel(dp=2, zero=1, bucket_mb=0.5)
    given = tv.DataParallel(dp=np.int64(2), zero=np.int8(1), bucket_mb=np.float32(0.5))
    assert repr(given) == repr(plain)
    assert repr(tv.GPT(layers=np.int64(3), tied=np.False_)) == repr(tv.GPT(layers=3, tied=False))
    assert repr(tv.Mesh({"tp": np.int64(2)})) == repr(tv.Mesh({"tp": 2}))
