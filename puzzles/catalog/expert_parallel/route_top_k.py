"""expert_parallel.route_top_k: the best experts of each token, and how much each of them counts."""

from functools import partial

import torch

from puzzles.grading.drives.context_parallel import there_and_back_from
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.expert_parallel.answers.route import route_top_k

RETURNED = ("chosen", "weights")
FEW = 3  # different logits, where a case has ties


def logits_of_tokens(case, rank):
    """Logits, of few different numbers where a case has ties, and the gradient of the weights."""
    shape = case.tokens, case.experts
    logits = case.normal(0, *shape, name="logits")
    if case.ties:
        generator = torch.Generator().manual_seed(case.seed)
        logits = torch.randint(FEW, shape, generator=generator).double() - 1
    upstreams = [case.normal(0, case.tokens, case.k, name=name) for name in RETURNED]
    gate = {"gate": case.gate, "normalised": case.normalised, "scale": case.scale}
    return {"logits": case.around + logits, "k": case.k, **gate, "upstreams": upstreams}


def by_places(case, inputs):
    """An expert's place is the number of those that come before it: better ones, and equal ones with lower numbers."""
    logits = inputs[0]["logits"].requires_grad_()
    if case.gate == "softmax":
        shares = (logits - logits.detach().amax(-1, keepdim=True)).exp()
        scores = shares / shares.sum(-1, keepdim=True)
    else:
        scores = 1 / (1 + (-logits).exp())
    own, other = logits.detach()[:, :, None], logits.detach()[:, None, :]
    lower = torch.ones(case.experts, case.experts, dtype=torch.bool).tril(-1)
    places = ((other > own) | ((other == own) & lower)).sum(-1)
    chosen = places.argsort(-1)[:, : case.k]
    total = (scores * (places < case.k)).sum(-1, keepdim=True) if case.normalised else 1
    weights = (case.scale * scores / total)[torch.arange(case.tokens)[:, None], chosen]
    (gradient,) = torch.autograd.grad(weights, logits, inputs[0]["upstreams"][1])
    return [{"returns": "2 tensors", "chosen": chosen, "weights": weights.detach(), "logits.grad": gradient}]


def routed(tokens, gate, normalised=(True,), scale=(1.0,), ties=(False,), around=0.0, experts=4, k=2):
    """Cases on one rank."""
    routing = {"gate": gate, "normalised": normalised, "scale": scale, "ties": ties}
    return cases(worlds=(1,), **routing, around=(around,), tokens=(tokens,), experts=(experts,), k=(k,))


WEIGHTS = r"weights\[0, \d\]: expected"

