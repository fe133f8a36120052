"""The 2 x 2 cases that notebooks 10 to 13 do on paper, done by what the package computes with."""

from pathlib import Path

import nbformat
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import tpviz as tv
from tpviz.core.schedules import schedule
from tpviz.core.schedules.clock import timeline
from tpviz.evidence.t3_hardware import maps

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def table(stem):
    """Rows of the table under the heading "A 2 x 2 case by hand"."""
    cells = nbformat.read(NOTEBOOKS / f"{stem}.ipynb", as_version=4).cells
    [text] = [cell.source for cell in cells if "### A 2 x 2 case by hand" in cell.source]
    lines = text.partition("### A 2 x 2 case by hand")[2].partition("\n## ")[0].splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def end(cell):
    """The number that a cell such as "1 + 4 = 5" ends in."""
    return float(cell.split("=")[-1])


def atp():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("d1", "d2"))
    i, j = mesh.get_coordinate()
    x = torch.tensor([1.0, 2.0])
    w, v = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, -1.0], [2.0, 0.0]])
    said = [w[i, j].item(), x[j].item()]
    value = x[j].clone()
    for weight, axis in ((w[i, j], "d2"), (v[j, i], "d1")):
        value = weight * value
        said += [weight.item()] * (axis == "d1") + [value.item()]
        dist.all_reduce(value, group=mesh.get_group(axis))
        said.append(value.item())
    return said


def axonn():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("x", "z"))
    x, z = mesh.get_coordinate()
    group = mesh.get_group("z")
    shard = torch.tensor([[1.0, 2.0], [3.0, 4.0]])[x, z : z + 1].clone()
    token = torch.tensor([[1.0, 2.0], [1.0, 1.0]])[z]
    row, gradient = torch.empty(2), torch.empty(1)
    dist.all_gather_into_tensor(row, shard, group=group)
    dist.reduce_scatter_tensor(gradient, token.clone(), group=group)
    back = row.clone()
    dist.all_reduce(back, group=mesh.get_group("x"))
    assert back.tolist() == [4, 6]
    return [shard.item(), (row @ token).item(), gradient.item()]


def test_atp():
    rows = [[end(cell) for cell in row[2:]] for row in table("10_atp")]
    assert rows == tv.launch(atp, world_size=4)


def test_axonn():
    rows = [[end(row[1]), end(row[4]), end(row[6])] for row in table("11_axonn")]
    assert rows == tv.launch(axonn, world_size=4)


@pytest.mark.parametrize(
    "row, name, recompute",
    [
        (0, "1f1b", False),
        (1, "1f1b", True),
        (2, "early_recompute", True),
        (3, "last_no_recompute", True),
    ],
)
def test_merak(row, name, recompute):
    found = timeline(schedule(name, 2, 2, recompute=recompute), 1.0, 2.0, 1.0)
    _, *ranks, step = table("12_merak")[row]
    assert found.makespan == float(step)
    assert max(float(part.split()[1]) for part in ranks[0].split(", ")) == float(step)


def test_t3():
    own, other = (dict(rules) for rules in maps("ring_rs", 2))
    assert [chunk for chunk, _ in maps("ring_rs", 2)[0]] == [1, 0]
    assert str(own[1]) == "Remote(to=1, op='update')" and str(other[0]).startswith("Remote(to=0")
    assert str(own[0]) == str(other[1]) == "Local(updates=2)"
