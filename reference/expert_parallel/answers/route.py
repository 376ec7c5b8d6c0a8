"""Which experts a token goes to, and how much of what each of them makes is added.

Scores are compared to choose, and a choice has no gradient. What the router learns from are the weights: the scores of
those that were chosen. Equal scores are no rare case: in bf16 logits have eight bits, and a sigmoid of large ones is 1.
So which of two equal experts comes first is a rule, and the same one wherever a token is routed again.

Shazeer et al. 2017, "Outrageously large neural networks"; DeepSeek-AI 2024, "DeepSeek-V3", sec. 2.1.2.
"""

from torch import Tensor


def route_top_k(logits: Tensor, k: int, gate: str, normalised: bool, scale: float) -> tuple[Tensor, Tensor]:
    """The k experts with the highest scores for each token, the best first; of equal ones, the one that comes first.

    Args:
        logits: [T, E]; there may be no tokens.
        k: experts of a token.
        gate: "softmax" or "sigmoid": how logits become scores.
        normalised: whether the weights of a token's experts are divided by their sum.
        scale: of all weights, after that.

    Returns:
        Experts [T, k] of int64, and weights [T, k], through which gradients flow to the logits.
    """
    scores = logits.softmax(-1) if gate == "softmax" else logits.sigmoid()
    chosen = scores.detach().sort(dim=-1, descending=True, stable=True).indices[:, :k]
    weights = scores.gather(-1, chosen)
    if normalised:
        weights = weights / weights.sum(-1, keepdim=True)
    return chosen, scale * weights
