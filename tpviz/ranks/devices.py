"""Which device a rank computes on, and which library moves its bytes."""

import os

import torch
import torch.distributed as dist


def choose_device(device: str | None, local_rank: int, local_size: int) -> tuple[str, str]:
    """``(device, inner)``: where this rank computes, and which library moves its bytes.

    NCCL refuses two ranks on one GPU, so with fewer GPUs than ranks gloo moves the bytes.
    Raises ``ValueError`` if ``device="cuda"`` was asked and there is no GPU.
    """
    gpus = 0 if device == "cpu" else torch.cuda.device_count()
    if gpus == 0:
        if device == "cuda":
            raise ValueError("device='cuda', but torch finds no GPU here; use device='cpu'")
        return "cpu", "gloo"
    torch.cuda.set_device(local_rank % gpus)
    return "cuda", _inner(local_size)


def inner_kind() -> str:
    """What moves this rank's CUDA tensors: as its launcher said, else by the rule."""
    said = os.environ.get("TPVIZ_INNER")
    if said:
        return said
    world = dist.get_world_size() if dist.is_initialized() else 1
    return _inner(int(os.environ.get("LOCAL_WORLD_SIZE", world)))


def _inner(local_size):
    """NCCL with a GPU for every rank of this host, else gloo."""
    enough = local_size <= torch.cuda.device_count()
    return "nccl" if enough and dist.is_nccl_available() else "gloo"


def badge(device: str) -> str:
    """What a picture of events on ``device`` must say about where they come from."""
    if device == "cuda":
        return "NCCL" if inner_kind() == "nccl" else "shared GPU, gloo moves the bytes"
    return "this machine, gloo"
