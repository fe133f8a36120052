"""All exercises by name, in the order of the course."""

from dataclasses import replace

from . import (
    atp,
    atp_layers,
    axonn,
    axonn_layers,
    bugs,
    costs,
    layouts,
    merak,
    merak_orders,
    merak_ranks,
    start,
    t3,
    t3_maps,
    t3_tiles,
    zero,
)
from .task import Exercise

COURSE = {
    "00_start": ("mean_over_ranks", "row_parallel"),
    "01_ranks_meshes_collectives": ("all_reduce_in_two", "mlp_on_mesh"),
    "02_data_parallelism": ("zero_bucket", "zero_step", "zero_states", "zero_sent"),
    "07_cost_models": (
        "ring_time",
        "bus_bandwidth",
        "axis_for_tp",
        "best_chunks",
        "scale_rates",
        "find_straggler",
        "ring_all_reduce",
    ),
    "08_beat_the_cluster": (
        "beat_bubble",
        "beat_fits",
        "beat_between",
        "beat_regret",
        "beat_rank",
        "beat_rule",
    ),
    "10_atp": (
        "atp_owned",
        "atp_column_linear",
        "atp_column_backward",
        "atp_wire_bytes",
        "atp_best_mesh",
        "atp_mesh_for",
        "atp_chunk_count",
        "atp_chunked_linear",
        "atp_bugs",
    ),
    "11_axonn": (
        "axonn_coords",
        "axonn_special",
        "axonn_piece",
        "axonn_linear",
        "axonn_backward",
        "axonn_wire_bytes",
        "axonn_grid_for",
        "axonn_gathers",
        "axonn_norm",
        "axonn_bugs",
    ),
    "12_merak": (
        "merak_schedule",
        "merak_in_flight",
        "merak_bubble",
        "merak_early",
        "merak_keep",
        "merak_memory",
        "merak_cuts",
        "merak_ties",
        "merak_halves",
        "merak_bugs",
    ),
    "13_t3": (
        "t3_share",
        "t3_order",
        "t3_ring_maps",
        "t3_other_maps",
        "t3_traffic",
        "t3_pays",
        "t3_tracker",
        "t3_policy",
        "t3_tile",
        "t3_bugs",
    ),
}
"""The exercises of each notebook."""

_MODULES = (start, costs, atp, atp_layers, axonn, axonn_layers, merak, merak_ranks)
_MODULES += (merak_orders, t3, t3_maps, t3_tiles, bugs, layouts, zero)
_ALL = [value for module in _MODULES for value in vars(module).values()]
_BY_NAME = {value.name: value for value in _ALL if isinstance(value, Exercise)}
EXERCISES: dict[str, Exercise] = {
    name: replace(_BY_NAME[name], notebook=notebook)
    for notebook, names in COURSE.items()
    for name in names
}


def find(name: str) -> Exercise:
    """The exercise called ``name``. Raises ValueError with the names there are."""
    if name not in EXERCISES:
        raise ValueError(f"no exercise is called {name!r}; there are {', '.join(EXERCISES)}")
    return EXERCISES[name]
