"""Where PyTorch asks what a group *is* and not what it can do: what it learns of recorded groups.

Importing this replaces two functions of torch, for recorded groups alone: `get_backend` and DDP's
registration of its built-in communication hooks. And torch's flight recorder leaves them alone, as
it does gloo.
"""

import functools

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    fp16_compress_hook,
)
from torch.nn.parallel import DistributedDataParallel

BUILT_IN_HOOKS = {"ALLREDUCE": allreduce_hook, "FP16_COMPRESS": fp16_compress_hook}


def _naming_the_mover(get_backend):
    @functools.wraps(get_backend)
    def named(group=None):
        """What moves the group's bytes: ``"gloo"`` or ``"nccl"``, on recorded groups too.

        Programs ask in order to know what they may call (`monitored_barrier` is gloo's) and where
        tensors must be (NCCL's on the GPU), and recording changes neither. So a program takes the
        branch that it takes on the plain backend. Whether a group is recorded is another question:
        `tpviz.runtime.backend.is_recorded`.
        """
        name = get_backend(group)
        return getattr(group or dist.group.WORLD, "moved_by", name)

    return named


def _in_python(register):
    @functools.wraps(register)
    def register_in_python(ddp, kind):
        """A built-in hook reads its collective's future in C++, where the value of an emulated
        collective's, which is done later than gloo's, cannot be read: use its Python form, which
        computes the same."""
        if not hasattr(ddp.process_group, "moved_by"):
            return register(ddp, kind)
        ddp.register_comm_hook(ddp.process_group, BUILT_IN_HOOKS[kind.name])

    return register_in_python


# From torch 2.15 on; it would ask C++ for a name that a group made in Python does not have there.
getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set()).add("tpviz")
dist.get_backend = dist.distributed_c10d.get_backend = _naming_the_mover(dist.get_backend)
DistributedDataParallel._register_builtin_comm_hook = _in_python(  # pyright: ignore[reportAttributeAccessIssue]
    DistributedDataParallel._register_builtin_comm_hook
)
