"""DeepSpeed MoE: experts shared out among ranks, in the place of ours, with the same routers and the same experts.

Rajbhandari et al. 2022, arXiv:2201.05596. Each token goes to the best two of four experts, none is dropped, and the
second is not drawn at random. Its router computes in float32. Experts' gradients are divided among all that read.
"""

from collections.abc import Iterator

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer as by_groups
from torch import Tensor, nn

from reference.frameworks.plain import Course
from reference.models.moe import MixtureOfExperts


def losses(course: Course, feature: str) -> Iterator[float]:
    """`moe`: half of the experts on each of two ranks."""
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = course.model()
    for block in model.blocks:
        block.feed_forward = Theirs(block.feed_forward, rank, ranks)
    groups = by_groups({"params": list(model.parameters()), "name": "all"})
    config = {"train_micro_batch_size_per_gpu": course.batch // ranks, "gradient_clipping": 0.0}
    engine, *_ = deepspeed.initialize(model=model, optimizer=course.optimizer(groups), config=config)
    for step in range(course.steps):
        tokens, targets = course.read(step, rank, ranks)
        loss = course.loss(engine(tokens), targets)
        engine.backward(loss)
        engine.step()
        yield loss.item()


class Theirs(nn.Module):
    """A layer of DeepSpeed's, with the weights of one of ours."""

    def __init__(self, ours: MixtureOfExperts, rank: int, ranks: int) -> None:
        super().__init__()
        config = ours.config
        expert = Expert(config.width, config.expert_hidden, ours.router.weight.dtype)
        options = {"num_experts": config.experts, "ep_size": ranks, "k": config.top_k, "drop_tokens": False}
        self.moe = MoE(config.width, expert, use_rts=False, top2_2nd_expert_sampling=False, **options)
        mine, here = self.moe.deepspeed_moe, config.experts // ranks
        with torch.no_grad():
            mine.gate.wg.weight.copy_(ours.router.weight)
            for i, local in enumerate(mine.experts.deepspeed_experts):
                for name in ("gate", "up", "down"):
                    getattr(local, name).weight.copy_(getattr(ours.experts, name).weight[rank * here + i])

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        return self.moe(x)[0]


class Expert(nn.Module):
    """A SwiGLU."""

    def __init__(self, width: int, hidden: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, hidden, bias=False, dtype=dtype) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return self.down(F.silu(self.gate(x)) * self.up(x))
