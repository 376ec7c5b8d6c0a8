"""torch's ring attention, of its `context_parallel`: keys and values go around while each rank's queries wait for them.

Liu et al. 2023, arXiv:2310.01889, in zigzag order (Brandon et al. 2023, arXiv:2311.09431). `context_parallel` itself
takes over operations of GPUs alone; its template runs here with the CPU's operation handed to it. It merges blocks in
float32 (`ring`) unless it is told not to (`ring-f64`), whatever the dtype of the model.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.distributed.tensor.experimental._context_parallel import _attention

from reference.choices import ContextLayout
from reference.context_parallel.layouts import layout
from reference.frameworks.plain import Course
from reference.models.ops import Around, equip

flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def losses(course: Course, feature: str) -> Iterator[float]:
    """`ring` or `ring-f64`. Each rank reads a part of every window; gradients are averaged by hand."""
    group = dist.group.WORLD
    _attention._cp_options.enable_load_balance = True  # zigzag: the first and the last piece of a window meet
    _attention._cp_options.convert_to_f32 = feature == "ring"
    held = layout(ContextLayout.ZIGZAG, course.sequence, group.size())
    model = course.model()
    equip(model, lambda ops: RingOps(ops, group))
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


class RingOps(Around):
    """Ops whose attention is torch's ring."""

    def __init__(self, inside: Around, group: dist.ProcessGroup) -> None:
        super().__init__(inside)
        self.group = group

    def attention(self, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        return Ring.apply(query.contiguous(), key.contiguous(), value.contiguous(), self.group, causal)


class Ring(Function):
    """The template of `context_parallel`, and that of its backward."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, group: Any, causal: bool) -> Tensor:
        out, lse = _attention._templated_ring_attention(group, 2, flash, query, key, value, is_causal=causal)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.group, ctx.causal = group, causal
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        backward = _attention._templated_ring_attention_backward
        query, key, value, out, lse = ctx.saved_tensors
        given = gradient.contiguous(), "grad_out", query, key, value, out, lse, ctx.causal
        return *backward(ctx.group, 2, of_cpu, *given), None, None


def of_cpu(*, grad_out: Tensor, out: Tensor, logsumexp: Tensor, is_causal: bool, **given: Tensor) -> Any:
    """The CPU's backward, called as torch's template calls those of GPUs."""
    query, key, value = (given[name] for name in ("query", "key", "value"))
    return flash_backward(grad_out, query, key, value, out, logsumexp, 0.0, is_causal)
