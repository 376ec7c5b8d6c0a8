"""networks.hierarchical_time: let the slow links carry as little as they can."""

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn, magnitudes
from reference.networks.hierarchical import hierarchical_time

NVLINK, PCIE, INFINIBAND = (1.9e-6, 450e9), (5e-6, 25e9), (4e-6, 50e9)
HOME = (20e-3, 2.5e6)


def phase_by_phase(case, inputs):
    """Every step by itself: around the node, around the nodes, around the node again."""
    local, nodes = case.ranks_per_node, case.nodes
    steps = [(case.intra, case.size / local) for _ in range(local - 1)]
    steps += [(case.inter, case.size / local / nodes) for _ in range(nodes - 1) for half in range(2)]
    steps += [(case.intra, case.size / local) for _ in range(local - 1)]
    return [sum((alpha + size / beta for (alpha, beta), size in steps), 0.0)]


def steps_of_a_phase_alike(case, inputs):
    """The same, where there are too many steps to take."""
    (alpha, beta), (far, slow) = case.intra, case.inter
    chunk = case.size / case.ranks_per_node
    within = 2 * (case.ranks_per_node - 1) * (alpha + chunk / beta)
    return [within + 2 * (case.nodes - 1) * (far + chunk / case.nodes / slow)]


PUZZLE = Puzzle(
    name="networks.hierarchical_time",
    title="Predict a hierarchical all-reduce",
    statement="""
        Links within a node are fast, links between nodes are slow. So an all-reduce on two levels goes in three phases:

        1. reduce-scatter around a ring within each node: every rank holds its node's sum of one piece of the tensor,
           1/ranks_per_node of it;
        2. all-reduce of that piece, around a ring of the ranks that hold the same piece, one in each node. All these
           rings run at the same time, each rank with a link of its own;
        3. all-gather around a ring within each node.

        A message of b bytes takes α + b/β seconds on its link. How long until the last rank is done?

        Args:
            nodes: how many nodes, at least 1.
            ranks_per_node: ranks in each, at least 1.
            size: bytes of the tensor that each rank brings.
            intra: (α, β) of a link within a node, in seconds and bytes per second.
            inter: (α, β) of a link between nodes.

        Returns: seconds.

        Budget: a formula.
        """,
    function=hierarchical_time,
    cases=cases(
        worlds=(1,),
        nodes=(2, 1, 3, 2048),
        ranks_per_node=(8, 1, 4),
        size=(1e9, 1e4),
        intra=(NVLINK,),
        inter=(INFINIBAND,),
    )
    + cases(worlds=(1,), nodes=(5,), ranks_per_node=(8,), size=(4e6,), intra=(NVLINK, PCIE), inter=(HOME,)),
    drawn=(
        drawn(
            worlds=(1,),
            nodes=range(1, 300),
            ranks_per_node=range(1, 73),
            size=magnitudes(3, 10),
            intra=(NVLINK, PCIE),
            inter=(INFINIBAND, HOME),
        ),
    ),
    scale=Scale(
        cases(
            worlds=(1,),
            nodes=(10**12, 5),
            ranks_per_node=(8, 10**12),
            size=(1e9,),
            intra=(NVLINK,),
            inter=(INFINIBAND,),
        ),
        "the number of ranks",
        oracle=steps_of_a_phase_alike,
    ),
    oracle=phase_by_phase,
    tolerance=1e-9,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 15,
            optimum=lambda case: 1,
            why="the steps of a phase all take the same time: multiply",
        ),
    ),
    hints=(
        "How many steps has each phase, on which link, and how many bytes are in one message?",
        "With L ranks in a node: phase 1 and phase 3 are L-1 steps of size/L each. Phase 2 is a ring all-reduce of "
        "size/L among `nodes` ranks.",
        "Phase 2 is 2(nodes-1) steps of size/L/nodes.",
    ),
    wrong=(
        Wrong(
            "whole tensors between nodes",
            diagnosis=r"expected 0\.006423\d*, got 0\.0239",
            edits=(("inter[0] + piece / nodes / inter[1]", "inter[0] + size / nodes / inter[1]"),),
        ),
        Wrong(
            "no all-gather in the end",
            diagnosis=r"expected 0\.006423\d*, got 0\.0044",
            edits=(("within = 2 * ", "within = "),),
        ),
        Wrong(
            "fast and slow links confused",
            diagnosis=r"expected 0\.006423\d*, got 0\.0353",
            edits=(("    piece = size", "    intra, inter = inter, intra\n    piece = size"),),
        ),
        Wrong(
            "the pieces of a piece forgotten",
            diagnosis=r"right with nodes=1, wrong with nodes=2",
            edits=(("piece / nodes / inter[1]", "piece / inter[1]"),),
        ),
        Wrong(
            "a flat ring of all ranks",
            diagnosis=r"expected 0\.006423\d*, got 0\.0376",
            body="""
                n = nodes * ranks_per_node
                return 2 * (n - 1) * (inter[0] + size / n / inter[1])
                """,
        ),
        Wrong(
            "a loop over the steps",
            diagnosis=r"right, but it runs [\d,]+ lines where 15 must do.*\n.*: multiply",
            body="""
                seconds, piece = 0.0, size / ranks_per_node
                for _ in range(2 * (ranks_per_node - 1)):
                    seconds += intra[0] + piece / intra[1]
                for _ in range(2 * (nodes - 1)):
                    seconds += inter[0] + piece / nodes / inter[1]
                return seconds
                """,
        ),
        Wrong(
            "always the same links within a node",
            diagnosis=r"right with intra=\(1\.9e-06, .*wrong with intra=\(5e-06, ",
            edits=(("    piece = size", "    intra = (1.9e-6, 450e9)\n    piece = size"),),
        ),
    ),
)
