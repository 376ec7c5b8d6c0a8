"""Attention over 4 ranks by hand against torch's own ring, and against an all-gather before its attention.

One layer of causal attention, forward and backward, in float32. All programs live on the same ranks at the same time,
on gloo, and take their turns; a call takes as long as on its slowest rank; medians. They get the same tokens of the
same layout, and their outputs and gradients must be equal. `ratio` is torch's time over ours.

torch's ring is `_templated_ring_attention`, with the operation of the CPU, which returns a logsumexp: on CPU nothing in
torch calls it that way. Its load balancing is our zigzag. The all-gather is the one that anybody would write: collect
keys and values, and call `scaled_dot_product_attention` with a mask; backward by autograd. It keeps what it has
gathered, n times what a rank holds; ours gathers again in backward. The floor of that is the same program with one
gather more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import rows
import torch
import torch.distributed as dist
import torch.nn.functional as F
from rows import Row
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.choices import ContextLayout, ContextMethod
from reference.cluster import Cluster
from reference.collectives.default import over
from reference.collectives.differentiable import all_gather
from reference.context_parallel import CAUSAL, Layout, context_attention, layout

RANKS = 4
IMPORTS = ("torch._dynamo", "torch.distributed.tensor.experimental")

Call = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, ...]]
"""From queries, keys, values and the gradient of the output to the output and the gradients of the others."""


@dataclass(frozen=True)
class Load:
    """How much ranks compute for what they send."""

    name: str
    sequence: int  # S, of all ranks
    heads: int
    kv_heads: int
    head_dim: int
    rounds: int
    bar: float


LOADS = (Load("compute-heavy", 2048, 8, 2, 64, 15, 1.0), Load("communication-heavy", 128, 8, 8, 64, 61, 1.2))


def measure(report: Callable[[Row], None]) -> None:
    """Each layout under both loads."""
    with Cluster(RANKS, preload=IMPORTS) as cluster:
        for load in LOADS:
            for kind in (ContextLayout.CONTIGUOUS, ContextLayout.ZIGZAG):
                times = cluster.run(on_rank, load, kind)
                found = rows.medians(rows.of_ranks(list(times)))
                where = f"{kind}, {load.name}"
                report(rows.faster(f"ring, {where}", found["ring"], found["torch ring"], "s", load.bar))
                gathers = found["all-gather"], found["torch all-gather"]
                report(rows.faster(f"all-gather, {where}", *gathers, "s", load.bar))
                floor = found["torch all-gather, twice"], found["torch all-gather"]
                report(rows.faster(f"floor of gathering twice, {where}", *floor, "s"))
                report(
                    rows.faster(f"Ulysses (against torch's ring), {where}", found["ulysses"], found["torch ring"], "s")
                )


def on_rank(load: Load, kind: ContextLayout) -> dict[str, list[float]]:
    """The seconds of each program's calls on this rank."""
    group = rows.plain_gloo()
    held = layout(kind, load.sequence, RANKS)
    calls = programs(group, held)
    given = inputs(load, held, group.rank())
    rows.require_same({name: call(*given) for name, call in calls.items()}, as_in="ring")
    runs = {name: partial(call, *given) for name, call in calls.items()}
    return rows.interleaved(runs, load.rounds, partial(dist.barrier, group))


def inputs(load: Load, held: Layout, rank: int) -> list[Tensor]:
    """What this rank holds of queries, keys, values and the gradient of the output."""
    torch.manual_seed(0)
    heads = (load.heads, load.kv_heads, load.kv_heads, load.heads)
    whole = [torch.randn(1, h, load.sequence, load.head_dim) for h in heads]
    return [held.cut(x, rank, dim=2) for x in whole]


def programs(group: ProcessGroup, held: Layout) -> dict[str, Call]:
    """All that is compared."""
    ways = (ContextMethod.RING, ContextMethod.ALL_GATHER, ContextMethod.ULYSSES)
    balanced = len(held.tokens[0]) == 2
    return {
        **{str(way): by_autograd(context_attention(way, held, over(group))) for way in ways},
        "torch ring": torchs_ring(group, balanced),
        "torch all-gather": by_autograd(gathered(group, held)),
        "torch all-gather, twice": twice(by_autograd(gathered(group, held)), group),
    }


def by_autograd(attention: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Call:
    """Forward and backward of it."""

    def call(query: Tensor, key: Tensor, value: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in (query, key, value)]
        out = attention(*leaves)
        return out.detach(), *torch.autograd.grad(out, leaves, gradient)

    return call


def torchs_ring(group: ProcessGroup, balanced: bool) -> Call:
    """Both templates, with the CPU's operation."""
    from torch.distributed.tensor.experimental._context_parallel import _attention

    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

    def of_cpu(
        grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, is_causal: bool
    ) -> tuple[Tensor, ...]:
        return backward(grad_out, query, key, value, out, logsumexp, 0.0, is_causal)

    def call(query: Tensor, key: Tensor, value: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        _attention._cp_options.enable_load_balance = balanced
        out, lse = _attention._templated_ring_attention(group, 2, forward, query, key, value, is_causal=True)
        return out, *_attention._templated_ring_attention_backward(
            group, 2, of_cpu, gradient, "grad_out", query, key, value, out, lse, True
        )

    return call


def gathered(group: ProcessGroup, held: Layout) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Collect keys and values, and let torch do the rest."""
    seen = CAUSAL.allows(held.tokens[group.rank()], sum(held.tokens, ()))

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        block = torch.stack([key, value])
        blocks = all_gather(block.flatten(), group).view(RANKS, *block.shape)
        keys, values = blocks.movedim(0, -3).flatten(-3, -2)
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=seen, enable_gqa=True)

    return attention


def twice(call: Call, group: ProcessGroup) -> Call:
    """The same, with one more gather of keys and values."""

    def again(query: Tensor, key: Tensor, value: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        all_gather(torch.stack([key, value]).flatten(), group)
        return call(query, key, value, gradient)

    return again


if __name__ == "__main__":
    rows.main("context-parallel", measure)
