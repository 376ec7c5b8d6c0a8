"""expert_parallel.permute_and_come_back: rows in the order of their experts, and back."""

import torch

from puzzles.grading.drives.expert_parallel import CALLS, COUNTS, ROWS, with_experts
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.expert_parallel.answers.rows import permute_and_come_back

LIKED = {  # how much each expert is liked: what is added to the scores by which tokens choose
    "evenly": lambda experts: torch.zeros(experts),
    "unevenly": lambda experts: -0.8 * torch.arange(experts),
    "but one": lambda experts: -100.0 * (torch.arange(experts) == experts // 2),
    "but the last": lambda experts: -100.0 * (torch.arange(experts) == experts - 1),
}


def tokens_and_choices(case, rank):
    """Tokens with their experts, no expert twice; some choices are dropped where a case says so."""
    scores = case.normal(0, case.tokens, case.experts, name="scores") + LIKED[case.liked](case.experts)
    chosen = scores.argsort(-1, descending=True)[:, : case.k]
    if case.dropped:
        gone = case.normal(0, case.tokens, case.k, name="gone") > 0.4
        gone[1:2] = True
        chosen = chosen.masked_fill(gone, -1)
    return {
        "x": case.normal(0, case.tokens, case.width),
        "chosen": chosen,
        "weights": case.normal(0, case.tokens, case.k, name="weights"),
        "experts": case.experts,
        "matrices": case.normal(0, case.experts, case.width, case.width, name="matrices"),
        "upstream": case.normal(0, case.tokens, case.width, name="upstream"),
    }


def expert_by_expert(case, inputs):
    """Each expert looks for its tokens; gradients by hand."""
    x, chosen, weights, _, matrices, upstream = inputs[0].values()
    out, of_x, of_weights, rows, counts = (0 * x, 0 * x, 0 * weights, [], [])
    for expert, matrix in enumerate(matrices):
        tokens, choices = (chosen == expert).nonzero(as_tuple=True)
        own, made = weights[tokens, choices][:, None], x[tokens] @ matrix.T
        rows.append(x[tokens])
        counts.append(len(tokens))
        out.index_add_(0, tokens, own * made)
        of_x.index_add_(0, tokens, own * upstream[tokens] @ matrix)
        of_weights[tokens, choices] = (made * upstream[tokens]).sum(1)
    told = {CALLS: 1, COUNTS: counts, ROWS: torch.cat(rows)}
    return [{**told, "returns": out, "x.grad": of_x, "weights.grad": of_weights}]


def of_tokens(tokens, liked=("evenly",), dropped=(False,), experts=4, k=2, width=3):
    """Cases on one rank."""
    sizes = {"tokens": (tokens,), "experts": (experts,), "k": (k,), "width": (width,)}
    return cases(worlds=(1,), dropped=dropped, liked=liked, **sizes)


GOT = r"rows that experts get(\[\d+, \d\]|): expected"
COUNTED = r"how many each expert gets(\[\d\]|): expected"

PUZZLE = Puzzle(
    name="expert_parallel.permute_and_come_back",
    title="Rows in the order of experts, and back",
    statement="""
        Experts compute with matrices. One product for all rows of an expert is fast, one for each token is not. So
        rows are put in the order of their experts, computed, and put back: each token adds up what its k experts have
        made of it, weighed.

        `compute(rows, counts)` is all experts: the first counts[0] rows are for expert 0, the next counts[1] for expert
        1, and it returns as many rows, in the same order. Call it once, also where there is nothing to compute.
        Autograd goes through it. Its rows, [N, D], are those of the first expert first, and in there those of the
        first token; an expert may have none.

        A choice of -1 was dropped, because its expert had no room: it is no row, and adds nothing. A token all of whose
        choices are dropped gets zeros.

        Args:
            x: [T, D]; there may be no tokens.
            chosen: [T, k] of int64, below E; no token has an expert twice.
            weights: [T, k], of what the experts make.
            experts: E.
            compute: see above.

        Returns: [T, D], with gradients for x and weights.

        Budget: 20 lines and 5 for each expert, however many tokens there are.
        """,
    function=permute_and_come_back,
    cases=of_tokens(4)
    + of_tokens(6, ("unevenly", "but one", "but the last"), dropped=(False, True), experts=5, k=2)
    + of_tokens(5, ("unevenly",), k=1)
    + of_tokens(40, ("unevenly",), dropped=(True,), experts=3, k=3, width=2)
    + of_tokens(0),
    drawn=(
        drawn(
            worlds=(1,),
            dropped=(True, False),
            liked=tuple(LIKED),
            tokens=range(3, 30),
            experts=range(4, 9),
            k=(1, 2, 3),
            width=(2, 3),
        ),
    ),
    scale=Scale(of_tokens(40_000, ("unevenly",), dropped=(True,), width=2), "the number of tokens"),
    inputs=tokens_and_choices,
    oracle=expert_by_expert,
    drive=with_experts,
    tolerance=1e-10,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 20 + 5 * case.experts,
            optimum=lambda case: 5,
            why="one sort puts the rows of all tokens in order, and indices take them there and back",
        ),
    ),
    hints=(
        "`chosen.flatten()` has the experts of all choices, those of a token side by side. If you sort it, where do "
        "the rows of each expert lie? And to which token does choice number c belong?",
        "`order = chosen.flatten().argsort(stable=True)`: a stable sort keeps tokens in their order. The rows are "
        "`x[order // k]`, and `torch.bincount(..., minlength=experts).tolist()` counts them. Dropped choices, -1, come "
        "first in the order: leave them out of it, and of the count.",
        "Back: `made.new_zeros(T * k, D).index_copy(0, order, made)` has what was made for each choice, zeros for "
        "those that are dropped. Then `.view(-1, k, D) * weights[..., None]`, and `.sum(1)`.",
    ),
    wrong=(
        Wrong(
            "the rows are not put back",
            diagnosis=r"result\[0, 0\]: expected",
            edits=((".index_copy(0, order, made)", ".index_copy(0, order.sort().values, made)"),),
        ),
        Wrong(
            "the order in the place of its inverse",
            diagnosis=r"result\[\d, 0\]: expected|index out of|with size",
            body="""
                k = chosen.shape[1]
                order = chosen.flatten().argsort(stable=True)
                counts = torch.bincount(chosen.flatten().clamp(min=0), minlength=experts).tolist()
                made = compute(x[order // k], counts)
                return (made[order].view(-1, k, made.shape[1]) * weights[..., None]).sum(1)
                """,
        ),
        Wrong(
            "the token of a choice: a remainder, as if first choices came before second ones",
            diagnosis=GOT,
            edits=(("x[order // k]", "x[order % max(len(x), 1)]"),),
        ),
        Wrong(
            "weights in the order of rows",
            diagnosis=r"result\[0, 0\]: expected",
            edits=(
                ("* weights[..., None]", "* weights.flatten()[flat.argsort(stable=True)].view_as(weights)[..., None]"),
            ),
        ),
        Wrong(
            "not weighed",
            diagnosis=r"result\[0, 0\]: expected",
            edits=((" * weights[..., None]", ""),),
        ),
        Wrong(
            "later tokens of an expert come first",
            diagnosis=GOT,
            edits=(
                (
                    "flat.argsort(stable=True)",
                    "len(flat) - 1 - flat.flip(0).argsort(stable=True)",
                ),
            ),
        ),
        Wrong(
            "a sort that is not stable",
            diagnosis=GOT + r".*(\n.*)*right with",
            edits=(("flat.argsort(stable=True)", "flat.argsort()"),),
        ),
        Wrong(
            "experts that come after the last one chosen are not counted",
            diagnosis=COUNTED + r" 5 values, got 4 values|zip\(\) argument 2 is longer",
            edits=(("minlength=experts", "minlength=0"),),
        ),
        Wrong(
            "experts without rows are left out",
            diagnosis=COUNTED + r"|zip\(\) argument 2 is longer",
            edits=((".tolist()\n    made", ".tolist()\n    counts = [count for count in counts if count]\n    made"),),
        ),
        Wrong(
            "dropped choices go to the first expert",
            diagnosis=COUNTED + r".*(\n.*)*right with dropped=False, wrong with dropped=True",
            edits=(("chosen.flatten()", "chosen.clamp(min=0).flatten()"),),
        ),
        Wrong(
            "the last of the order are left out, in the place of those that are dropped",
            diagnosis=r"dropped=True.* rows that experts get",
            edits=(
                (
                    "[int((flat < 0).sum()) :]  # of choices: those that are dropped come first",
                    "[: int((flat >= 0).sum())]",
                ),
                ("bincount(flat[order]", "bincount(flat[flat >= 0]"),
            ),
        ),
        Wrong(
            "without a gradient for x",
            diagnosis=r"x\.grad: expected a float64 tensor of shape \(4, 3\), got None",
            edits=(("compute(x[order // k], counts)", "compute(x.detach()[order // k], counts)"),),
        ),
        Wrong(
            "without a gradient for the weights",
            diagnosis=r"weights\.grad: expected a float64 tensor of shape \(4, 2\), got None",
            edits=(("weights[..., None]", "weights.detach()[..., None]"),),
        ),
        Wrong(
            "nothing to compute, so nothing is called",
            diagnosis=r"calls of experts: expected 1, got 0",
            edits=(
                (
                    "    k, flat = chosen.shape[1], chosen.flatten()\n",
                    "    k, flat = chosen.shape[1], chosen.flatten()\n    if not len(x):\n        return x * 1\n",
                ),
            ),
        ),
        Wrong(
            "one choice after the other",
            diagnosis=r"calls of experts: expected 1, got 2",
            body="""
                out = 0
                for choice in range(chosen.shape[1]):
                    own = chosen[:, choice]
                    order = own.argsort(stable=True)[int((own < 0).sum()) :]
                    made = compute(x[order], torch.bincount(own[order], minlength=experts).tolist())
                    out = out + torch.zeros_like(x).index_copy(0, order, made) * weights[:, choice, None]
                return out
                """,
        ),
        Wrong(
            "token by token",
            diagnosis=r"right, but it runs [\d,]+ lines where [\d,]+ must do.*\n.*one sort",
            body="""
                places = [[] for _ in range(experts)]
                for token, own in enumerate(chosen.tolist()):
                    for choice, expert in enumerate(own):
                        if expert >= 0:
                            places[expert].append((token, choice))
                flat = [place for own in places for place in own]
                tokens = torch.tensor([token for token, _ in flat], dtype=torch.int64)
                choices = torch.tensor([choice for _, choice in flat], dtype=torch.int64)
                made = compute(x[tokens], [len(own) for own in places])
                return torch.zeros_like(x).index_add(0, tokens, made * weights[tokens, choices][:, None])
                """,
        ),
    ),
)
