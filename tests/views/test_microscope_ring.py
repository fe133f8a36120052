"""The ring as a ring: petals are the parts of sums, and slices go from petal to petal."""

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

import tpviz as tv
from tpviz.views.figures.film import film_svg
from tpviz.views.figures.microscope import frames, microscope_scene
from tpviz.views.figures.microscope_ring import (
    EDGE,
    INNER,
    MOST,
    SIDE,
    WIDE,
    is_ring,
    outer,
    radius,
)

PETAL = r"A([\d.]+) [\d.]+ 0 [01] 1 "
RINGS = "all_reduce", "all_gather", "reduce_scatter"


@pytest.fixture(scope="module", params=RINGS)
def ring(request):
    return tv.microscope(request.param, "ring", world_size=3, elements=48)


def test_rings_are_drawn_so_and_others_are_not(ring):
    assert is_ring(ring)
    assert not is_ring(tv.microscope("all_reduce", "recursive_doubling", world_size=2))


def test_a_petal_is_as_large_as_the_part_of_the_ranks_in_its_sum(ring):
    scene = microscope_scene(ring)
    assert json.loads(json.dumps(scene)) == scene
    for cells, drawn in zip(frames(ring), scene["frames"]):
        lengths = [float(length) for length in re.findall(PETAL, drawn)]
        full = [cell["full"] for row in cells for cell in row if cell]
        areas = [length**2 - INNER**2 for length in lengths]
        whole = outer(3) ** 2 - INNER**2
        assert areas == pytest.approx([whole * part for part in full], rel=0.01)


def test_what_is_new_is_framed_and_slices_end_there(ring):
    scene = microscope_scene(ring)
    for number, step in enumerate(scene["steps"]):
        assert scene["frames"][number].count("data-message=") == len(step)
        assert scene["frames"][number + 1].count("s-fg' stroke-width='2'") == len(step)
    for path in re.findall(r"data-path='(\[.*?\])'", "".join(scene["frames"])):
        x0, y0, *_, x1, y1 = json.loads(path)
        for x, y in ((x0, y0), (x1, y1)):
            away = ((x - WIDE / 2) ** 2 + (y - SIDE / 2) ** 2) ** 0.5
            assert abs(away - radius(3)) < outer(3)


def test_slices_say_how_many_gradients_are_in_their_sum(ring):
    scene = microscope_scene(ring)
    for step, cells, drawn in zip(scene["steps"], frames(ring), scene["frames"]):
        terms = [len(cells[x["sender"]][x["place"]]["ranks"]) for x in step]
        sums = [f"sum of {n}" for n in terms]
        added = step[0]["phase"] == "reduce"
        found = re.findall(r">(sum of \d+|copy)</text>", drawn)
        assert found == (sums if added else ["copy"] * len(step))


def test_the_curve_ends_at_what_each_rank_has_sent(ring):
    scene, n = microscope_scene(ring), ring.world_size
    assert len(scene["aside"]) == len(scene["frames"])
    says = scene["says"][-1]
    share = {"all_reduce": 2}.get(ring.collective, 1) * (n - 1) / n
    assert f"= {share:.4g} gradients." in says
    assert ring.sent[0] / ring.payload == pytest.approx(share)


@pytest.mark.parametrize("theme", ["light", "dark", "auto", "page"])
def test_svg_is_well_formed(ring, theme):
    scene = microscope_scene(ring)
    for step in range(len(scene["captions"])):
        ElementTree.fromstring(film_svg(scene, step, theme))


def test_flowers_do_not_touch():
    from math import pi, sin

    for n in range(2, MOST + 1):
        assert 2 * radius(n) * sin(pi / n) > 2 * outer(n) + 20
        assert outer(n) > INNER + 25
        free = SIDE / 2 - (radius(n) + outer(n) + EDGE)
        assert 0 < free < (10 if n <= 8 else 25)  # they fill the picture


@pytest.mark.parametrize("n", [2, 3, 4, 6, 8, 12])
def test_slices_halfway_cover_neither_petals_nor_arrows(n):
    scene = microscope_scene(tv.microscope("all_reduce", "ring", world_size=n, elements=48))
    arrows = re.findall(
        r"M-7,-5l9,5l-9,5z' class='f-muted' transform='translate\(([\d.,]+)\)", scene["common"]
    )
    flowers = re.findall(
        r"<circle cx='([\d.]+)' cy='([\d.]+)' r='([\d.]+)' class='f-ground", scene["frames"][0]
    )
    assert len(arrows) == len(flowers) == n
    points = [(*map(float, at.split(",")), 10) for at in arrows]
    points += [(float(x), float(y), float(r) - EDGE) for x, y, r in flowers]
    box = r"translate\(([\d.]+),([\d.]+)\)'><title>.*?<rect x='-([\d.]+)' y='-(\d+)"
    for frame in scene["frames"][:-1]:
        pills = [[*map(float, found)] for found in re.findall(box, frame)]
        assert len(pills) == n
        for cx, cy, wide, high in pills:
            assert 0 <= cx - wide and cx + wide <= WIDE and high <= cy <= SIDE - high
            for x, y, r in points:
                apart = max(abs(x - cx) - wide, 0), max(abs(y - cy) - high, 0)
                assert apart[0] ** 2 + apart[1] ** 2 > r**2
