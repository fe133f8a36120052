"""Calls of torch.distributed in which ranks may differ, and some in which they may not."""

import functools
import warnings

import torch
import torch.distributed as dist

SIZE = 3


def _quietly(work):
    @functools.wraps(work)
    def quiet():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # names that torch is about to change
            work()

    return quiet


@_quietly
def legal():
    """What three ranks may do although they do not all say the same."""
    rank, group = dist.get_rank(), dist.new_group(range(SIZE))
    parts = [[1, 2, 3], [4, 0, 1], [2, 2, 2]]  # [sender][receiver]: rows that it sends
    sent, got = parts[rank], [row[rank] for row in parts]
    dist.all_to_all_single(torch.empty(sum(got)), torch.ones(sum(sent)), got, sent)
    several = [torch.empty(2) for _ in range(SIZE)]
    dist.gather(torch.ones(2), several if rank == 2 else None, dst=2)
    dist.scatter(torch.empty(2), several if rank == 1 else None, src=1)
    if rank == 0:
        works = [dist.isend(torch.ones(4), 1, tag=7), dist.isend(torch.ones(2), 1, tag=8)]
        works.append(dist.isend(torch.ones(3), 2))
    elif rank == 1:  # taken in another order
        works = [dist.irecv(torch.empty(2), 0, tag=8), dist.irecv(torch.empty(4), 0, tag=7)]
    else:
        works = [dist.irecv(torch.empty(3), 0)]
    ring = [
        dist.P2POp(dist.isend, torch.ones(rank + 1), (rank + 1) % SIZE),
        dist.P2POp(dist.irecv, torch.empty((rank - 1) % SIZE + 1), (rank - 1) % SIZE),
    ]
    for work in [*works, *dist.batch_isend_irecv(ring)]:
        work.wait()
    sums = [torch.ones(2), torch.ones(3)]
    dist.all_reduce_coalesced(sums)
    whole = torch.empty(2 * SIZE)
    if rank:  # by another function of the same collective
        dist.all_gather_into_tensor(whole, torch.ones(2), group=group)
    else:
        dist.all_gather(list(whole.split(2)), torch.ones(2), group=group)
    dist.reduce_scatter_tensor(torch.empty(2), torch.ones(2 * SIZE), op=dist.ReduceOp.MAX)
    pair = dist.new_group([0, 2])
    if rank != 1:
        dist.broadcast(torch.ones(5), 2, group=pair)
    dist.barrier()


CLASHES = {
    "sizes": (
        lambda rank: dist.all_reduce(torch.ones(100 if rank == 0 else 200)),
        "all_reduce #{}: 400 bytes on rank 0, 800 on rank 1 (axis world, ranks 0,1)",
    ),
    "roots": (
        lambda rank: dist.broadcast(torch.ones(2), rank),
        "broadcast #{}: float32 (root 0) on rank 0, float32 (root 1) on rank 1 "
        "(axis world, ranks 0,1)",
    ),
    "reductions": (
        lambda rank: dist.all_reduce(
            torch.ones(2), op=[dist.ReduceOp.SUM, dist.ReduceOp.MAX][rank], async_op=True
        ),
        "all_reduce #{}: sum of float32 on rank 0, max of float32 on rank 1 "
        "(axis world, ranks 0,1)",
    ),
    "dtypes": (
        lambda rank: dist.all_reduce(torch.ones(2, dtype=[torch.float32, torch.int32][rank])),
        "all_reduce #{}: sum of float32 on rank 0, sum of int32 on rank 1 (axis world, ranks 0,1)",
    ),
    "operations": (
        lambda rank: [dist.all_reduce, dist.barrier][rank](*[torch.ones(2)][: 1 - rank]),
        "collective #{}: all_reduce on rank 0, barrier on rank 1 (axis world, ranks 0,1)",
    ),
}
"""What two ranks do that does not go together, by what they disagree in; and how it is told."""
