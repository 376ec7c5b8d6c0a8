"""The transformer layer of GPT-2 and GPT-3 in a region, which keeps for backward what its authors count and no more.

    x  LayerNorm  gather  query, key, value; attention; output  sum  dropout  +
       LayerNorm  gather  up; GELU; down                        sum  dropout  +

| region              | bytes that a rank keeps for backward         |
|---------------------|----------------------------------------------|
| of one rank         | s b h (34 + 5 a s / h)                       |
| `Region`            | s b h (10 + 24 / t + 5 a s / (h t))          |
| `SequenceRegion`    | s b h (34 + 5 a s / h) / t                   |

with 2 bytes a number and 1 byte an element of a dropout mask; s sequence, b batch, h width, a heads, t ranks. Those are
the sums of `reference.memory.korthikanti.TERMS`, and what autograd saves equals them to the byte. In tensor parallelism
every rank keeps all of what lies outside of the regions: inputs of norms and of regions, masks of two dropouts, 10 of
the 34. Sequence parallelism shares these out, too.

DroppingAttention writes its s x s matrices into memory, as it did before flash attention: that is what made selective
recomputation worth while (`reference.memory.recompute.recomputed` around `Attention.core`).

Vaswani et al. 2017; Radford et al. 2019 (norms first); Korthikanti et al. 2022, "Reducing activation recomputation in
large transformer models", sec. 4.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from reference.models.dropout import dropout, number
from reference.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear
from reference.tensor_parallel.region import Region

SITES = 3  # of dropout in a layer: attention's weights, after attention, after the MLP


class TransformerLayer(nn.Module):
    """One layer, of which this rank has its part.

    Weights are made whole, from torch's random numbers, and cut: with the same seed on every rank they fit together.

    Args:
        width: h.
        heads: a. They divide the width, and divide by the t ranks of the region.
        region: of the ranks that share the layer.
        probability: of an element to be dropped.
        place: of this layer in the model, from 0 on: no two drop the same.
    """

    def __init__(self, width: int, heads: int, region: Region, probability: float = 0.1, place: int = 0) -> None:
        super().__init__()
        self.region, self.probability, self.site = region, probability, SITES * place
        self.attention_norm, self.mlp_norm = LayerNorm(width), LayerNorm(width)
        self.attention = DroppingAttention(width, heads, region, probability, self.site)
        self.mlp = DroppingMLP(width, region)

    def forward(self, x: Tensor, seeds: Tensor) -> Tensor:
        """A layer.

        Args:
            x: [B, S, D], as it lies outside of the region.
            seeds: [B, S] of all tokens, as `reference.models.dropout.token_seeds` makes it.

        Returns:
            [B, S, D], as it lies outside of the region.
        """
        own = self.region.local_tokens(seeds)
        made = self.attention(self.attention_norm(x), seeds)
        x = x + dropout(made, self.probability, own, self.site + 1)
        made = self.mlp(self.mlp_norm(x))
        return x + dropout(made, self.probability, own, self.site + 2)

    def outside(self) -> Iterator[nn.Parameter]:
        """The parameters that every rank has whole.

        In a `SequenceRegion` each rank sees them with its own tokens: their gradients are to be summed over the ranks.
        """
        yield from self.attention_norm.parameters()
        yield from self.mlp_norm.parameters()
        yield self.attention.output.bias
        yield self.mlp.down.bias


class DroppingAttention(nn.Module):
    """Causal attention with dropout of its weights: each rank has a / t of the heads. Arguments as for the layer."""

    def __init__(self, width: int, heads: int, region: Region, probability: float, site: int) -> None:
        super().__init__()
        self.region, self.head_dim, self.probability, self.site = region, width // heads, probability, site
        self.query = ColumnParallelLinear(nn.Linear(width, width), region)
        self.key = ColumnParallelLinear(nn.Linear(width, width), region)
        self.value = ColumnParallelLinear(nn.Linear(width, width), region)
        self.output = RowParallelLinear(nn.Linear(width, width), region)

    def forward(self, x: Tensor, seeds: Tensor) -> Tensor:
        """[B, S, D] as it lies outside, and [B, S] of all tokens -> [B, S, D] as it lies outside."""
        linears = (self.query, self.key, self.value)
        products = self.region.column_linear(x, *(linear.weight for linear in linears))
        query, key, value = (y + linear.bias for y, linear in zip(products, linears, strict=True))
        return self.output(self.core(query, key, value, seeds))

    def core(self, query: Tensor, key: Tensor, value: Tensor, seeds: Tensor) -> Tensor:
        """What has no weights, and pairs of tokens: [B, S, D / t] each -> [B, S, D / t]."""
        query, key, value = (x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for x in (query, key, value))
        scores = query / self.head_dim**0.5 @ key.transpose(-2, -1)
        weights = (scores + ahead(scores)).softmax(-1)
        kept = dropout(weights, self.probability, self.seeds_of_heads(seeds, weights.shape[1]), site=0)
        return (kept @ value).transpose(1, 2).flatten(2)

    def seeds_of_heads(self, seeds: Tensor, heads: int) -> Tensor:
        """A number for each query of this rank's heads, by the head's index in the whole: [B, S] -> [B, H / t, S]."""
        first = heads * self.region.rank
        indices = torch.arange(first, first + heads, device=seeds.device)
        return number(number(seeds, self.site)[:, None], indices[:, None])


class DroppingMLP(nn.Module):
    """Two matrices with a GELU (Hendrycks and Gimpel 2016) between them: each rank has 4 D / t of the features."""

    def __init__(self, width: int, region: Region) -> None:
        super().__init__()
        self.up = ColumnParallelLinear(nn.Linear(width, 4 * width), region)
        self.down = RowParallelLinear(nn.Linear(4 * width, width), region)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] as it lies outside -> the same."""
        return self.down(F.gelu(self.up(x)))


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` that keeps its input and nothing else (Ba et al. 2016)."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return LayerNormalise.apply(x, self.weight, self.bias, self.eps)


class LayerNormalise(Function):
    """`apply(x, weight, bias, epsilon)`: layer norm. Mean and deviation, two numbers a token, backward makes again.

    torch's own keeps them, in float32: 8 s b bytes, which the paper leaves out as few.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.epsilon = epsilon
        return F.layer_norm(x, weight.shape, weight, bias, epsilon)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        _, mean, inverse = torch.native_layer_norm(x, weight.shape, weight, bias, ctx.epsilon)
        needed = list(ctx.needs_input_grad[:3])
        back = torch.ops.aten.native_layer_norm_backward
        return *back(gradient, x, weight.shape, mean, inverse, weight, bias, needed), None


def ahead(scores: Tensor) -> Tensor:
    """What to add to scores so that no token sees one that comes later: [..., S, S] -> [S, S].

    Adding keeps nothing for backward, where `masked_fill` would keep its mask.
    """
    return scores.new_full(scores.shape[-2:], -torch.inf).triu(1)
