"""All exercises by name, in the order of the course."""

from . import (
    atp,
    atp_bugs,
    atp_choices,
    atp_layers,
    atp_overlap,
    axonn_bugs,
    costs,
    costs_runs,
    meshes,
    start,
)

COURSE = (start.MEAN, start.ROWS, meshes.IN_TWO, meshes.MLP,
          costs.RING_TIME, costs.BUS, costs.AXIS, costs.CHUNKS,
          costs_runs.RATES, costs_runs.STRAGGLER, costs_runs.RING,
          atp.OWNED, atp_layers.COLUMN, atp_overlap.BACKWARD, atp.WIRE, atp.BEST_MESH,
          atp_choices.MESH_FOR, atp_choices.CHUNK_COUNT, atp_overlap.CHUNKED, atp_bugs.BUGS,
          axonn_bugs.BUGS)
EXERCISES = {exercise.name: exercise for exercise in COURSE}


def find(name):
    """The exercise called ``name``. Raises ValueError with the names there are."""
    if name not in EXERCISES:
        raise ValueError(f"no exercise is called {name!r}; there are {', '.join(EXERCISES)}")
    return EXERCISES[name]
