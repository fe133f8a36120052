"""Engines that mpiexec starts, without MPI in them: ipyparallel's own import mpi4py."""

from ipyparallel.cluster.launcher import MPIEngineSetLauncher


class PlainMPIEngines(MPIEngineSetLauncher):
    """One engine for each process of mpiexec, numbered by the controller."""

    @property
    def program(self) -> list[str]:
        return self.engine_cmd
