"""Messages between the ranks of a pipeline: sent when made, received in the order they are made.

What goes from one rank to another is a queue, in the order of the sender's schedule. The receiver
asks for the next few before it needs them, so that they travel while it computes; tags are not
needed, and each direction has a group of its own, so that two ranks that send to each other do not
wait for each other (NCCL runs the messages of a group one after another).
"""

from collections import deque
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from tpviz.core.labels import label

from .p2p_plan import PREFETCH, Message, P2PPlan


class Messages:
    """One rank's messages. down, up: groups of all ranks of the pipeline, for messages to higher
    and to lower ranks; empty(message): tensors to receive one into."""

    def __init__(
        self,
        p2p_plan: P2PPlan,
        down: dist.ProcessGroup,
        up: dist.ProcessGroup,
        empty: Callable[[Message], list[torch.Tensor]],
    ):
        self.p2p_plan, self.groups, self.empty = p2p_plan, (up, down), empty

    def begin(self) -> None:
        """Begin a step, with no message in flight."""
        self.asked = dict.fromkeys(self.p2p_plan.incoming, 0)
        self.receiving, self.here = {}, {}
        self.sent = {r: deque() for r in range(self.groups[0].size())}
        for source in self.p2p_plan.incoming:
            self._ask(source, PREFETCH)

    def _group(self, source, target):
        return self.groups[target > source]

    def put(self, message: Message, tensors: Sequence[torch.Tensor]) -> None:
        """Give a message away: to the other rank, or to this rank's own later action."""
        if not self.p2p_plan.travels(message):
            self.here[message] = tensors
            return
        target = self.p2p_plan.target[message]
        group = self._group(self.p2p_plan.rank, target)
        with label(phase=message.phase, microbatch=message.microbatch, layer=""):
            for tensor in tensors:
                tensor = tensor.contiguous()
                work = dist.isend(tensor, group=group, group_dst=target)
                self.sent[target].append((message, tensor, work))

    def take(self, message: Message) -> Sequence[torch.Tensor]:
        """The tensors of a message, as soon as they are there."""
        if not self.p2p_plan.travels(message):
            return self.here.pop(message)
        source = self.p2p_plan.source[message]
        self._ask(source, self.p2p_plan.incoming[source].index(message) + 1)
        tensors, works = self.receiving.pop(message)
        for work in works:
            work.wait()
        self._let_go(source, self.p2p_plan.made_at[message])
        under_way = sum(self.p2p_plan.source[m] == source for m in self.receiving)
        self._ask(source, self.asked[source] + PREFETCH - under_way)
        return tensors

    def _ask(self, source, count):
        """Have the first ``count`` messages of a queue on their way."""
        for message in self.p2p_plan.incoming[source][self.asked[source] : count]:
            tensors = self.empty(message)
            with label(phase=message.phase, microbatch=message.microbatch, layer=""):
                works = [
                    dist.irecv(t, group=self._group(source, self.p2p_plan.rank), group_src=source)
                    for t in tensors
                ]
            self.receiving[message] = tensors, works
            self.asked[source] += 1

    def _let_go(self, rank, place):
        """Of what was sent to a rank, what it had used before it made its action ``place`` has
        arrived."""
        sent = self.sent[rank]
        while sent and self.p2p_plan.needed_at[sent[0][0]] < place:
            sent.popleft()[2].wait()

    def finish(self) -> None:
        """End a step: wait until all messages sent have arrived."""
        for sent in self.sent.values():
            while sent:
                sent.popleft()[2].wait()
