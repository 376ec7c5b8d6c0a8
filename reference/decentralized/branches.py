"""Branches: copies of one model that train on parts of the text without a message, and are merged at the end.

    average      one model of the same size: the mean of all weights. It works while branches are near each other
    ensemble     all models: each predicts, weighted by how well it has predicted this text so far
    experts      one mixture of experts: each feed-forward of a branch is an expert, all else is averaged

The first two are Branch-Train-Merge (Li et al. 2022, arXiv:2208.03306), the third is Branch-Train-MiX (Sukhbaatar et
al. 2024, arXiv:2403.07816), which then trains the router, and everything, some more. From the branching to the merge
nothing is sent; then, for a model of P parameters of which F are in feed-forwards, and n branches, each rank sends

| merge        | bytes, for parameters of b bytes                | parameters of the result |
|--------------|-------------------------------------------------|--------------------------|
| average      | 2(n-1)/n · P b                                  | P                        |
| ensemble     | (n-1) · 8 for each token that is predicted      | n P                      |
| experts      | 2(n-1)/n · (P - F) b + (n-1) F b                | P + (n-1) F, and routers |
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from reference.collectives.communicator import Communicator
from reference.models import GPTConfig, require_gpt
from reference.models.initialisation import initial_value
from reference.models.moe_config import mixed_config

FEED_FORWARD = "feed_forward."


def average(model: nn.Module, communicator: Communicator) -> None:
    """Make the branches of all ranks one model: their mean, in place, on every rank."""
    for parameter in model.parameters():
        communicator.all_reduce(parameter.data)
        parameter.data.div_(communicator.size())


def ensemble(log_probabilities: Tensor, communicator: Communicator) -> Tensor:
    """How well all branches together predict: the mean of their predictions, by who was right about the text so far.

    p(token) = sum over branches j of p_j(token) w_j, and w_j is proportional to what p_j gave to all tokens before:
    Bayes' rule, with equal chances at the first token (Li et al. 2022, section 2.3).

    Args:
        log_probabilities: [B, S], of this rank's branch for the tokens that came.
        communicator: of n branches.

    Returns:
        The same of the ensemble: [B, S], on every rank.
    """
    said = log_probabilities.new_empty(communicator.size(), *log_probabilities.shape)
    communicator.all_gather(log_probabilities.contiguous(), said)
    return mixture(said)


def mixture(said: Tensor) -> Tensor:
    """[n, B, S], log probabilities of what came by each branch -> [B, S], of all together."""
    before = said.cumsum(2) - said  # of all tokens before this one
    return torch.logsumexp(said + before.log_softmax(0), dim=0)


def into_experts(
    branch: Mapping[str, Tensor], config: GPTConfig, communicator: Communicator, seed: int = 0
) -> dict[str, Tensor]:
    """The state of `MoE(mixed_config(config, n))`: expert j of each layer is the feed-forward of branch j.

    Args:
        branch: state of this rank's model, by the names of `GPT`.
        config: of each branch.
        communicator: of n branches.
        seed: of the routers, which know nothing yet.

    Returns:
        The same on every rank, by the names of `MoE`.
    """
    require_gpt(config)
    n, merged = communicator.size(), {}
    for name, x in branch.items():
        if FEED_FORWARD in name:
            experts = x.new_empty(n, *x.shape)
            communicator.all_gather(x.contiguous(), experts)
            merged[name.replace(FEED_FORWARD, f"{FEED_FORWARD}experts.")] = experts
        else:
            merged[name] = x.clone()
            communicator.all_reduce(merged[name])
            merged[name] /= n
    for layer in mixed_config(config, n).expert_layers:
        name = f"blocks.{layer}.{FEED_FORWARD}router.weight"
        first = next(iter(branch.values()))
        merged[name] = initial_value(name, torch.Size([n, config.width]), config.layers, seed).to(first)
    return merged
