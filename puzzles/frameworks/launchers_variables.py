"""frameworks.launchers_variables: Which rank am I?

rankwise check frameworks.launchers_variables
rankwise hint frameworks.launchers_variables

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Mapping


def place_of(environment: Mapping[str, str]) -> tuple[int, int, int]:
    """Which rank am I?

    A program shall run under whatever starts it: torchrun, Open MPI's mpiexec,
    MPICH's mpiexec, or Slurm's srun. Each tells a process in variables of its
    environment which rank it is, of how many, and which one on its own machine:

        torchrun   RANK, WORLD_SIZE, LOCAL_RANK
        Open MPI   OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE,
                   OMPI_COMM_WORLD_LOCAL_RANK
        MPICH      PMI_RANK, PMI_SIZE, MPI_LOCALRANKID
        srun       SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID

    On a cluster more than one of these may be there. srun may have started
    torchrun once on each node, and a batch script, which is itself a task of
    Slurm, may have called mpiexec: then what started the program last is right.
    In an allocation without srun, Slurm has set some of its variables, and has
    started nothing.

    Args:
        environment: variables and their values, as in `os.environ`: some
            hundreds.

    Returns: (rank, world_size, local_rank), numbers; (0, 1, 0) where no
    launcher has set all three.

    Budget: a few look-ups.
    """
    raise NotImplementedError("not solved yet")
