"""The trees: every rank hangs on one top, no deeper than log2(n), at most two children each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpviz.views.collectives import trees
from tpviz.views.figures import microscope_layout

sizes = st.integers(2, 200)
numbers = st.integers(0, 1)


@given(sizes, numbers)
def test_every_rank_hangs_on_one_top(size, tree):
    tops = [r for r in range(size) if trees.parent(r, size, tree) is None]
    assert len(tops) == 1
    assert max(trees.depth(r, size, tree) for r in range(size)) == trees.height(size)


@given(sizes, numbers)
def test_children_are_whose_parent_one_is_and_at_most_two(size, tree):
    below = [trees.children(r, size, tree) for r in range(size)]
    assert sorted(c for kids in below for c in kids) == sorted(
        r for r in range(size) if trees.parent(r, size, tree) is not None
    )
    assert all(len(kids) <= 2 for kids in below)


@given(sizes.map(lambda n: n // 2 * 2))
def test_a_rank_inside_of_one_tree_is_a_leaf_of_the_other(size):
    for rank in range(size):
        inside = [bool(trees.children(rank, size, tree)) for tree in (0, 1)]
        assert not all(inside)


def test_nccl_shapes():
    """The trees that NCCL's ncclGetBtree gives for 4, 5 and 8 ranks, worked out by hand."""
    assert [trees.parent(r, 4) for r in range(4)] == [None, 2, 0, 2]
    assert [trees.parent(r, 5) for r in range(5)] == [None, 2, 4, 2, 0]
    assert [trees.parent(r, 8) for r in range(8)] == [None, 2, 4, 2, 0, 6, 4, 6]
    assert [trees.parent(r, 4, 1) for r in range(4)] == [1, 3, 1, None]


@pytest.mark.parametrize("size", range(2, 17))
def test_the_figure_draws_the_same_tree(size):
    above = [None] + [microscope_layout._parent(r, size) for r in range(1, size)]
    assert above == [trees.parent(r, size) for r in range(size)]
