"""FairScale's MOELayer, the one of GShard (Lepikhin et al. 2020, arXiv:2006.16668), from which others were made.

Its `Top2Gate` draws the second expert with noise, and gives an expert room for its even share of what a rank reads:
what comes later is dropped. The layer takes any gate, and `moe-our-gate` has ours, which drops nothing. Tokens travel
in float32. The layer sums no gradients: those of all but experts are averaged here, and experts' are divided by ranks.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from fairscale.nn.moe import MOELayer, Top2Gate
from torch import Tensor, nn

from reference.frameworks.plain import Course
from reference.models.gpt import SwiGLU
from reference.models.moe import MixtureOfExperts
from reference.models.routing import choose, scores_of, weigh


def losses(course: Course, feature: str) -> Iterator[float]:
    """`moe` or `moe-our-gate`: half of the experts on each of two ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(course.seed + rank)  # of the noise
    model = course.model()
    for block in model.blocks:
        block.feed_forward = FairScaleExperts(block.feed_forward, feature == "moe-our-gate", rank, ranks)
    optimizer = course.optimizer(model.parameters())
    for step in range(course.steps):
        tokens, targets = course.read(step, rank, ranks)
        loss = course.loss(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            if not hasattr(parameter, "expert"):
                dist.all_reduce(parameter.grad)
            parameter.grad /= ranks
        optimizer.step()
        yield loss.item()


class FairScaleExperts(nn.Module):
    """A layer of FairScale's, with the weights of one of ours."""

    def __init__(self, ours: MixtureOfExperts, our_gate: bool, rank: int, ranks: int) -> None:
        super().__init__()
        config, weight = ours.config, ours.router.weight
        here = config.experts // ranks
        gate = OurGate(ours) if our_gate else Top2Gate(config.width, config.experts)
        experts = nn.ModuleList(SwiGLU(config) for _ in range(here))
        with torch.no_grad():
            if not our_gate:
                gate.wg.weight.copy_(weight)
            for i, expert in enumerate(experts):
                for name, parameter in expert.named_parameters():
                    parameter.copy_(ours.experts.get_parameter(name)[rank * here + i])
        self.moe = MOELayer(gate, experts)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        return self.moe(x)


class OurGate(nn.Module):
    """The best k experts of each token, and room for all: the slot of a token, at each expert, is its own number."""

    def __init__(self, ours: MixtureOfExperts) -> None:
        super().__init__()
        self.router, self.config = ours.router, ours.config

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[N, D] -> no loss, how much of which slot a token gets [N, E, N], and which slots it fills."""
        scores = scores_of(self.router(x), self.config)
        chosen = choose(scores.detach(), self.config)
        weights = torch.zeros_like(scores).scatter(-1, chosen, weigh(scores, chosen, self.config))
        combined = torch.diag_embed(weights.T).transpose(0, 1)
        return x.new_zeros(()), combined, combined.detach().bool()
