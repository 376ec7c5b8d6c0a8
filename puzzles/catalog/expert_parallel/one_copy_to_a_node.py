"""expert_parallel.one_copy_to_a_node: a token crosses slow links once for each node, not for each expert."""

import torch
import torch.distributed as dist

from puzzles.grading.drives.expert_routing import made_by, with_experts_of_a_node
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.expert_parallel.answers.copies import mixture_over_nodes
from reference.expert_parallel.answers.exchange import exchange_rows

NUMBER = 8  # bytes of one: everything is in float64 and int64


def tokens_of(case, rank):
    """How many a rank has; with `idle`, the first rank has none."""
    return 0 if case.get("idle", False) and rank == 0 else case.tokens + rank % 2


def chosen_by(case, rank):
    """k different experts for each token, [T, k]."""
    generator = torch.Generator().manual_seed(case.seed + 7919 * rank)
    scores = torch.rand(tokens_of(case, rank), case.n * case.here, generator=generator)
    return scores.topk(case.k).indices


def a_rank(case, rank):
    """Its tokens, their experts, and the gradient of what comes out."""
    tokens = tokens_of(case, rank)
    return {
        "x": case.normal(rank, tokens, case.width),
        "chosen": chosen_by(case, rank),
        "weights": case.normal(rank, tokens, case.k, name="weights").sigmoid(),
        "experts": case.n * case.here,
        "upstream": case.normal(rank, tokens, case.width, name="upstream"),
    }


def one_process(case, inputs):
    """All experts for the tokens of each rank."""
    found = []
    for each in inputs:
        x, weights = each["x"].clone().requires_grad_(), each["weights"].clone().requires_grad_()
        out = torch.zeros_like(x)
        for choice in range(case.k):
            out = out + made_by(x, each["chosen"][:, choice, None]) * weights[:, choice, None]
        gradients = torch.autograd.grad(out, (x, weights), each["upstream"])
        found.append({"returns": out.detach(), "x.grad": gradients[0], "weights.grad": gradients[1]})
    return found


