"""Checkpoints written and read by all ranks: torch.distributed.checkpoint."""

import shutil
import tempfile
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from zoo import ITEM, PICKLES, RANKS, on_own_data, program
from zoo_models import PARAMETERS, mlp, training

# Saving gathers each rank's plan and scatters the whole's, gathers what was written and broadcasts
# that it was; loading does the first again, then all gather what was read. An object's length goes
# ahead of it: gather_object is an all-gather and a gather, a broadcast is two, all_gather_object
# two, scatter_object_list a broadcast and two scatters. The folder's name is broadcast first.
DIALOGUE = {
    "all_gather": (3 + 2, None),
    "gather": (3, None),
    "scatter": (2 * 2, None),
    "broadcast": (2 * 1 + 2 + 2, None),
}


@contextmanager
def _shared_folder():
    path = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(path, src=0)
    yield path[0]
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(path[0])


# Parameters are gathered once (the root keeps them for backward), and gradients reduced.
@program(
    {("dp", name): ledger for name, ledger in DIALOGUE.items()}
    | {
        ("dp", "barrier"): (1, 0),
        ("dp", "reduce_scatter"): (1, PARAMETERS * ITEM),
        ("dp", "all_gather"): (DIALOGUE["all_gather"][0] + 1, None),
    },
    emulated_tolerance=1e-9,
    uncaptured=PICKLES,
)
def checkpoint_of_fsdp():
    """A sharded model and its optimizer are saved, spoilt and loaded."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(mlp(), mesh=init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    backward = training(model, on_own_data())

    def state():
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments}

    def step():
        loss = backward()
        optimizer.step()
        with _shared_folder() as folder:
            checkpoint.save(state(), checkpoint_id=folder)
            with torch.no_grad():
                for p in model.parameters():
                    p.zero_()
            loaded = state()
            checkpoint.load(loaded, checkpoint_id=folder)
            set_state_dict(
                model,
                optimizer,
                model_state_dict=loaded["model"],
                optim_state_dict=loaded["optimizer"],
            )
        return loss

    return step, lambda: list(model.parameters())


@program(
    {("world", name): ledger for name, ledger in DIALOGUE.items()} | {("world", "barrier"): (2, 0)},
    uncaptured=PICKLES,
)
def checkpoint_in_the_background():
    """What each rank has is saved by a thread of its own, and loaded."""
    from torch.distributed import checkpoint

    own = torch.full((4,), float(dist.get_rank()))
    name, found = f"rank {dist.get_rank()}", {}

    def step():
        with _shared_folder() as folder:
            checkpoint.async_save({name: own}, checkpoint_id=folder).result()
            dist.barrier()
            found[name] = torch.zeros(4)
            checkpoint.load(found, checkpoint_id=folder)
        return own.sum()

    return step, lambda: list(found.values())
