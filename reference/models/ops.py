"""What layers ask for when they compute: the one place where a strategy enters a model.

    query, key, value = self.ops.column_linear(x, self.query, self.key, self.value)
    mixed = self.ops.attend(self.core, query, key, value, cos_sin)
    return self.ops.row_linear(mixed, self.output)

A layer says what it needs, and `Ops` does it, here as one process does. A strategy is another `Ops`, and is given to a
model by `equip`; no method of a module is ever replaced.

| a layer asks for  | whose work it is                                                                 |
|-------------------|----------------------------------------------------------------------------------|
| embedding, logits | the two ends of the model: a table of the vocabulary                             |
| columns           | the first matrices of a pair: what comes out may be split                        |
| rows              | the second one: what goes in may be split                                        |
| attend            | what stands between the matrices of attention, as a whole                        |
| attention         | in there: tokens look at each other                                              |
| local             | what is cheap and each token does by itself: norms, the product inside a SwiGLU  |
| dropout           | some of what is added to the residual stream is left out                         |
| own               | of something that is known of all tokens, what belongs to those that are here    |
| block             | a whole block, from its input to its output                                      |
| start_routed      | where experts are: a function of tokens of which each is on one rank             |
| start_experts     | in there: rows of tokens go to their experts, and come back                      |
| decide            | in there: a choice, which must not come out otherwise if it is made again        |
| sum_over_...      | in there: counts of all tokens of a window, or of a batch                        |
| whole_windows     | in there: what is known of all tokens of a window, on whatever rank they are     |

The other two, `gather` and `add_weight_gradient`, are what such ops offer to others around them: those that compute the
gradients of weights by hand.

Some ops stand alone and compute: these, and those of tensor parallelism. Others stand `Around` some, change a few, and
pass on the rest. Which stand around which is one list, in `reference.parallelize`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference.models.by_expert import ChoicesByExpert, Compute, add_up

Linear = Callable[[Tensor], Tensor]
"""`nn.Linear`, or what has `weight`, `bias` and can be called as it can."""
Made = Callable[[], Tensor]
"""Finishes what has begun, and returns what came out."""


class Ops:
    """One process: every layer has all of its weights, and sees all tokens.

    Shapes: B batch, S sequence, D width, F features. "Outside" is what lies between the pairs of matrices, the residual
    stream: a strategy may leave a rank fewer tokens there, and fewer features between the two matrices of a pair.
    """

    plain_products = True  # whether a linear layer is a product of what is here, and nothing else

    def embedding(self, tokens: Tensor, table: nn.Embedding) -> Tensor:
        """[B, S] of integers -> [B, S, D] outside."""
        return F.embedding(tokens, table.weight)

    def column_linear(self, x: Tensor, *layers: Linear) -> tuple[Tensor, ...]:
        """One input through several linear layers: [B, S, D] outside -> [B, S, F_i] each."""
        return tuple(layer(x) for layer in layers)

    def row_linear(self, x: Tensor, layer: Linear) -> Tensor:
        """Back to the residual stream: [B, S, F] -> [B, S, D] outside."""
        return layer(x)

    def attend(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """`function(*inputs)`, of queries, keys and values, and what else it needs."""
        return function(*inputs)

    def attention(self, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        """Tokens look at each other: [B, H, S, d] of queries, [B, K, S, d] of keys and values -> [B, H, S, d].

        Args:
            query, key, value: of the tokens that are here; each head of keys and values serves H / K of queries.
            causal: whether a token sees only those up to itself.
        """
        if needs_all_heads(query, key):
            key, value = all_heads(key, query), all_heads(value, query)
        grouped = key.shape[1] != query.shape[1]
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=grouped)

    def local(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """`function(*inputs)`, in which no token sees another."""
        return function(*inputs)

    def dropout(self, drop: Callable[..., Tensor], x: Tensor, seeds: Tensor | None) -> Tensor:
        """`drop(x, seeds)`: [B, S, D] outside, and the seeds of all tokens, [B, S]."""
        return drop(x, seeds)

    def local_tokens(self, x: Tensor) -> Tensor:
        """Of [B, S, ...] for all tokens, what belongs to those that this rank has outside."""
        return x

    def logits(self, x: Tensor, table: nn.Module) -> Tensor:
        """[B, S, D] outside -> [B, S, V] by a table whose `weight` is [V, D]."""
        return F.linear(x, table.weight)

    def block(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """`function(*inputs)`: a whole block."""
        return function(*inputs)

    def start_routed(self, function: Callable[..., Made], x: Tensor, positions: Tensor) -> Made:
        """Begin `function(x, positions)`, in which each token counts once; the result finishes it.

        Args:
            function: from some tokens to what finishes with as many of them: [B, s, D] and [s] -> [B, s, D].
            x: [B, S, D] outside.
            positions: [S] of all tokens of this rank's windows; below 0 are no tokens.
        """
        return function(x, positions)

    def start_experts(self, compute: Compute, x: Tensor, chosen: Tensor, weights: Tensor, experts: int) -> Made:
        """Begin to let each token's experts compute; the result finishes, with what they make weighed and added.

        Args:
            compute: of the experts that this rank has.
            x: [B, S, D].
            chosen: experts of each token, [B, S, k], below 0 for none.
            weights: of what they make, [B, S, k].
            experts: E, on all ranks.
        """
        choices = ChoicesByExpert.of(chosen, experts)
        made = add_up(choices.back(compute(choices.rows(x), choices.counts.tolist())), weights)
        return lambda: made

    def decide(self, function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> tuple[Tensor, ...]:
        """`function(*inputs)`, which chooses, and has no gradient."""
        with torch.no_grad():
            return function(*inputs)

    def sum_over_windows(self, counts: Tensor) -> Tensor:
        """Counts [B, ...] of the tokens of each window that are here: of all of its tokens."""
        return counts

    def sum_over_batch(self, counts: Tensor) -> Tensor:
        """Counts of the tokens that are here: of those of all ranks in this micro-batch."""
        return counts

    def whole_windows(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Of what is known of the tokens that are here, [B, s, ...] of integers, that of whole windows, in order.

        Returns:
            [B, S, ...], and what finds in something of that shape the tokens that are here.
        """
        return x, lambda whole: whole

    def gather(self, x: Tensor) -> Tensor:
        """All tokens of what lies outside."""
        return x

    def add_weight_gradient(self, weight: nn.Parameter, gradient: Tensor, x: Tensor) -> None:
        """Add dyᵀ x, summed over all tokens, to the gradient of a weight [F, D]; its hooks are called.

        Args:
            weight: a leaf of autograd.
            gradient: dy, [B, S, F].
            x: [B, S, D].
        """
        weight.backward(gradient.flatten(0, -2).T @ x.flatten(0, -2))


