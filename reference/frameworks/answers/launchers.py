"""Which rank a process is, by what its launcher has put into the environment."""

from collections.abc import Mapping

LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)
"""Those that start others come last: torchrun and mpiexec are themselves started by srun, on each node once."""


def place_of(environment: Mapping[str, str]) -> tuple[int, int, int]:
    """Rank, number of ranks, and rank on this machine.

    Args:
        environment: of a process that torchrun, Open MPI's or MPICH's mpiexec, or Slurm's srun has started; or none.

    Returns:
        (rank, world_size, local_rank); (0, 1, 0) for a process that no launcher has started.
    """
    for names in LAUNCHERS:
        if all(name in environment for name in names):
            rank, size, local = (int(environment[name]) for name in names)
            return rank, size, local
    return 0, 1, 0
