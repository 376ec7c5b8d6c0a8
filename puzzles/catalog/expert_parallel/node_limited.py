"""expert_parallel.node_limited: the best experts of the best nodes, and what a node is worth."""

import torch

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.expert_parallel.answers.by_node import choose_on_nodes

EIGHTHS = 4  # scores are eighths from -4/8 to 4/8: sums are exact, and many of them equal


def few_numbers(case, rank):
    """Scores of which many are equal, and about half are below 0."""
    generator = torch.Generator().manual_seed(case.seed)
    scores = torch.randint(-EIGHTHS, EIGHTHS + 1, (case.tokens, case.experts), generator=generator) / 8
    return {"scores": scores.double() - case.below, "nodes": case.nodes, "most": case.most, "k": case.k}


def token_after_token(case, inputs):
    """As it is told."""
    chosen, of_node = [], case.experts // case.nodes
    for row in inputs[0]["scores"].tolist():
        homes = [range(node * of_node, (node + 1) * of_node) for node in range(case.nodes)]
        counted = -(-case.k // case.most)
        worth = [sum(sorted((row[expert] for expert in home), reverse=True)[:counted]) for home in homes]
        best = sorted(range(case.nodes), key=lambda node: (-worth[node], node))[: case.most]
        open_to = [expert for node in best for expert in homes[node]]
        chosen.append(sorted(open_to, key=lambda expert: (-row[expert], expert))[: case.k])
    return [torch.tensor(chosen, dtype=torch.int64).view(-1, case.k)]


def by_whole_numbers(case, inputs):
    """The same for all tokens together: numbers that have a place in them, so that no two are equal."""
    eighths = ((inputs[0]["scores"] + case.below) * 8).round().long()
    grouped = eighths.unflatten(1, (case.nodes, -1))
    worth = grouped.topk(min(grouped.shape[-1], -(-case.k // case.most))).values.sum(-1)
    places = torch.arange(case.experts)
    best = (worth * case.nodes - places[: case.nodes]).topk(case.most).indices
    is_open = (places // grouped.shape[-1] == best[..., None]).any(1)
    keys = eighths * case.experts - places
    return [keys.where(is_open, -(10**9)).topk(case.k).indices]


CHOSEN = r"result\[\d+, \d\]: expected \d+, got \d+"

PUZZLE = Puzzle(
    name="expert_parallel.node_limited",
    title="Experts of a token on few nodes",
    statement="""
        Links between nodes are slow, so a token shall go to M nodes at most. Its experts are the best k of those that
        lie on the best M nodes. What is a node worth to a token? What it would get there: M nodes have k experts for
        it, which is k / M each; so a node is worth the sum of its best k / M scores, rounded up where M does not divide
        k, and no more than it has (DeepSeek-V3).

        Scores have a bias in them, so they may be below 0. Where nodes are worth the same, and where experts have equal
        scores, the one with the lower number is better.

        Args:
            scores: [T, E], of each token for each expert. T may be 0.
            nodes: each has as many experts: the first one 0, 1, ..., the next one those that follow.
            most: M.
            k: experts of a token; M nodes have at least k.

        Returns: [T, k] of int64, the experts of each token, the best first.

        Budget: 40 lines, however many tokens there are.
        """,
    function=choose_on_nodes,
    cases=cases(worlds=(1,), tokens=(6,), experts=(8,), nodes=(4,), most=(2,), k=(4,), below=(0,))
    + cases(worlds=(1,), tokens=(9,), experts=(12,), nodes=(3,), most=(1, 2, 3), k=(1, 3, 4), below=(0, 2))
    + cases(worlds=(1,), tokens=(5,), experts=(10,), nodes=(5, 1, 10), most=(1,), k=(1,), below=(0,))
    + cases(worlds=(1,), tokens=(7,), experts=(10,), nodes=(5,), most=(3, 4), k=(5, 6), below=(0, 1))
    + cases(worlds=(1,), tokens=(0, 1), experts=(6,), nodes=(2,), most=(1,), k=(2,), below=(0,))
    + cases(worlds=(1,), tokens=(2,), experts=(12,), nodes=(4,), most=(2,), k=(6,), below=(0, 1)),
    drawn=(
        drawn(
            worlds=(1,),
            tokens=range(4, 20),
            nodes=range(2, 7),
            experts=lambda so_far: [so_far.nodes * k for k in (2, 3, 4, 8)],
            most=lambda so_far: range(1, so_far.nodes + 1),
            k=lambda so_far: range(1, so_far.most * (so_far.experts // so_far.nodes) + 1),
            below=(0, 0, 1),
        ),
    )
    * 3,
    scale=Scale(
        cases(worlds=(1,), tokens=(20_000,), experts=(256,), nodes=(8,), most=(4,), k=(8,), below=(0,)),
        "the number of tokens",
        oracle=by_whole_numbers,
    ),
    inputs=few_numbers,
    oracle=token_after_token,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 40,
            optimum=lambda case: 6,
            why="sort, sum and mask all tokens at once: no loop over them is needed",
        ),
    ),
    hints=(
        "k = 4 and M = 2. One node has scores 8, 1, 1, 1, another 5, 5, 0, 0. Which one is worth more? What if all "
        "scores were 10 less: what must stand in the place of the experts of closed nodes?",
        "`scores.unflatten(1, (nodes, -1))` is [T, nodes, experts of a node]. Sort its last dim, sum the first ones, "
        "and take the best M nodes. `torch.topk` says nothing of ties: `sort(descending=True, stable=True)` does.",
        "`closed = torch.ones_like(worth, dtype=torch.bool).scatter(1, best_nodes, False)`, then "
        "`of_nodes.masked_fill(closed[..., None], -torch.inf).flatten(1)`, and the first k of a stable sort.",
    ),
    wrong=(
        Wrong(
            "a node is worth its best expert",
            diagnosis=CHOSEN,
            edits=(("    best = min(of_nodes.shape[-1], -(-k // most))\n", "    best = 1\n"),),
        ),
        Wrong(
            "a node is worth all of its experts",
            diagnosis=CHOSEN,
            edits=(("    best = min(of_nodes.shape[-1], -(-k // most))\n", "    best = of_nodes.shape[-1]\n"),),
        ),
        Wrong(
            "a node is worth its best k experts",
            diagnosis=CHOSEN,
            edits=(("-(-k // most))", "k)"),),
        ),
        Wrong(
            "rounded down",
            diagnosis=CHOSEN,
            edits=(("-(-k // most))", "max(1, k // most))"),),
        ),
        Wrong(
            "closed nodes get zeros",
            diagnosis=CHOSEN,
            edits=(("-torch.inf", "0.0"),),
        ),
        Wrong(
            "no node is closed",
            diagnosis=CHOSEN,
            edits=((".masked_fill(closed[..., None], -torch.inf)", ""),),
        ),
        Wrong(
            "ties as they come",
            diagnosis=CHOSEN,
            edits=(("x.sort(descending=True, stable=True).indices[:, :k]", "x.topk(k).indices"),),
        ),
        Wrong(
            "the last of equal ones",
            diagnosis=CHOSEN,
            edits=(
                (
                    "x.sort(descending=True, stable=True).indices[:, :k]",
                    "x.sort(stable=True).indices.flip(1)[:, :k]",
                ),
            ),
        ),
        Wrong(
            "the nodes of the best k experts",
            diagnosis=CHOSEN,
            body="""
                ranking = scores.sort(descending=True, stable=True).indices
                of_node = scores.shape[1] // nodes
                chosen = []
                for row in ranking.tolist():
                    opened, own = [], []
                    for expert in row:
                        if expert // of_node not in opened and len(opened) < most:
                            opened.append(expert // of_node)
                        if expert // of_node in opened and len(own) < k:
                            own.append(expert)
                    chosen.append(own)
                return torch.tensor(chosen, dtype=torch.int64).view(-1, k)
                """,
        ),
        Wrong(
            "as many experts of each node",
            diagnosis=CHOSEN + r"|result: expected",
            body="""
                of_node = scores.shape[1] // nodes
                each = min(of_node, -(-k // most))
                order = scores.unflatten(1, (nodes, -1)).sort(descending=True, stable=True)
                worth = order.values[..., :each].sum(-1)
                best = worth.sort(descending=True, stable=True).indices[:, :most]
                experts = (order.indices + torch.arange(nodes)[:, None] * of_node)[..., :each]
                found = experts.gather(1, best[..., None].expand(-1, -1, each)).flatten(1)
                return found[:, :k]
                """,
        ),
        Wrong(
            "experts by their number",
            diagnosis=CHOSEN,
            edits=(
                (
                    "    return _first_of(of_nodes.masked_fill(closed[..., None], -torch.inf).flatten(1), k)",
                    "    return _first_of(of_nodes.masked_fill(closed[..., None], -torch.inf).flatten(1), k)"
                    ".sort(1).values",
                ),
            ),
        ),
        Wrong(
            "token after token",
            diagnosis=r"right, but it (runs [\d,]+ lines where 40 must do|takes more than 2 s of processor time)",
            body="""
                of_node = scores.shape[1] // nodes
                chosen = []
                for row in scores.tolist():
                    worth = []
                    for node in range(nodes):
                        own = sorted(row[node * of_node : (node + 1) * of_node], reverse=True)
                        worth.append(sum(own[: -(-k // most)]))
                    best = sorted(range(nodes), key=lambda node: (-worth[node], node))[:most]
                    experts = [e for e in range(len(row)) if e // of_node in best]
                    chosen.append(sorted(experts, key=lambda expert: (-row[expert], expert))[:k])
                return torch.tensor(chosen, dtype=torch.int64).view(-1, k)
                """,
        ),
    ),
)
