"""Which device a rank computes on, and which library moves its bytes."""

import torch
import torch.distributed as dist


def choose_device(device, local_rank: int, local_size: int) -> tuple[str, str]:
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
    return "cuda", "nccl" if gpus >= local_size and dist.is_nccl_available() else "gloo"