PUZZLE = Puzzle(
    name="expert_parallel.route_top_k",
    title="Choose the best k experts",
    statement="""
        A router has a logit for each token and each expert. Scores are the softmax of a token's logits, or the sigmoid
        of each logit by itself. The k experts with the highest scores compute, and what each of them makes is added
        with a weight: its score; or, where weights are normalised, its score divided by the sum of those of the k. In
        the end all weights are multiplied by `scale`.

        Two experts may have equal scores; with logits in 16 bits they often do. Then the one with the lower number
        comes first. The answer must not depend on which kernel runs, for a token is routed again when activations are
        recomputed, and by other ranks. `torch.topk` promises no order.

        A choice has no gradient: it is a number of an expert. The router learns from the weights.

        Args:
            logits: [T, E], in float64. There may be no tokens, and logits may be around 1000.
            k: experts of a token, E at most.
            gate: "softmax" or "sigmoid".
            normalised: whether the weights of a token's experts add up to one, before they are scaled.
            scale: a float.

        Returns: the chosen experts, [T, k] of int64, the best first; and their weights, [T, k], with gradients for the
        logits.

        Budget: 25 lines, however many tokens there are.
        """,
    function=route_top_k,
    cases=routed(3, ("softmax", "sigmoid"), normalised=(True, False), scale=(1.0, 2.5))
    + routed(3, ("softmax", "sigmoid"), normalised=(True, False), ties=(True,), experts=8, k=3)
    + routed(3, ("softmax",), around=1000.0, experts=6)
    + routed(3, ("softmax",), around=-1000.0, experts=6, k=6)
    + routed(5, ("sigmoid",), normalised=(False,), experts=5, k=5)
    + routed(0, ("sigmoid",), scale=(2.0,)),
    drawn=(
        drawn(
            worlds=(1,),
            gate=("softmax", "sigmoid"),
            normalised=(True, False),
            scale=(1.0, 1.5, 16.0),
            ties=(True, False),
            around=(0.0,),
            tokens=range(2, 30),
            experts=range(3, 18),
            k=lambda so_far: range(2, so_far.experts + 1),
        ),
    ),
    scale=Scale(routed(20_000, ("softmax",), ties=(True,), experts=8), "the number of tokens"),
    inputs=logits_of_tokens,
    oracle=by_places,
    drive=partial(there_and_back_from, RETURNED),
    tolerance=1e-10,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 25,
            optimum=lambda case: 5,
            why="all tokens are routed by the same few operations on whole tensors",
        ),
    ),
    hints=(
        "Of logits 1, 2, 2 and k = 2: which experts are chosen, and in which order? Which of torch's ways to sort says "
        "in its documentation what becomes of equal elements?",
        "`scores.sort(dim=-1, descending=True, stable=True).indices[:, :k]` are the experts. A stable sort leaves "
        "equal elements in the order in which they come, descending or not. Read the weights out of the scores at "
        "these places, so that autograd knows where they come from.",
        "`weights = scores.gather(-1, chosen)`, where normalised `weights / weights.sum(-1, keepdim=True)`, then "
        "`scale * weights`. `logits.softmax(-1)` overflows for no logits; `logits.exp()` does for large ones.",
    ),
    wrong=(
        Wrong(
            "topk, which leaves open what comes first",
            diagnosis=r"chosen\[\d+, \d\]: expected \d, got \d.*(\n.*)*right with .*ties=False",
            edits=(
                (
                    "scores.detach().sort(dim=-1, descending=True, stable=True).indices[:, :k]",
                    "scores.detach().topk(k).indices",
                ),
            ),
        ),
        Wrong(
            "an ascending sort, read from behind: the last of equal ones comes first",
            diagnosis=r"chosen\[\d+, \d\]: expected \d, got \d.*(\n.*)*right with .*ties=False",
            edits=(
                (
                    "sort(dim=-1, descending=True, stable=True).indices[:, :k]",
                    "sort(dim=-1, stable=True).indices.flip(-1)[:, :k]",
                ),
            ),
        ),
        Wrong(
            "in the order of their numbers",
            diagnosis=r"chosen\[\d+, 0\]: expected \d, got \d",
            edits=(("stable=True).indices[:, :k]", "stable=True).indices[:, :k].sort(-1).values"),),
        ),
        Wrong(
            "always a softmax",
            diagnosis=WEIGHTS + r".*(\n.*)*right with gate=softmax, wrong with gate=sigmoid",
            edits=(('logits.softmax(-1) if gate == "softmax" else logits.sigmoid()', "logits.softmax(-1)"),),
        ),
        Wrong(
            "a softmax over the tokens",
            diagnosis=r"(chosen|weights)\[\d, \d\]: expected .*(\n.*)*right with gate=sigmoid, wrong with gate=softmax",
            edits=(("logits.softmax(-1)", "logits.softmax(0)"),),
        ),
        Wrong(
            "always normalised",
            diagnosis=WEIGHTS + r".*(\n.*)*right with normalised=True, wrong with normalised=False",
            edits=(("    if normalised:\n", "    if True:\n"),),
        ),
        Wrong(
            "divided by the sum over all experts",
            diagnosis=WEIGHTS,
            edits=(("weights / weights.sum(-1, keepdim=True)", "weights / scores.sum(-1, keepdim=True)"),),
        ),
        Wrong(
            "scaled before it is normalised, which takes the scale away again",
            diagnosis=r"scale=2\.5, .*weights\[0, 0\]: expected",
            edits=(
                ("    weights = scores.gather(-1, chosen)\n", "    weights = scale * scores.gather(-1, chosen)\n"),
                ("return chosen, scale * weights", "return chosen, weights"),
            ),
        ),
        Wrong(
            "the router cannot learn: weights without a history",
            diagnosis=r"logits\.grad: expected a float64 tensor of shape \(3, 4\), got None",
            edits=(
                ("    weights = scores.gather(-1, chosen)\n", "    weights = scores.detach().gather(-1, chosen)\n"),
            ),
        ),
        Wrong(
            "the sum is taken for a constant",
            diagnosis=r"logits\.grad\[0, \d\]: expected",
            edits=(("weights.sum(-1, keepdim=True)", "weights.sum(-1, keepdim=True).detach()"),),
        ),
        Wrong(
            "exponentials that overflow",
            diagnosis=r"right with around=0, wrong with around=-1000, 1000",
            edits=(("logits.softmax(-1)", "logits.exp() / logits.exp().sum(-1, keepdim=True)"),),
        ),
        Wrong(
            "token by token",
            diagnosis=r"right, but it runs [\d,]+ lines where 25 must do.*\n.*operations on whole tensors",
            body="""
                scores = logits.softmax(-1) if gate == "softmax" else logits.sigmoid()
                chosen = torch.zeros(len(logits), k, dtype=torch.int64)
                weights = []
                for token, own in enumerate(scores):
                    best = sorted(range(len(own)), key=lambda expert: (-own[expert].item(), expert))[:k]
                    chosen[token] = torch.tensor(best)
                    these = own[best]
                    weights.append(scale * (these / these.sum() if normalised else these))
                return chosen, torch.stack(weights) if weights else scores[:, :k] * 1
                """,
        ),
    ),
)
