"""frameworks.launchers_variables: which rank am I, and who says so?"""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.frameworks.answers.launchers import place_of

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
MPICH = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID")
SRUN = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
STARTED = {
    "torchrun": TORCHRUN,
    "Open MPI": OPEN_MPI,
    "MPICH": MPICH,
    "srun": SRUN,
    "torchrun under srun": TORCHRUN,
    "Open MPI in a batch script": OPEN_MPI,
    "MPICH in a batch script": MPICH,
    "none": (),
    "none, in an allocation": (),
}
OTHERS, MANY = 300, 100_000  # variables that say nothing about ranks


def environment_of(case, rank):
    """What a process finds: of n nodes with `per_node` ranks each; srun has started one process on each node."""
    mine, size = case.node * case.per_node + case.place, case.nodes * case.per_node
    found = {f"MODULE_{i:03}": str(i) for i in range(case.others)}
    names = STARTED[case.by]
    found |= dict(zip(names, map(str, (mine, size, case.place)), strict=True)) if names else {}
    if case.by == "torchrun under srun":
        found |= dict(zip(SRUN, map(str, (case.node, case.nodes, 0)), strict=True))
    if "batch script" in case.by:
        found |= dict(zip(SRUN, ("0", "1", "0"), strict=True))
    if case.by == "none, in an allocation":
        found |= {"SLURM_NTASKS": str(size), "SLURM_JOB_NUM_NODES": str(case.nodes)}
    if case.by == "srun":
        found |= {"SLURM_NODEID": str(case.node), "SLURM_NNODES": str(case.nodes)}
    return {"environment": found}


def where_it_was_put(case, inputs):
    """What the case says."""
    if not STARTED[case.by]:
        return [(0, 1, 0)]
    return [(case.node * case.per_node + case.place, case.nodes * case.per_node, case.place)]


PUZZLE = Puzzle(
    name="frameworks.launchers_variables",
    title="Which rank am I?",
    statement="""
        A program shall run under whatever starts it: torchrun, Open MPI's mpiexec, MPICH's mpiexec, or Slurm's srun.
        Each tells a process in variables of its environment which rank it is, of how many, and which one on its own
        machine:

            torchrun   RANK, WORLD_SIZE, LOCAL_RANK
            Open MPI   OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_RANK
            MPICH      PMI_RANK, PMI_SIZE, MPI_LOCALRANKID
            srun       SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID

        On a cluster more than one of these may be there. srun may have started torchrun once on each node, and a batch
        script, which is itself a task of Slurm, may have called mpiexec: then what started the program last is right.
        In an allocation without srun, Slurm has set some of its variables, and has started nothing.

        Args:
            environment: variables and their values, as in `os.environ`: some hundreds.

        Returns: (rank, world_size, local_rank), numbers; (0, 1, 0) where no launcher has set all three.

        Budget: a few look-ups.
        """,
    function=place_of,
    cases=cases(
        worlds=(1,),
        by=("torchrun", "torchrun under srun"),
        nodes=(2,),
        per_node=(4,),
        node=(1,),
        place=(2,),
        others=(OTHERS,),
    )
    + cases(worlds=(1,), by=tuple(STARTED), nodes=(3,), per_node=(2,), node=(0, 2), place=(1,), others=(OTHERS,)),
    drawn=(
        drawn(
            worlds=(1,),
            by=tuple(STARTED),
            nodes=range(2, 9),
            per_node=range(2, 9),
            node=lambda so_far: range(so_far.nodes),
            place=lambda so_far: range(so_far.per_node),
            others=(OTHERS,),
        ),
    ),
    scale=Scale(
        cases(worlds=(1,), by=("srun",), nodes=(2,), per_node=(4,), node=(1,), place=(3,), others=(MANY,)),
        "the number of variables",
    ),
    inputs=environment_of,
    oracle=where_it_was_put,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 60,
            optimum=lambda case: 4,
            why="there are twelve names to look up, however many variables there are",
        ),
    ),
    hints=(
        "Which of two launchers that have both left their variables has started the other?",
        "Look for torchrun first and for srun last: torchrun and mpiexec are started by srun, and never start it.",
        "`for names in (...): if all(name in environment for name in names): return tuple(int(environment[name]) for "
        "name in names)`, and (0, 1, 0) after the loop.",
    ),
    wrong=(
        Wrong(
            "Slurm is asked first",
            diagnosis=r"torchrun under srun.*expected 6, got 1",
            edits=(("for names in LAUNCHERS:", "for names in LAUNCHERS[::-1]:"),),
        ),
        Wrong(
            "the local rank is the rank modulo the size of the node",
            diagnosis=r"result\[2\]: expected",
            edits=(("return rank, size, local\n", "return rank, size, rank % 3\n"),),
        ),
        Wrong(
            "the first variable is enough",
            diagnosis=r"KeyError|expected",
            edits=(("if all(name in environment for name in names)", "if names[1] in environment"),),
        ),
        Wrong(
            "what is not set is zero",
            diagnosis=r"expected",
            body="""
                rank = int(environment.get("RANK", environment.get("SLURM_PROCID", 0)))
                size = int(environment.get("WORLD_SIZE", environment.get("SLURM_NTASKS", 1)))
                return rank, size, int(environment.get("LOCAL_RANK", environment.get("SLURM_LOCALID", 0)))
                """,
        ),
        Wrong(
            "strings",
            diagnosis=r"expected",
            edits=(("rank, size, local = (int(environment[name]) for", "rank, size, local = (environment[name] for"),),
        ),
        Wrong(
            "all variables, one by one",
            diagnosis=r"right, but it runs [\d,]+ lines where 60 must do.*\n.*twelve names",
            body="""
                for names in (
                    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
                    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
                    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
                    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
                ):
                    found = {}
                    for name, value in environment.items():
                        if name in names:
                            found[name] = int(value)
                    if len(found) == 3:
                        return tuple(found[name] for name in names)
                return 0, 1, 0
                """,
        ),
    ),
)
