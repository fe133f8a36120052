"""A convolution on AxoNN's grid equals ``nn.Conv2d`` in float64, alone and one after the other."""

from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import nn

import tpviz as tv
from tpviz.schemes.axonn.conv import GridConv2d
from tpviz.schemes.axonn.weights import Depth
from tpviz.schemes.gpt.program import gather
from tpviz.schemes.grid.operators import LinearSharding

GRIDS = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2)]
OPTIONS = {"kernel_size": 3, "stride": 2, "padding": (1, 2), "dilation": (2, 1)}


def mesh_of(grid):
    return tv.Mesh(dict(zip("zyx", reversed(grid)))).device_mesh()


def numbers(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def reference(channels, count, options):
    """Two or one convolutions with a GELU between them, with all gradients of a given output's."""
    torch.manual_seed(1)
    layers = [nn.Conv2d(channels[k], channels[k + 1], **options).double() for k in range(count)]
    x = numbers(4, channels[0], 9, 8).requires_grad_()
    y = layers[0](x)
    for layer in layers[1:]:
        y = layer(nn.functional.gelu(y))
    grad = numbers(*y.shape, seed=2)
    y.backward(grad)
    return layers, x, y.detach(), grad


def run(grid, count, swapped, keep, later, hidden=True):
    """The largest error of each quantity on this rank."""
    channels, mesh = (4, 8, 4), mesh_of(grid)
    layers, x, y, grad = reference(channels, count, OPTIONS)
    groups = mesh.get_group("y"), mesh.get_group("x")
    depth = Depth(mesh.get_group("z"), None, later, keep)
    mine, names = [], ["y", "x"]
    for k, layer in enumerate(layers):
        contract, spread = groups if (k % 2 == 0) != swapped else reversed(groups)
        own = GridConv2d(
            channels[k],
            channels[k + 1],
            way=LinearSharding(contract, spread, hidden=hidden),
            depth=depth,
            **OPTIONS,
        ).double()
        own.load(layer.weight, layer.bias)
        mine.append(own)
    first, second = reversed(names) if swapped else names
    last = first if count == 2 else second
    depth.begin()
    part = own_part(x, [(0, "z"), (1, first)], mesh).detach().requires_grad_()
    out = mine[0](part)
    for layer in mine[1:]:
        out = layer(nn.functional.gelu(out))
    out.backward(own_part(grad, [(0, "z"), (1, last)], mesh))
    depth.collect()
    errors = {
        "output": largest(gather(out, [(1, last), (0, "z")], mesh), y),
        "input": largest(gather(part.grad, [(1, first), (0, "z")], mesh), x.grad),
    }
    for k, (own, layer) in enumerate(zip(mine, layers)):
        into, to = (first, second) if k % 2 == 0 else (second, first)
        dist.all_reduce(own.bias.grad, group=mesh.get_group("z"))
        weight = gather(own.weight.grad, [(0, "z")], mesh).view(own.pieces.shape)
        errors[f"weight {k}"] = largest(
            gather(weight, [(1, into), (0, to)], mesh), layer.weight.grad
        )
        errors[f"bias {k}"] = largest(gather(own.bias.grad, [(0, to)], mesh), layer.bias.grad)
    return errors


def own_part(full, splits, mesh):
    for dim, axis in splits:
        full = full.chunk(mesh.get_group(axis).size(), dim)[mesh.get_local_rank(axis)]
    return full.contiguous()


def largest(found, expected):
    assert found.shape == expected.shape
    return float((found - expected).abs().max())


@pytest.mark.parametrize("swapped", [False, True], ids=["normal", "transposed"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_equals_conv2d(grid, swapped):
    check(grid, 1, swapped, True, False)


@pytest.mark.parametrize(
    "grid, keep, later, hidden",
    [
        ((2, 2, 2), True, True, True),
        ((2, 1, 2), False, True, False),
        ((1, 2, 2), False, False, True),
        ((1, 1, 2), False, False, True),
    ],
    ids=str,
)
def test_a_pair_needs_no_exchange_between(grid, keep, later, hidden):
    """Out channels of the first lie as in channels of the second; overlaps change nothing."""
    check(grid, 2, False, keep, later, hidden)


def check(grid, *args):
    x, y, z = grid
    for errors in tv.launch(run, grid, *args, world_size=x * y * z):
        assert {k for k in errors if k[-1].isdigit()} >= {"weight 0", "bias 0"}
        assert max(errors.values()) < 1e-12, errors


@pytest.mark.parametrize("swapped, hidden", list(product([False, True], repeat=2)), ids=str)
def test_what_it_sends(swapped, hidden):
    """Forward a sum over one axis, backward over the other, z a gather and a scatter; the sum of
    the input's gradient is under way while the weight's is computed, if it is to be."""
    for events in tv.launch(_events, (2, 2, 2), swapped, hidden, world_size=8):
        forward, backward = ("x", "y") if swapped else ("y", "x")
        under = [f"all_reduce {backward}", "kernel", f"wait {backward}"]
        plain = [f"all_reduce {backward}", f"wait {backward}", "kernel"]
        assert events == [
            "all_gather z",
            "wait z",
            "kernel",
            f"all_reduce {forward}",
            f"wait {forward}",
            "kernel",
            *(under if hidden else plain),
            "reduce_scatter z",
            "wait z",
        ]


def _events(grid, swapped, hidden):
    mesh = mesh_of(grid)
    groups = [mesh.get_group("y"), mesh.get_group("x")]
    contract, spread = reversed(groups) if swapped else groups
    layer = GridConv2d(
        4,
        8,
        3,
        LinearSharding(contract, spread, hidden=hidden),
        Depth(mesh.get_group("z")),
        bias=False,
    )
    x = torch.ones(2, 2, 6, 6, requires_grad=True)
    with tv.record() as recorder, recorder.step():
        layer(x).sum().backward()
    trace = recorder.trace
    events = sorted(
        (e for e in trace if e.kind in ("compute", "comm", "wait")), key=lambda e: e.start
    )
    return [
        "kernel" if e.kind == "compute" else f"{'wait' if e.kind == 'wait' else e.name} {e.axis}"
        for e in events
    ]


@pytest.mark.parametrize(
    "sizes, message",
    [
        ((6, 8, {}), "in_channels=6 does not split evenly over contract=4"),
        ((8, 6, {}), "out_channels=6 does not split evenly over spread=4"),
        ((8, 8, {"groups": 2}), "use groups=1"),
        ((8, 8, {"padding": "same"}), "padding in pixels"),
        ((4, 4, {}), "the block's numbers=9 does not split evenly over z=4"),
    ],
    ids=str,
)
def test_what_cannot_be_is_named(sizes, message):
    into, out, options = sizes
    group = Four()
    with pytest.raises(ValueError, match=message):
        GridConv2d(into, out, 3, LinearSharding(group, group), Depth(group), **options)


class Four:
    """A group of four ranks that is only counted."""

    def size(self):
        return 4

    def rank(self):
        return 0
