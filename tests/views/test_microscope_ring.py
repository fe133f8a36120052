"""The ring as a ring: petals are the parts of sums, and slices go from petal to petal."""

import json
import re
import xml.etree.ElementTree as ElementTree
from html import unescape

import pytest

import tpviz as tv
from tpviz.views.figures.microscope import frames, microscope_scene, microscope_svg
from tpviz.views.figures.microscope_ring import INNER, MOST, RADIUS, SIDE, is_ring, outer

PETAL = r"A([\d.]+) [\d.]+ 0 [01] 1 "
RINGS = "all_reduce", "all_gather", "reduce_scatter"


@pytest.fixture(scope="module", params=RINGS)
def ring(request):
    return tv.microscope(request.param, "ring", world_size=3, elements=48)


def test_rings_are_drawn_so_and_others_are_not(ring):
    assert is_ring(ring)
    assert not is_ring(tv.microscope("all_reduce", "recursive_doubling", world_size=2))


def test_a_petal_is_as_long_as_the_part_of_the_ranks_in_its_sum(ring):
    scene = microscope_scene(ring)
    assert json.loads(json.dumps(scene)) == scene
    for cells, drawn in zip(frames(ring), scene["frames"]):
        lengths = [float(length) for length in re.findall(PETAL, drawn)]
        full = [cell["full"] for row in cells for cell in row if cell]
        expected = [INNER + (outer(3) - INNER) * part for part in full]
        assert lengths == pytest.approx(expected, abs=0.06)


def test_what_is_new_is_framed_and_slices_end_there(ring):
    scene = microscope_scene(ring)
    for number, step in enumerate(scene["steps"]):
        assert scene["frames"][number].count("data-message=") == len(step)
        assert scene["frames"][number + 1].count("s-fg' stroke-width='2'") == len(step)
    for path in re.findall(r"data-path='(\[.*?\])'", "".join(scene["frames"])):
        x0, y0, *_, x1, y1 = json.loads(path)
        for x, y in ((x0, y0), (x1, y1)):
            away = ((x - SIDE / 2) ** 2 + (y - SIDE / 2) ** 2) ** 0.5
            assert abs(away - RADIUS) < outer(3)


def test_slices_say_how_many_gradients_are_in_their_sum(ring):
    scene = microscope_scene(ring)
    for step, cells, drawn in zip(scene["steps"], frames(ring), scene["frames"]):
        terms = [len(cells[x["sender"]][x["place"]]["ranks"]) for x in step]
        sums = ["1 rank's" if n == 1 else f"sum of {n}" for n in terms]
        added = step[0]["phase"] == "reduce"
        found = re.findall(r">(sum of \d+|1 rank's|copy)</text>", unescape(drawn))
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
        ElementTree.fromstring(microscope_svg(scene, step, theme))


def test_flowers_do_not_touch():
    from math import pi, sin

    for n in range(2, MOST + 1):
        assert 2 * RADIUS * sin(pi / n) > 2 * outer(n) + 20
        assert outer(n) > INNER + 8
