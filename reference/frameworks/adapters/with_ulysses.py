"""DeepSpeed-Ulysses: ranks hold parts of each window, and trade them for some of the heads while tokens look around.

Jacobs et al. 2023, arXiv:2309.14509. `DistributedAttention` wraps any attention of [B, S, H, d]. What ranks learn from
their parts of windows is averaged by hand, as it leaves that to its user.
"""

from collections.abc import Iterator

import deepspeed
import torch.distributed as dist
import torch.nn.functional as F
from deepspeed.sequence.layer import DistributedAttention
from torch import Tensor, nn

from reference.choices import ContextLayout
from reference.context_parallel.layouts import layout
from reference.frameworks.plain import Course
from reference.models.ops import Around, Ops, all_heads, equip


def losses(course: Course, feature: str) -> Iterator[float]:
    """`ulysses`."""
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    group = dist.group.WORLD
    held = layout(ContextLayout.CONTIGUOUS, course.sequence, group.size())
    model, attention = course.model(), DistributedAttention(Local(), group, scatter_idx=2, gather_idx=1)
    equip(model, lambda ops: UlyssesOps(ops, attention))
    optimizer = course.optimizer(model.parameters())
    positions = held.positions(group.rank())
    for step in range(course.steps):
        tokens, targets = (held.cut(x, group.rank(), dim=1) for x in course.read(step))
        loss = course.loss(model(tokens, positions=positions), targets)
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= group.size()
        optimizer.step()
        yield loss.item()


class Local(nn.Module):
    """Attention of all tokens, for the heads that are here: [B, S, H, d]."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object) -> Tensor:
        """Causal."""
        heads_first = (x.transpose(1, 2) for x in (query, key, value))
        return F.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2).contiguous()


class UlyssesOps(Around):
    """Ops whose attention is DeepSpeed's. Each head of queries gets keys and values of its own."""

    def __init__(self, inside: Ops, attention: nn.Module) -> None:
        super().__init__(inside)
        self.distributed = attention

    def attention(self, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        key, value = all_heads(key, query), all_heads(value, query)
        tokens_first = (x.transpose(1, 2).contiguous() for x in (query, key, value))
        return self.distributed(*tokens_first, batch_dim_idx=0).transpose(1, 2)
