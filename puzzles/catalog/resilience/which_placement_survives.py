"""resilience.which_placement_survives: on whose nodes copies lie decides which losses are fatal."""

from collections import Counter

from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.resilience.answers.racks import place_copies

SIZES = ((2, 2, 2), (2, 6, 2), (3, 2, 2), (3, 4, 3), (4, 2, 4), (4, 3, 2), (5, 4, 2), (6, 3, 3), (4, 3, 3), (3, 5, 1))


def few_are_fatal(case, inputs, outputs, trace):
    """Each state on nodes of different racks, each node with as many, and as few fatal losses as there can be."""
    found, total = outputs[0]["returns"], case.racks * case.nodes
    if not isinstance(found, list) or len(found) != total:
        return [Claim(False, f"it must return a list with one list of nodes for each of {total} nodes")]
    for node, holders in enumerate(found):
        words = f"the state of node {node} is on nodes {holders}"
        if not isinstance(holders, list) or any(each not in range(total) for each in holders):
            return [Claim(False, f"{words}, and nodes are 0 to {total - 1}")]
        if holders[:1] != [node]:
            return [Claim(False, f"{words}: it is on its own node first")]
        if len(set(holders)) != case.copies or len(holders) != case.copies:
            return [Claim(False, f"{words}, which are {len(set(holders))} nodes and not {case.copies}")]
        if len({each // case.nodes for each in holders}) < len(holders):
            racks = [each // case.nodes for each in holders]
            return [Claim(False, f"{words}, in racks {racks}: a switch that fails takes two copies along")]
    held = Counter(each for holders in found for each in holders)
    fullest = max(held, key=held.__getitem__)
    if held[fullest] > case.copies:
        words = f"node {fullest} holds {held[fullest]} states, and has memory for {case.copies}"
        return [Claim(False, words)]
    fatal, fewest = len({frozenset(holders) for holders in found}), total // case.copies
    said = f"{fatal} sets of {case.copies} nodes are fatal when they die together, where {fewest} must do"
    return [Claim(fatal <= fewest, said)]


def sizes(which):
    """One of the parameters, for each of SIZES."""
    return tuple(each[which] for each in SIZES)


def named():
    """All SIZES as cases."""
    return tuple(
        each
        for racks, nodes, copies in SIZES
        for each in cases(worlds=(1,), racks=(racks,), nodes=(nodes,), copies=(copies,))
    )


def divisors_up_to(so_far):
    """Numbers of copies that divide the nodes, and for which there are racks enough."""
    return [copies for copies in range(2, so_far.racks + 1) if so_far.racks * so_far.nodes % copies == 0]


PUZZLE = Puzzle(
    name="resilience.which_placement_survives",
    title="The placement that survives",
    statement="""
        Copies of each node's state lie in the memory of other nodes. A loss of some nodes at once is fatal if all that
        hold the same state are among them. Which losses these are depends on who holds whose copy, and on nothing else:
        memory and messages are the same for all placements.

        Nodes also stand in racks, and a rack has one switch: if it fails, all its nodes are gone. Place the copies so
        that no rack's loss is fatal, and as few sets of `copies` nodes as there can be.

            16 nodes in 2 racks, 2 copies of each state
            on the next node     16 of 120 pairs are fatal
            in pairs              8 of 120; one whole rack still is,
                                  if both of a pair are in it

        Args:
            racks: how many there are, at least `copies`.
            nodes: of each rack. Node i is in rack i // nodes.
            copies: m, of each state, the one on its own node counted. It divides the number of all nodes.

        Returns: for each node a list of the m nodes that hold its state, itself first. No node may hold more than m
        states.

        Budget: 20 lines, and 20 for each node; 9,600 nodes in two seconds of processor time.
        """,
    function=place_copies,
    cases=named() + cases(worlds=(1,), racks=(8,), nodes=(64,), copies=(4,)),
    drawn=(
        drawn(worlds=(1,), racks=(4, 6, 8), nodes=(2, 3, 4, 5), copies=divisors_up_to),
        drawn(worlds=(1,), racks=(2, 3, 5), nodes=(6, 12), copies=divisors_up_to),
    ),
    scale=Scale(cases(worlds=(1,), racks=(600,), nodes=(16,), copies=(4,)), "the number of pairs of nodes"),
    judge=few_are_fatal,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 20 + 20 * case.racks * case.nodes,
            optimum=lambda case: 5 + 4 * case.racks * case.nodes,
            why="an order of the nodes is enough: no node has to look at all others",
        ),
    ),
    hints=(
        "With 2 copies on 4 nodes: which pairs are fatal if each node sends to the next one? And if 0 and 1 hold each "
        "other's state, and 2 and 3?",
        "The nodes that hold a state are a set, and each set is one fatal loss. Let as many nodes as possible share "
        "one set: groups of m nodes that hold each other's state. Which nodes may be in one group?",
        "Write the nodes down place by place: the first of each rack, then the second of each rack, ... Any m of them "
        "in a row, m <= racks, are in different racks. Cut that row into groups of m.",
    ),
    wrong=(
        Wrong(
            "on the next nodes",
            diagnosis=r"in racks \[0, 0\]: a switch that fails takes two copies along",
            body="""
                total = racks * nodes
                return [[(node + k) % total for k in range(copies)] for node in range(total)]
                """,
        ),
        Wrong(
            "on the same place of the next racks",
            diagnosis=r"right|(\d+) sets of \d nodes are fatal when they die together, where \d+ must do",
            body="""
                total = racks * nodes
                return [[(node + k * nodes) % total for k in range(copies)] for node in range(total)]
                """,
        ),
        Wrong(
            "groups of neighbours",
            diagnosis=r"in racks \[0, 0\]: a switch that fails takes two copies along",
            edits=(
                (
                    "[rack * nodes + place for place in range(nodes) for rack in range(racks)]",
                    "list(range(racks * nodes))",
                ),
            ),
        ),
        Wrong(
            "its own copy is not counted",
            diagnosis=r"which are \d nodes and not \d|own node first",
            edits=(
                ("[node, *(other for other in group if other != node)]", "[other for other in group if other != node]"),
            ),
        ),
        Wrong(
            "one node keeps all",
            diagnosis=r"node \d+ holds \d+ states, and has memory for \d",
            body="""
                total = racks * nodes
                keepers = [rack * nodes for rack in range(racks)]
                found = []
                for node in range(total):
                    others = [each for each in keepers if each // nodes != node // nodes]
                    found.append([node, *others[: copies - 1]])
                return found
                """,
        ),
        Wrong(
            "a pair, however many copies",
            diagnosis=r"which are 2 nodes and not 3",
            edits=(("range(0, len(order), copies)", "range(0, len(order), 2)"), ("begin + copies]", "begin + 2]")),
        ),
        Wrong(
            "each node looks at all others",
            diagnosis=r"right, but it runs [\d,]+ lines where [\d,]+ must do",
            body="""
                total, group_of = racks * nodes, {}
                for node in sorted(range(total), key=lambda node: (node % nodes, node // nodes)):
                    if node in group_of:
                        continue
                    group = [node]
                    for other in sorted(range(total), key=lambda other: (other % nodes, other // nodes)):
                        taken = {each // nodes for each in group}
                        if len(group) == copies:
                            continue
                        if other in group_of or other in group:
                            continue
                        if other // nodes not in taken:
                            group.append(other)
                    for each in group:
                        group_of[each] = group
                return [[node, *(each for each in group_of[node] if each != node)] for node in range(total)]
                """,
        ),
    ),
)
