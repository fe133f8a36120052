"""All exercises by name, in the order of the course."""

from dataclasses import replace

from . import (
    atp,
    atp_layers,
    axes,
    axonn,
    axonn_grids,
    axonn_layers,
    axonn_norm,
    bugs,
    capstone,
    costs,
    layouts,
    memory,
    merak,
    merak_orders,
    merak_ranks,
    overlap,
    pipelines,
    regrets,
    start,
    t3,
    t3_maps,
    t3_tiles,
    t3_tracker,
    tensor,
    zero,
)
from .task import Exercise

COURSE = {
    "00_start": {
        "mean_over_ranks": ("collectives", 1, 10),
        "row_parallel": ("tensor parallelism", 1, 10),
    },
    "01_ranks_meshes_collectives": {
        "all_reduce_in_two": ("collectives", 1, 10),
        "bus_bandwidth": ("collectives", 1, 10),
        "ring_all_reduce": ("collectives", 3, 30),
        "mlp_on_mesh": ("tensor parallelism", 2, 15),
    },
    "02_data_parallelism": {
        "zero_bucket": ("data parallelism", 1, 10),
        "zero_step": ("data parallelism", 2, 20),
        "zero_states": ("memory", 1, 10),
        "zero_sent": ("data parallelism", 1, 10),
    },
    "03_tensor_parallelism": {
        "tp_input_gradient": ("tensor parallelism", 1, 10),
        "sp_mlp": ("tensor parallelism", 2, 20),
        "tp_sent": ("tensor parallelism", 2, 15),
        "tp_activations": ("memory", 2, 15),
    },
    "04_pipelines": {
        "pipe_1f1b": ("pipelines", 2, 20),
        "pipe_by_hand": ("pipelines", 3, 30),
        "pipe_bubble": ("pipelines", 1, 10),
        "pipe_in_flight": ("memory", 2, 15),
    },
    "05_memory_and_precision": {
        "loss_scale": ("memory", 2, 15),
        "master_weights": ("data parallelism", 2, 20),
        "mem_states": ("memory", 1, 10),
        "mem_recompute": ("memory", 2, 15),
    },
    "06_overlap": {
        "overlap_exposed": ("overlap", 1, 15),
        "overlap_bucket": ("overlap", 2, 15),
        "overlap_prefetch": ("overlap", 2, 20),
        "overlap_used_early": ("overlap", 1, 10),
    },
    "07_cost_models": {
        "ring_time": ("cost models", 1, 10),
        "axis_for_tp": ("cost models", 2, 15),
        "best_chunks": ("overlap", 2, 15),
        "scale_rates": ("cost models", 2, 15),
        "find_straggler": ("faults", 2, 15),
    },
    "08_beat_the_cluster": {
        "beat_bubble": ("pipelines", 1, 10),
        "beat_fits": ("memory", 2, 15),
        "beat_between": ("cost models", 2, 20),
        "beat_regret": ("search", 1, 10),
        "beat_rank": ("search", 2, 20),
        "beat_rule": ("search", 3, 30),
    },
    "09_capstone": {
        "capstone_levels": ("collectives", 2, 20),
        "capstone_cluster": ("search", 3, 60),
        "capstone_published": ("search", 3, 40),
    },
    "10_atp": {
        "atp_owned": ("tensor parallelism", 1, 10),
        "atp_column_linear": ("tensor parallelism", 2, 15),
        "atp_column_backward": ("tensor parallelism", 3, 25),
        "atp_wire_bytes": ("cost models", 2, 15),
        "atp_best_mesh": ("search", 2, 20),
        "atp_mesh_for": ("search", 2, 15),
        "atp_chunk_count": ("overlap", 2, 15),
        "atp_chunked_linear": ("overlap", 3, 25),
        "atp_bugs": ("faults", 3, 40),
    },
    "11_axonn": {
        "axonn_coords": ("meshes", 1, 10),
        "axonn_special": ("meshes", 2, 15),
        "axonn_piece": ("tensor parallelism", 2, 15),
        "axonn_linear": ("tensor parallelism", 2, 20),
        "axonn_backward": ("tensor parallelism", 3, 30),
        "axonn_wire_bytes": ("cost models", 2, 20),
        "axonn_grid_for": ("search", 2, 15),
        "axonn_gathers": ("overlap", 3, 25),
        "axonn_norm": ("tensor parallelism", 2, 20),
        "axonn_bugs": ("faults", 3, 40),
    },
    "12_merak": {
        "merak_schedule": ("pipelines", 2, 20),
        "merak_in_flight": ("pipelines", 1, 15),
        "merak_bubble": ("pipelines", 2, 15),
        "merak_early": ("pipelines", 3, 30),
        "merak_keep": ("memory", 2, 20),
        "merak_memory": ("memory", 2, 20),
        "merak_cuts": ("pipelines", 2, 20),
        "merak_ties": ("pipelines", 2, 20),
        "merak_halves": ("overlap", 3, 40),
        "merak_bugs": ("faults", 3, 45),
    },
    "13_t3": {
        "t3_share": ("cost models", 1, 10),
        "t3_order": ("overlap", 1, 10),
        "t3_ring_maps": ("overlap", 3, 30),
        "t3_other_maps": ("overlap", 3, 30),
        "t3_traffic": ("memory", 2, 20),
        "t3_pays": ("cost models", 2, 20),
        "t3_tracker": ("memory", 3, 25),
        "t3_policy": ("overlap", 2, 15),
        "t3_tile": ("overlap", 2, 15),
        "t3_bugs": ("faults", 3, 45),
    },
}
"""{notebook: {exercise: (topic, difficulty from 1 to 3, minutes)}}."""

_MODULES = (start, costs, axes, atp, atp_layers, axonn, axonn_grids, axonn_layers, axonn_norm)
_MODULES += (
    merak,
    merak_ranks,
    merak_orders,
    t3,
    t3_maps,
    t3_tiles,
    t3_tracker,
    bugs,
    layouts,
    zero,
    tensor,
)
_MODULES += (pipelines, capstone, overlap, memory, regrets)
_ALL = [value for module in _MODULES for value in vars(module).values()]
_BY_NAME = {value.name: value for value in _ALL if isinstance(value, Exercise)}
EXERCISES: dict[str, Exercise] = {
    name: replace(_BY_NAME[name], notebook=notebook, topic=topic, difficulty=hard, minutes=minutes)
    for notebook, rows in COURSE.items()
    for name, (topic, hard, minutes) in rows.items()
}


def exercise(name: str) -> Exercise:
    """The exercise called ``name``, which shows its task. Raises ValueError for other names."""
    if name not in EXERCISES:
        raise ValueError(f"no exercise is called {name!r}; there are {', '.join(EXERCISES)}")
    return EXERCISES[name]
