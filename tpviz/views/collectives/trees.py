"""Who is whose parent in the trees of a tree all-reduce. Plain arithmetic on rank numbers.

The tree is binary and in order: ranks 0..n-1 from left to right, the odd ranks are leaves, rank 0
on top. Its depth is log2(n), rounded up. The second tree is the first one in a mirror (n even) or
moved on by one rank (n odd), so that a rank inside of one tree is a leaf of the other (n even).
Construction: Sanders, Speck, Traeff (2009), "Two-tree algorithms for full bandwidth broadcast,
reduction and scan", in the form NCCL gives it; rederived here from the bits of the rank.

>>> [parent(rank, 8) for rank in range(8)]
[None, 2, 4, 2, 0, 6, 4, 6]
"""


def parent(rank: int, size: int, tree: int = 0) -> int | None:
    """The parent of ``rank`` in tree 0 or 1 of ``size`` ranks; None for the top."""
    if tree:
        above = parent(_other(rank, size), size)
        return None if above is None else _back(above, size)
    if rank == 0:
        return None
    lowest = rank & -rank
    above = (rank ^ lowest) | (lowest << 1)
    return above if above < size else rank ^ lowest


def children(rank: int, size: int, tree: int = 0) -> list[int]:
    """The ranks whose parent is ``rank``, in order."""
    return [other for other in range(size) if parent(other, size, tree) == rank]


def depth(rank: int, size: int, tree: int = 0) -> int:
    """Steps from ``rank`` to the top."""
    above = parent(rank, size, tree)
    return 0 if above is None else 1 + depth(above, size, tree)


def height(size: int) -> int:
    """Steps from the deepest rank to the top: log2(size), rounded up."""
    return (size - 1).bit_length()


def _other(rank, size):
    """The rank whose place in the first tree this one has in the second."""
    return size - 1 - rank if size % 2 == 0 else (rank - 1) % size


def _back(rank, size):
    return size - 1 - rank if size % 2 == 0 else (rank + 1) % size
