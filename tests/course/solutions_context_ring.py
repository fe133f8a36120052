"""As `solutions_context`, of the ring on real ranks."""

import torch
import torch.distributed as dist
from solutions_context import cp_positions


def cp_ring(q, k, v):
    n, rank, half, own = dist.get_world_size(), dist.get_rank(), len(q) // 2, torch.stack((k, v))
    out, sums = torch.zeros_like(q), torch.full_like(q[:, :1], -torch.inf)
    for step in range(n):
        whose, works = (rank + step) % n, []
        if step < n - 1:
            coming = torch.empty_like(own)
            works = [dist.isend(own, (rank - 1) % n), dist.irecv(coming, (rank + 1) % n)]
        rows = slice(half if whose > rank else 0, None)
        keys, values = own[:, : half if whose < rank else None]
        scores = q[rows] @ keys.T / q.shape[1] ** 0.5
        if step == 0:
            scores += torch.full_like(scores, -torch.inf).triu(1)
        more, of_more = scores.softmax(1) @ values, scores.logsumexp(1, keepdim=True)
        both = torch.logaddexp(sums[rows], of_more)
        out[rows] = out[rows] * (sums[rows] - both).exp() + more * (of_more - both).exp()
        sums[rows] = both
        for work in works:
            work.wait()
        own = coming if works else own
    return out


def _block(q, k, v, masked):
    scores = q @ k.T / q.shape[1] ** 0.5
    if masked:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    return scores.softmax(1) @ v, scores.logsumexp(1, keepdim=True)


def _around(own, to=-1):
    """Yield (whose, what is here), the next one in flight meanwhile; to: where a rank sends."""
    n, rank = dist.get_world_size(), dist.get_rank()
    for step in range(n):
        works = []
        if step < n - 1:
            coming = torch.empty_like(own)
            works = [dist.isend(own, (rank + to) % n), dist.irecv(coming, (rank - to) % n)]
        yield (rank - to * step) % n, own
        for work in works:
            work.wait()
        own = coming if works else own


def _rescaled(out, sums, more, of_more):
    both = torch.logaddexp(sums, of_more)
    return out * (sums - both).exp() + more * (of_more - both).exp(), both


def _half(rank, whose, half):
    """(queries, keys, whether there is a mask) of a block, as slices."""
    return (
        slice(half if whose > rank else 0, None),
        slice(half if whose < rank else None),
        (whose == rank),
    )


