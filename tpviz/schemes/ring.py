"""Messages round a ring of ranks: each rank sends to the one below and receives from the one above.

T3's partial sums go this way, and the keys and values of context parallelism. When a rank sends
message i it posts the receive of message i, so all ranks send and receive in step.
"""

from collections import deque
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from tpviz.core.mesh import Mesh

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh


class Neighbours:
    """A rank's place in a ring.

    group : of the ranks. back : the group in which rank 0 of two receives, see `neighbours`.
    """

    def __init__(self, group: Any, back: "dist.ProcessGroup | None" = None):
        self.group, self.rank, self.size = group, group.rank(), group.size()
        ways = group, back or group
        self.down, self.up = ways if self.rank == 0 else ways[::-1]


def neighbours(mesh: "DeviceMesh", axis: str) -> tuple["dist.ProcessGroup", Any]:
    """The two arguments of `Neighbours` for a mesh axis. Two ranks send to each other: with NCCL,
    which runs the messages of a pair one after another, each would wait for the other in one group,
    so there are two. To be called on every rank."""
    group, back = mesh.get_group(axis), None
    if group.size() == 2:
        back = Mesh.of(mesh).second_group(axis, axis, device_type=mesh.device_type)
    return group, back


class RingMessages:
    """What goes round a ring during one GEMM, or one attention: first in, first out. most : on
    their way at once."""

    def __init__(self, ring: Neighbours, most: int):
        self.ring, self.most, self.coming, self.sent = ring, most, deque(), deque()

    def pass_on(self, tensor: "torch.Tensor") -> None:
        """Send to the rank below, and ask the one above for the message of the same number."""
        ring = self.ring
        above, below = (ring.rank + 1) % ring.size, (ring.rank - 1) % ring.size
        room = tensor.new_empty(tensor.shape)
        self.coming.append((room, dist.irecv(room, group=ring.up, group_src=above)))
        self.sent.append((tensor, dist.isend(tensor, group=ring.down, group_dst=below)))
        self._let_go(self.most)

    def take(self) -> "torch.Tensor":
        """The next message from the rank above, as soon as it is here."""
        tensor, work = self.coming.popleft()
        work.wait()
        return tensor

    def finish(self) -> None:
        """Wait until all that was sent has arrived."""
        self._let_go(0)

    def _let_go(self, most):
        """Of what was sent all but the last ``most`` has arrived, and its memory is free."""
        while len(self.sent) > most:
            self.sent.popleft()[1].wait()
