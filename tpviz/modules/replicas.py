"""Do all ranks start from the same model? Checked by digests, or made so by a broadcast."""

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor

from tpviz.core.tables import listed
from tpviz.schemes.collectives import gather_first

if TYPE_CHECKING:
    from .layers import RankGroups


def without_numbers(model: torch.nn.Module) -> bool:
    """Whether its parameters are fake tensors, as `tpviz.capture` has them: nothing to compare."""
    return any(isinstance(p, FakeTensor) for p in model.parameters())


def agree(model: torch.nn.Module, groups: "RankGroups", broadcast: bool = False) -> None:
    """Raise ``ValueError`` on every rank if two ranks of the mesh hold other numbers, naming the
    first parameter or buffer that differs; with ``broadcast`` send those of its first rank instead.
    """
    tensors = {
        name: tensor
        for kind in (model.named_parameters, model.named_buffers)
        for name, tensor in kind()
    }
    several = [group for group in groups.by_axis.values() if group.size() > 1]
    layout = "".join(f"{name}{tuple(t.shape)}{t.dtype}" for name, t in tensors.items())
    device = next((t.device for t in tensors.values()), torch.device("cpu"))
    if _differing([_digest(layout.encode())], several, device):
        raise ValueError(
            "the ranks have different models: names, shapes or types of parameters "
            "differ; build the same model on every rank"
        )
    if broadcast:
        for tensor in tensors.values():
            _send(tensor.detach(), several)
        return
    digests = [_digest(_bytes(t)) for t in tensors.values()]
    different = _differing(digests, several, device)
    if different:
        names, first = list(tensors), different[0]
        raise ValueError(
            f"the ranks start from different numbers: {names[first]} differs ({len(different)} of "
            f"{len(names)} do): {_camps(digests[first], several, device)}; seed every rank alike "
            "before the model is made, or use parallelize(..., broadcast=True)"
        )


def differ(tensors: Sequence[torch.Tensor], groups: Sequence[dist.ProcessGroup]) -> bool:
    """Whether a tensor differs, in size or values, between ranks of the groups; collective."""
    digests = [_digest(_bytes(t)) ^ _digest(str(t.shape).encode()) for t in tensors]
    together = _digest(str(digests).encode())  # ranks may come with more or fewer
    return bool(_differing([together], groups, tensors[0].device))


def from_first(make: Callable[[], Any], groups: "RankGroups") -> Any:
    """What ``make()`` gives on the mesh's first rank, on all of them; collective. It must be the
    same on each and can be pickled: where ranks share cores, making it once saves all but one."""
    several = [group for group in groups.by_axis.values() if group.size() > 1]
    first = all(group.rank() == 0 for group in several)
    made: list[Any] = [make() if first else None]
    for group in several:  # from the first rank along one axis, then from all these along the next
        source = dist.get_process_group_ranks(group)[0]
        dist.broadcast_object_list(made, src=source, group=group)
    return made[0]


def _digest(data):
    return int.from_bytes(hashlib.blake2b(data, digest_size=7).digest(), "big")


def _bytes(tensor):
    whole = tensor.detach().cpu().contiguous()
    return whole.reshape(-1).view(torch.uint8).numpy().data if whole.numel() else b""


def _differing(digests, groups, device):
    """Indices of the digests that are not equal on all ranks: one reduce along each axis, of the
    largest and, by their opposites, the smallest."""
    high = torch.tensor(digests, dtype=torch.int64, device=device)
    both = torch.stack([high, -high])
    for group in groups:
        dist.all_reduce(both, op=dist.ReduceOp.MAX, group=group)
    return both.sum(0).nonzero().flatten().tolist()


def _camps(digest, groups, device):
    """Which ranks have the same, as in "ranks 0, 2 have one value, rank 1 has another"."""
    table = torch.tensor([[dist.get_rank(), digest]], dtype=torch.int64, device=device)
    for group in groups:
        table, work = gather_first(table, group)
        work.wait()
    camps = {}
    for rank, value in sorted(table.tolist()):
        camps.setdefault(value, []).append(str(rank))
    words = [
        f"ranks {listed(ranks)} have" if len(ranks) > 1 else f"rank {ranks[0]} has"
        for ranks in camps.values()
    ]
    return listed([f"{words[0]} one value", *(f"{word} another" for word in words[1:])])


def _send(tensor, groups):
    """From the first rank along one axis, then from all these along the other."""
    for group in groups:
        whole = tensor.contiguous()
        dist.broadcast(whole, src=dist.get_process_group_ranks(group)[0], group=group)
        tensor.copy_(whole)
