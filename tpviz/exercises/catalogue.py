"""All exercises by name, in the order of the course."""

from typing import TYPE_CHECKING

from . import (
    atp,
    atp_bugs,
    atp_choices,
    atp_layers,
    atp_overlap,
    axonn,
    axonn_bugs,
    axonn_choices,
    axonn_layers,
    axonn_step,
    costs,
    costs_runs,
    merak,
    merak_bugs,
    merak_cuts,
    merak_memory,
    merak_orders,
    merak_ranks,
    meshes,
    start,
    t3,
    t3_bugs,
    t3_maps,
    t3_memory,
    t3_tiles,
)

if TYPE_CHECKING:
    from .task import Exercise

COURSE = (
    start.MEAN,
    start.ROWS,
    meshes.IN_TWO,
    meshes.MLP,
    costs.RING_TIME,
    costs.BUS,
    costs.AXIS,
    costs.CHUNKS,
    costs_runs.RATES,
    costs_runs.STRAGGLER,
    costs_runs.RING,
    atp.OWNED,
    atp_layers.COLUMN,
    atp_overlap.BACKWARD,
    atp.WIRE,
    atp.BEST_MESH,
    atp_choices.MESH_FOR,
    atp_choices.CHUNK_COUNT,
    atp_overlap.CHUNKED,
    atp_bugs.BUGS,
    axonn.COORDS,
    axonn_choices.SPECIAL,
    axonn.PIECE,
    axonn_layers.LINEAR,
    axonn_layers.BACKWARD,
    axonn.WIRE,
    axonn_choices.GRID_FOR,
    axonn_step.GATHERS,
    axonn_step.NORM,
    axonn_bugs.BUGS,
    merak_orders.SCHEDULE,
    merak.IN_FLIGHT,
    merak.BUBBLE,
    merak_orders.EARLY,
    merak_memory.KEEP,
    merak_memory.MEMORY,
    merak_cuts.CUTS,
    merak_ranks.TIES,
    merak_ranks.HALVES,
    merak_bugs.BUGS,
    t3.SHARE,
    t3.ORDER,
    t3_maps.RING,
    t3_maps.OTHER,
    t3_memory.TRAFFIC,
    t3.PAYS,
    t3_memory.TRACKER,
    t3_memory.POLICY,
    t3_tiles.TILE,
    t3_bugs.BUGS,
)
EXERCISES: "dict[str, Exercise]" = {exercise.name: exercise for exercise in COURSE}


def find(name: str) -> "Exercise":
    """The exercise called ``name``. Raises ValueError with the names there are."""
    if name not in EXERCISES:
        raise ValueError(f"no exercise is called {name!r}; there are {', '.join(EXERCISES)}")
    return EXERCISES[name]