class Around(Ops):
    """Ops around others. What it does not change, those do."""

    def __init__(self, inside: Ops) -> None:
        self.inside = inside

    @property
    def plain_products(self) -> bool:
        """As those inside."""
        return self.inside.plain_products

    def embedding(self, tokens: Tensor, table: nn.Embedding) -> Tensor:
        """As those inside."""
        return self.inside.embedding(tokens, table)

    def column_linear(self, x: Tensor, *layers: Linear) -> tuple[Tensor, ...]:
        """As those inside."""
        return self.inside.column_linear(x, *layers)

    def row_linear(self, x: Tensor, layer: Linear) -> Tensor:
        """As those inside."""
        return self.inside.row_linear(x, layer)

    def attend(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """As those inside."""
        return self.inside.attend(function, *inputs)

    def attention(self, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        """As those inside."""
        return self.inside.attention(query, key, value, causal)

    def local(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """As those inside."""
        return self.inside.local(function, *inputs)

    def dropout(self, drop: Callable[..., Tensor], x: Tensor, seeds: Tensor | None) -> Tensor:
        """As those inside."""
        return self.inside.dropout(drop, x, seeds)

    def local_tokens(self, x: Tensor) -> Tensor:
        """As those inside."""
        return self.inside.local_tokens(x)

    def logits(self, x: Tensor, table: nn.Module) -> Tensor:
        """As those inside."""
        return self.inside.logits(x, table)

    def block(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """As those inside."""
        return self.inside.block(function, *inputs)

    def start_routed(self, function: Callable[..., Made], x: Tensor, positions: Tensor) -> Made:
        """As those inside."""
        return self.inside.start_routed(function, x, positions)

    def start_experts(self, compute: Compute, x: Tensor, chosen: Tensor, weights: Tensor, experts: int) -> Made:
        """As those inside."""
        return self.inside.start_experts(compute, x, chosen, weights, experts)

    def decide(self, function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> tuple[Tensor, ...]:
        """As those inside."""
        return self.inside.decide(function, *inputs)

    def sum_over_windows(self, counts: Tensor) -> Tensor:
        """As those inside."""
        return self.inside.sum_over_windows(counts)

    def sum_over_batch(self, counts: Tensor) -> Tensor:
        """As those inside."""
        return self.inside.sum_over_batch(counts)

    def whole_windows(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """As those inside."""
        return self.inside.whole_windows(x, positions)

    def gather(self, x: Tensor) -> Tensor:
        """As those inside."""
        return self.inside.gather(x)

    def add_weight_gradient(self, weight: nn.Parameter, gradient: Tensor, x: Tensor) -> None:
        """As those inside."""
        self.inside.add_weight_gradient(weight, gradient, x)


def innermost(ops: Ops) -> Ops:
    """Those that compute, inside of all that stand around them."""
    while isinstance(ops, Around):
        ops = ops.inside
    return ops


def needs_all_heads(query: Tensor, key: Tensor) -> bool:
    """Whether heads of keys must be repeated for attention to keep no S x S numbers.

    On a GPU the kernel that takes groups of heads (flash) computes in 16 bits, and the one for more bits takes no
    groups. Where neither can be had, torch multiplies in full, and keeps a number for every pair of tokens.
    """
    return query.is_cuda and query.element_size() > 2 and key.shape[1] != query.shape[1]


def all_heads(x: Tensor, query: Tensor) -> Tensor:
    """Keys or values for each head of queries: [B, K, S, head_dim] -> [B, H, S, head_dim]."""
    return x.repeat_interleave(query.shape[1] // x.shape[1], dim=1)


PLAIN = Ops()


class Layer(nn.Module):
    """A module that asks `self.ops` for what it computes."""

    ops: Ops = PLAIN


@dataclass(frozen=True, eq=False)
class Product:
    """A linear layer, as ops take it."""

    weight: Tensor
    bias: Tensor | None = None
    of: Linear | None = None  # the layer that it stands for

    def __call__(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., F]."""
        return F.linear(x, self.weight, self.bias)


class OpsLinear(nn.Linear, Layer):
    """A linear layer of any model."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., F]."""
        return self.ops.row_linear(x, Product(self.weight, self.bias, self))


class Embedding(nn.Embedding, Layer):
    """The first layer: tokens to vectors."""

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, S] of integers -> [B, S, D] outside."""
        return self.ops.embedding(tokens, self)


class Head(nn.Linear, Layer):
    """The last layer: logits by a table of its own."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__(width, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] outside -> [B, S, V]."""
        return self.ops.logits(x, self)


def equip(model: nn.Module, wrap: Callable[[Ops], Ops]) -> None:
    """Give the layers of a model other ops, in place.

    Args:
        model: whose layers all have the same ops.
        wrap: from the ops that they have to those that they get.
    """
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    made = {ops: wrap(ops) for ops in dict.fromkeys(layer.ops for layer in layers)}
    for layer in layers:
        layer.ops = made[layer.ops]


def adopt(model: nn.Module) -> None:
    """Let the linear layers of any model ask ops for their product, in place.

    Plain ones, outside of a `Layer`, whose weight is a parameter of their own: each becomes an `OpsLinear`. Its class
    changes, as with torch's parametrizations and FSDP2, so that all who hold the module see it.
    """
    within = {child for module in model.modules() if isinstance(module, Layer) for child in module.children()}
    for module in model.modules():
        if type(module) is nn.Linear and isinstance(module.weight, nn.Parameter) and module not in within:
            module.__class__ = OpsLinear