def _ring(q, k, v, seen=_half, merge=_rescaled, to=-1, around=_around):
    """seen: as `_half`, None where there is no block."""
    rank, out, sums = dist.get_rank(), torch.zeros_like(q), torch.full_like(q[:, :1], -torch.inf)
    for whose, own in around(torch.stack((k, v)), to):
        if found := seen(rank, whose, len(q) // 2):
            rows, columns, masked = found
            block = _block(q[rows], *own[:, columns], masked)
            first = whose == rank
            out[rows], sums[rows] = block if first else merge(out[rows], sums[rows], *block)
    return out


def ring_upwards(q, k, v):
    """The other way round."""
    return _ring(q, k, v, to=1)


def ring_two_messages(q, k, v):
    n, rank, half = dist.get_world_size(), dist.get_rank(), len(q) // 2
    out, sums, here = torch.zeros_like(q), torch.full_like(q[:, :1], -torch.inf), [k, v]
    for step in range(n):
        works, coming = [], [torch.empty_like(k), torch.empty_like(v)]
        for mine, room in zip(here, coming) if step < n - 1 else ():
            works += [dist.isend(mine, (rank + 1) % n), dist.irecv(room, (rank - 1) % n)]
        rows, columns, masked = _half(rank, (rank - step) % n, half)
        block = _block(q[rows], *(one[columns] for one in here), masked)
        out[rows], sums[rows] = _rescaled(out[rows], sums[rows], *block)
        for work in works:
            work.wait()
        here = coming
    return out


def ring_own_block(q, k, v):
    return _block(q, k, v, True)[0]


def ring_by_gathering(q, k, v):
    n, rank = dist.get_world_size(), dist.get_rank()
    keys, values = ([torch.empty_like(k) for _ in range(n)] for _ in range(2))
    dist.all_gather(keys, k)
    dist.all_gather(values, v)
    seq = n * len(q)
    places = [cp_positions("zigzag", each, n, seq) for each in range(n)]
    order = torch.tensor(places).flatten()
    future = order[None] > torch.tensor(places[rank])[:, None]
    scores = (q @ torch.cat(keys).T / q.shape[1] ** 0.5).masked_fill(future, -torch.inf)
    return scores.softmax(1) @ torch.cat(values)


ALL = slice(None)


def ring_contiguous(q, k, v):
    """As the notebook's."""
    return _ring(q, k, v, lambda r, o, half: (ALL, ALL, o == r) if o <= r else None)


def ring_own_mask_everywhere(q, k, v):
    return _ring(q, k, v, lambda rank, other, half: (ALL, ALL, True))


def ring_no_mask_at_home(q, k, v):
    return _ring(q, k, v, lambda *block: (*_half(*block)[:2], False))


def ring_whole_blocks(q, k, v):
    return _ring(q, k, v, lambda rank, other, half: (ALL, ALL, other == rank))


def ring_late_keys(q, k, v):
    return _ring(q, k, v, lambda r, o, half: (ALL, ALL, False) if o < r else _half(r, o, half))


def ring_early_queries(q, k, v):
    return _ring(q, k, v, lambda r, o, half: (ALL, ALL, False) if o > r else _half(r, o, half))


def ring_without_later(q, k, v):
    return _ring(q, k, v, lambda r, o, half: None if o > r else _half(r, o, half))


def ring_added(q, k, v):
    return _ring(q, k, v, merge=lambda out, sums, more, of_more: (out + more, sums))


def ring_old_not_rescaled(q, k, v):
    def merge(out, sums, more, of_more):
        both = torch.logaddexp(sums, of_more)
        return out + more * (of_more - both).exp(), both

    return _ring(q, k, v, merge=merge)


def ring_sums_stay(q, k, v):
    return _ring(q, k, v, merge=lambda out, sums, *more: (_rescaled(out, sums, *more)[0], sums))


def _mistaken(own, to):
    """Whose they are is told as if the ring ran the other way."""
    n, rank = dist.get_world_size(), dist.get_rank()
    for whose, here in _around(own, to):
        yield (2 * rank - whose) % n, here


def ring_wrong_way(q, k, v):
    return _ring(q, k, v, around=_mistaken)


def _hops(own, to, hops):
    """A hop for each of so many blocks."""
    n, rank = dist.get_world_size(), dist.get_rank()
    for step in range(hops):
        coming = torch.empty_like(own)
        works = [dist.isend(own, (rank + to) % n), dist.irecv(coming, (rank - to) % n)]
        yield (rank - to * step) % n, own
        for work in works:
            work.wait()
        own = coming


def ring_last_hop(q, k, v):
    return _ring(q, k, v, around=lambda own, to: _hops(own, to, dist.get_world_size()))


def ring_blocks_in_vain(q, k, v):
    """Computes whole blocks, and gives what is in the future the weight 0."""
    n, rank, (out, sums) = dist.get_world_size(), dist.get_rank(), _block(q, k, v, True)
    places = [torch.tensor(cp_positions("zigzag", each, n, n * len(q))) for each in range(n)]
    for whose, (keys, values) in _around(torch.stack((k, v))):
        future = places[whose][None] > places[rank][:, None]
        scores = (q @ keys.T / q.shape[1] ** 0.5).masked_fill(future, -torch.inf)
        if whose != rank:
            more = scores.softmax(1).nan_to_num() @ values
            out, sums = _rescaled(out, sums, more, scores.logsumexp(1, keepdim=True))
    return out


def _blocking(own, to):
    n, rank = dist.get_world_size(), dist.get_rank()
    for step in range(n):
        if step:
            coming = torch.empty_like(own)
            sent = dist.isend(own, (rank + to) % n)
            dist.recv(coming, (rank - to) % n)
            sent.wait()
            own = coming
        yield (rank - to * step) % n, own


def ring_blocking(q, k, v):
    return _ring(q, k, v, around=_blocking)


RIGHT = {"cp_ring": [cp_ring, ring_upwards, ring_two_messages]}
WRONG = {
    "cp_ring": [
        (ring_own_block, "the trace shows no message"),
        (ring_by_gathering, "`all_gather` is a collective of the library"),
        (ring_contiguous, "those are the blocks of a contiguous ring"),
        (ring_own_mask_everywhere, "the mask of the rank's own"),
        (ring_no_mask_at_home, "the rank's own block has no mask"),
        (ring_whole_blocks, "half of each block is in the future"),
        (ring_late_keys, "Its second chunk comes after both"),
        (ring_early_queries, "only the second one sees them"),
        (ring_without_later, "blocks of later ranks are left out"),
        (ring_added, "the outputs of blocks are added"),
        (ring_old_not_rescaled, "the output so far is not rescaled"),
        (ring_sums_stay, "the log-sum-exp stays that of the first block"),
        (ring_wrong_way, "the ring runs the other way round than your mask"),
        (ring_last_hop, "would bring a rank's own keys back"),
        (ring_blocks_in_vain, r"rank 0 computed [\d.]+ blocks of T by T; it needs [\d.]+"),
        (ring_blocking, "no message is in flight while a block is computed"),
    ],
}