def sent(case):
    """Bytes between nodes, there and back, of the rank that sends most."""
    n = case.n
    nodes = [chosen_by(case, rank) // case.here for rank in range(n)]
    copies = [[int((node_of == node).any(-1).sum()) for node in range(n)] for node_of in nodes]

    def of(rank):
        out = sum(copies[rank]) - copies[rank][rank]
        come = sum(copies[other][rank] for other in range(n)) - copies[rank][rank]
        return (n - 1) + out * 2 * (case.width + case.k) + come * (2 * case.width + case.k)

    return NUMBER * max(map(of, range(n)))


DIFFERS = r"(result|x\.grad)\[\d, \d\]: expected -?[\d.e-]+, got -?[\d.e-]+"

PUZZLE = Puzzle(
    name="expert_parallel.one_copy_to_a_node",
    title="One copy to a node",
    statement="""
        Links between nodes are slow. A token has k experts, and with a row for each of them, k rows may cross such a
        link, and k come back, though two or three of them go to the same node. One row to each node that has experts
        for the token is enough. There it meets all of these; what they make is weighed and added up on the node, and
        one row comes back, to be added to those from other nodes.

        This rank speaks for its node. The group has one rank of each node, so whatever goes to another rank crosses a
        slow link. So do the numbers of the experts that a row is for, and their weights, and gradients later.

        Given is `exchange_rows(x, sent, received, group)`, through which autograd goes back: sent[j] rows of `x`, in
        order, go to rank j, and received[i] rows come from rank i, in order of ranks; both are lists. It takes whole
        numbers, too. How many rows come must be known before: `dist.all_to_all_single(out, x, group=group)` gives the
        j-th n-th of `x` to rank j.

        Args:
            x: [T, D], tokens. T may be 0, and differ from rank to rank.
            chosen: [T, k] of int64, the experts of each token, k different ones.
            weights: [T, k], of what they make. Gradients flow back through x and weights.
            experts: E; each node has E / n in order, the first one 0, 1, ...
            compute: what experts of this node make: `compute(rows, chosen, weights)`, of [N, D], [N, k] and [N, k],
                returns [N, D], for each row the sum over its experts of weight times what it makes. An expert of -1 is
                none, whatever its weight; one that is on another node is an error.
            group: n ranks, one on each node. Any n.

        Returns: [T, D], for each token the same sum over all its experts.

        Budget: for each copy D numbers, k experts and k weights there, D numbers back; in backward D there, D and k
        back; and one number for each pair of nodes.
        """,
    function=mixture_over_nodes,
    cases=cases(worlds=(4,), tokens=(3,), here=(2,), k=(3,), width=(8,))
    + cases(worlds=(2, 3), tokens=(2,), here=(3,), k=(1, 4), width=(5,))
    + cases(worlds=(1,), tokens=(3,), here=(4,), k=(2,), width=(3,))
    + cases(worlds=(3,), tokens=(2,), here=(2,), k=(2,), width=(7,), idle=(True,))
    + cases(worlds=(5,), tokens=(0,), here=(1,), k=(2,), width=(1,))
    + cases(worlds=(8,), tokens=(1,), here=(2,), k=(4,), width=(4,))
    + cases(worlds=(4,), members=(0, 2, 3), tokens=(2,), here=(2,), k=(3,), width=(6,)),
    drawn=on_any_ranks(tokens=(0, 1, 2, 4), here=(2, 3), k=(1, 2, 3, 4), width=(1, 4, 9)),
    inputs=a_rank,
    oracle=one_process,
    drive=with_experts_of_a_node,
    tolerance=1e-10,
    calls=(dist.all_to_all_single,),
    given=(exchange_rows,),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=sent,
            why="a node needs a token once, however many of its experts are there, and only if some are",
        ),
    ),
    hints=(
        "Experts 0, 1 | 2, 3 | 4, 5 on three nodes, and a token with experts 1, 4 and 5. Which rows cross a link? What "
        "must be written on each of them, so that its node knows what to do? What comes back?",
        "`is_there[j, t]`, whether token t has an expert on node j: `(chosen // (experts // n) == j).any(-1)`. Its "
        "`nonzero(as_tuple=True)` has node and token of each copy, node by node, and its sum over tokens is how many "
        "go where. Exchange these sums first.",
        "Send `x[token]`, `weights[token]`, and `chosen[token]` with -1 where an expert is not on the copy's node. "
        "Send back what `compute` makes, the splits exchanged, and `torch.zeros_like(x).index_add(0, token, made)`.",
    ),
    wrong=(
        Wrong(
            "a row for each expert",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*a node needs a token once",
            body="""
                n, k = dist.get_world_size(group), chosen.shape[1]
                node_of = (chosen // (experts // n)).flatten()
                order = node_of.argsort(stable=True)
                sent = torch.bincount(node_of, minlength=n)
                received = torch.empty_like(sent)
                dist.all_to_all_single(received, sent, group=group)
                there, back = sent.tolist(), received.tolist()
                parts = x[order // k], chosen.flatten()[order][:, None], weights.flatten()[order][:, None]
                rows, numbers, shares = (exchange_rows(part, there, back, group) for part in parts)
                made = exchange_rows(compute(rows, numbers, shares), back, there, group)
                return torch.zeros_like(x).index_add(0, order // k, made)
                """,
        ),
        Wrong(
            "a copy to each node, whether it has an expert or not",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*only if some are",
            edits=(("(node_of == nodes[:, None, None]).any(-1)", "torch.ones(n, len(x), dtype=torch.bool)"),),
        ),
        Wrong(
            "a row says nothing of which experts are meant",
            diagnosis=r"this node has experts \d to \d, and no \d",
            edits=((".masked_fill(node_of[token] != node[:, None], -1)", ""),),
        ),
        Wrong(
            "experts counted from the first of the node",
            diagnosis=r"this node has experts \d to \d, and no \d",
            edits=(
                (
                    "chosen[token].masked_fill(",
                    "(chosen[token] % (experts // n)).masked_fill(",
                ),
            ),
        ),
        Wrong(
            "weights stay behind",
            diagnosis=DIFFERS,
            edits=(("compute(rows, numbers, shares)", "compute(rows, numbers, torch.ones_like(shares))"),),
        ),
        Wrong(
            "weights travel without their gradient",
            diagnosis=r"weights\.grad: expected a float64 tensor of shape \(\d, \d\), got None",
            edits=(("x[token], numbers, weights[token]", "x[token], numbers, weights[token].detach()"),),
        ),
        Wrong(
            "the last node's row stands for all",
            diagnosis=DIFFERS,
            edits=((".index_add(0,", ".index_copy(0,"),),
        ),
        Wrong(
            "copies in the order of tokens",
            diagnosis=r"this node has experts \d to \d, and no \d|" + DIFFERS,
            edits=(
                (
                    "    node, token = is_there.nonzero(as_tuple=True)",
                    "    token, node = is_there.T.nonzero(as_tuple=True)",
                ),
            ),
        ),
        Wrong(
            "as many rows come as go",
            diagnosis=r"rank \d|rows|size|shape",
            edits=(("    there, back = sent.tolist(), received.tolist()", "    there = back = sent.tolist()"),),
        ),
        Wrong(
            "rows come back as they went",
            diagnosis=r"rank \d|rows|size|shape",
            edits=(("shares), back, there, group)", "shares), there, back, group)"),),
        ),
        Wrong(
            "a rank without tokens stays away",
            diagnosis=r"rank 0 finished without sending|finished without it|waits",
            edits=(
                (
                    "    n = dist.get_world_size(group)\n",
                    "    n = dist.get_world_size(group)\n    if not len(x):\n        return x\n",
                ),
            ),
        ),
        Wrong(
            "only a token's first expert",
            diagnosis=DIFFERS,
            edits=(("    nodes, node_of", "    chosen, weights = chosen[:, :1], weights[:, :1]\n    nodes, node_of"),),
        ),
    ),
)
