"""What adds up the gradients of one bucket, as data: collectives, one behind the other (derived).

Of S bytes in a bucket, n ranks that share states or just add up, m groups of them (`shard`):

    ZeRO 0       all-reduce of S
    ZeRO 1 to 3  reduce-scatter of S over n, and with m > 1 an all-reduce of S / n over m

In few bits, P(k) being the bytes that k numbers take when packed, of N numbers:

    over n       all-to-all of n P(N / n) in place of the reduce-scatter
    everywhere   behind it an all-gather of n P(N / n): with it, of an all-reduce

In two levels (`within`), n ranks in each of m groups: what is over n m ranks above becomes

    reduce-scatter  of S over n, then of S / n over m
    all-reduce      reduce-scatter of S over n, all-reduce of S / n over m, all-gather of S over n
    all-gather      of S / n over m, then of S over n

so that a rank sends (m - 1) / m S / n across groups, where in a ring of all the ranks one of each
group sends (n m - 1) / (n m) S. In few bits an all-to-all in place of each reduce-scatter: qgZ.
"""

from typing import TYPE_CHECKING

from tpviz.core.step import Collective

if TYPE_CHECKING:
    from .buckets import Bucket
    from .strategy import DataParallel

BLOCK = 256
"""Numbers that share a scale (ours: the paper leaves it open)."""
SCALE = 4
"""Bytes of a scale, a float32."""
BITS = {"full": 0, "int8": 8, "int4": 4}
"""{value of the knob ``gradients``: bits of a number that is sent, 0: all of its own}."""


def packed_bytes(numel: int, bits: int) -> int:
    """Bytes of so many numbers in blocks of integers with one scale each.

    >>> packed_bytes(1024, 8), packed_bytes(1024, 4), packed_bytes(3, 4)
    (1040, 528, 6)
    """
    return SCALE * -(-numel // BLOCK) + -(-numel * bits // 8)


def sums(s: "DataParallel", bucket: "Bucket", item: int) -> tuple[Collective, ...]:
    """The collectives that add up a bucket of numbers of ``item`` bytes."""
    (axis, ranks), numel = bucket.replicas, bucket.numel
    across, copies = s.across
    bits = BITS[s.gradients]
    if s.within:
        return _in_two_levels(s, bucket, item, bits)
    if not bits:
        first = Collective(axis, "reduce_scatter", numel * item) if s.zero else None
        then = (Collective(across, "all_reduce", numel // ranks * item),) * (copies > 1)
        return first or s.summing(numel * item)._replace(axis=axis), *then
    inside = _packed(axis, ranks, numel, bits)
    then = _packed(across, copies, numel // ranks, bits) if copies > 1 else ()
    return (inside[0], *then) if s.zero else inside


def _packed(axis: str, ranks: int, numel: int, bits: int):
    """(the all-to-all, the all-gather) of so many numbers."""
    size = ranks * packed_bytes(numel // ranks, bits)
    return tuple(Collective(axis, kind, size) for kind in ("all_to_all", "all_gather"))


def _in_two_levels(s: "DataParallel", bucket: "Bucket", item: int, bits: int):
    near, ranks = bucket.near
    size, part = bucket.numel, bucket.numel // ranks
    if bits:
        inside, outside = (
            _packed(near, ranks, size, bits),
            _packed("across", s.levels, part, bits),
        )
        return (inside[0], outside[0]) if s.zero else (inside[0], *outside, inside[1])
    first = Collective(near, "reduce_scatter", size * item)
    if s.zero:
        return first, Collective("across", "reduce_scatter", part * item)
    again = Collective(near, "all_gather", size * item)
    return first, Collective("across", "all_reduce", part * item), again


def gathers(bucket: "Bucket", item: int, two_levels: bool) -> tuple[Collective, ...]:
    """The collectives that gather a bucket's parameters, one behind the other."""
    size, near = bucket.numel * item, bucket.near
    if not two_levels:
        return (Collective(bucket.axis, "all_gather", size),)
    across = Collective("across", "all_gather", size // near.ranks)
    return across, Collective(near.axis, "all_gather", size)
