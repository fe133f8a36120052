"""All exercises by name, in the order of the course."""

from . import costs, costs_runs, meshes, start

COURSE = (start.MEAN, start.ROWS, meshes.IN_TWO, meshes.MLP,
          costs.RING_TIME, costs.BUS, costs.AXIS, costs.CHUNKS,
          costs_runs.RATES, costs_runs.STRAGGLER, costs_runs.RING)
EXERCISES = {exercise.name: exercise for exercise in COURSE}


def find(name):
    """The exercise called ``name``. Raises ValueError with the names there are."""
    if name not in EXERCISES:
        raise ValueError(f"no exercise is called {name!r}; there are {', '.join(EXERCISES)}")
    return EXERCISES[name]
