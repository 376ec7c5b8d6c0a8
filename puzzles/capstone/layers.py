"""Adapters of what layers compute: a learner's matrices, vocabulary, attention and experts, as ops around the engine's.

Puzzles of forward and backward by hand return both at once, for an upstream gradient that they are given. Autograd asks
for one after the other: so these run twice, in forward with zeros upstream, in backward with what comes.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed import ProcessGroup

from reference.context_parallel.attention import BlockAttention
from reference.context_parallel.plain import attend
from reference.context_parallel.tokens import Mask, positions
from reference.expert_parallel.answers.exchange import combine, counts_first, dispatch
from reference.models.by_expert import Compute
from reference.models.gpt import Attention, Block, SwiGLU
from reference.models.moe import MixtureOfExperts
from reference.models.ops import Around, Embedding, Head, Linear, Made, Ops, innermost
from reference.models.routing import choose

Function_ = Callable[..., Any]


def every(number: int) -> bool:
    """Of all layers of a class."""
    return True


def only(layer: int) -> Callable[[int], bool]:
    """Of the layers of a class the one with this number."""
    return lambda number: number == layer


def tensor_group(ops: Ops) -> ProcessGroup:
    """The ranks that share matrices."""
    return innermost(ops).region.group


class ByHandTwice(Function):
    """`apply(compute, x, weight, bias)`: `compute(x, weight, bias, upstream)` gives y and three gradients."""

    @staticmethod
    def forward(ctx: Any, compute: Function_, x: Tensor, weight: Tensor, bias: Tensor, like: Tensor) -> Tensor:
        ctx.compute = compute
        ctx.save_for_backward(x, weight, bias)
        return compute(x, weight, bias, like)[0].clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        _, of_x, of_weight, of_bias = ctx.compute(*ctx.saved_tensors, gradient.contiguous())
        return None, of_x, of_weight, of_bias, None


class Columns(Around):
    """The first matrices of a pair by `tensor_parallel.column_linear`."""

    def __init__(self, inside: Ops, function: Function_) -> None:
        super().__init__(inside)
        group = tensor_group(inside)
        self.compute = lambda x, weight, bias, up: function(x, weight, bias, up, join=False, group=group)

    def column_linear(self, x: Tensor, *layers: Linear) -> tuple[Tensor, ...]:
        """One layer after the other."""
        flat = x.flatten(0, 1)
        return tuple(self._one(flat, layer).unflatten(0, x.shape[:2]) for layer in layers)

    def _one(self, x: Tensor, layer: Linear) -> Tensor:
        features = len(layer.weight)
        bias = x.new_zeros(features) if layer.bias is None else layer.bias
        return ByHandTwice.apply(self.compute, x, layer.weight, bias, x.new_zeros(len(x), features))


class Rows(Around):
    """The second matrix of a pair by `tensor_parallel.row_linear`."""

    def __init__(self, inside: Ops, function: Function_) -> None:
        super().__init__(inside)
        group = tensor_group(inside)
        self.compute = lambda x, weight, bias, up: function(x, weight, bias, up, split=False, group=group)

    def row_linear(self, x: Tensor, layer: Linear) -> Tensor:
        """Summed over the ranks."""
        flat, width = x.flatten(0, 1), len(layer.weight)
        bias = x.new_zeros(width) if layer.bias is None else layer.bias
        made = ByHandTwice.apply(self.compute, flat, layer.weight, bias, x.new_zeros(len(flat), width))
        return made.unflatten(0, x.shape[:2])


class Ends(Around):
    """Both ends of a region by a pair of operators, such as Megatron's f and g, or gather and scatter."""

    def __init__(self, inside: Ops, function: Function_) -> None:
        super().__init__(inside)
        self.enter, self.leave = function(group=tensor_group(inside))

    def column_linear(self, x: Tensor, *layers: Linear) -> tuple[Tensor, ...]:
        """In, then this rank's columns."""
        entered = self.enter(x)
        return tuple(F.linear(entered, layer.weight, layer.bias) for layer in layers)

    def row_linear(self, x: Tensor, layer: Linear) -> Tensor:
        """This rank's rows, then out."""
        made = self.leave(F.linear(x, layer.weight))
        return made if layer.bias is None else made + layer.bias


class KeptSlices(Around):
    """The first matrices of a pair by `sequence_parallel.save_the_shard`."""

    def __init__(self, inside: Ops, function: Function_) -> None:
        super().__init__(inside)
        self.product = partial(function, group=tensor_group(inside))

    def column_linear(self, x: Tensor, *layers: Linear) -> tuple[Tensor, ...]:
        """One layer after the other; the layers of this model have no bias."""
        return tuple(self.product(x, layer.weight) for layer in layers)


class Table(Around):
    """The embedding by `tensor_parallel.vocabulary_embedding`."""

    def __init__(self, inside: Ops, function: Function_) -> None:
        super().__init__(inside)
        group = tensor_group(inside)

        def compute(tokens: Tensor, table: Tensor, bias: Tensor, up: Tensor) -> tuple[Tensor | None, ...]:
            found, of_table = function(tokens, table, up, group=group)
            return found, None, of_table, None

        self.compute = compute

    def embedding(self, tokens: Tensor, table: nn.Embedding) -> Tensor:
        """Rows of all ranks."""
        flat, weight = tokens.flatten(), table.weight
        like = weight.new_zeros(len(flat), weight.shape[1])
        return ByHandTwice.apply(self.compute, flat, weight, like[0], like).unflatten(0, tokens.shape)


class LaterWeights(Around):
    """Linear layers with a backward in two halves by `zero_bubble.split_linear_backward`."""

    def __init__(self, inside: Ops, function: Function_) -> None:
        super().__init__(inside)
        self.function, self.deferred = function, inside.deferred

    def column_linear(self, x: Tensor, *layers: Linear) -> tuple[Tensor, ...]:
        """One after the other."""
        return tuple(self._one(x, layer.weight) for layer in layers)

    def row_linear(self, x: Tensor, layer: Linear) -> Tensor:
        """On one rank the same."""
        return self._one(x, layer.weight)

    def _one(self, x: Tensor, weight: nn.Parameter) -> Tensor:
        own = weight.detach().requires_grad_()

        def later(finish: Callable[[], None]) -> None:
            def bring() -> None:
                finish()
                gradient, own.grad = own.grad, None
                weight.backward(gradient)  # which also calls the hooks of those who sum it

            if not self.deferred.defers(bring):
                bring()

        return self.function(x.flatten(0, 1), own, later).unflatten(0, x.shape[:2])


class Recomputed(Around):
    """A block by `memory.recompute_block`."""

    def __init__(self, inside: Ops, function: Function_) -> None:
        super().__init__(inside)
        self.function = function

    def block(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Again in backward."""
        return self.function(partial(self.inside.block, function), *inputs)


class Between(Around):
    """Attention between ranks that share windows, another way.

    Args:
        inside: ops among which are those of context parallelism.
        make: the way, from the one that is there.
    """

    def __init__(self, inside: Ops, make: Callable[[Any], Any]) -> None:
        super().__init__(inside)
        while not hasattr(inside, "between_ranks"):
            inside = inside.inside
        self.between_ranks = make(inside.between_ranks)

    def attention(self, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        """Of this rank's tokens to those of all."""
        return self.between_ranks(query, key, value, Mask(causal))


class RingWay(BlockAttention):
    """A ring of which a learner's code makes forward, backward, or the merging of blocks."""

    def __init__(self, base: BlockAttention) -> None:
        super().__init__(base.communicator, base.tokens)
        self.base = base

    def forward(self, query: Tensor, block: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        """As the base."""
        return self.base.forward(query, block, mask)

    def backward(self, *given: Any) -> tuple[Tensor, Tensor]:
        """As the base."""
        return self.base.backward(*given)

    def seen(self, query: Tensor) -> Tensor:
        """Which of this rank's queries see which keys of each rank: [n, Q, Q]."""
        here = positions(self.own)
        return torch.stack([positions(held)[None] <= here[:, None] for held in self.tokens])


class RingForward(RingWay):
    """By `context_parallel.ring_forward`."""

    def __init__(self, base: BlockAttention, function: Function_) -> None:
        super().__init__(base)
        self.function = function

    def forward(self, query: Tensor, block: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        """Blocks pass by."""
        return self.function(query, *block, self.seen(query), attend, group=self.communicator.group)


class RingBackward(RingWay):
    """By `context_parallel.ring_backward`."""

    def __init__(self, base: BlockAttention, function: Function_) -> None:
        super().__init__(base)
        self.function = function

    def backward(self, gradient: Tensor, query: Tensor, block: Tensor, out: Tensor, lse: Tensor, mask: Mask) -> Any:
        """Blocks pass by, and their gradients after them."""
        group = self.communicator.group
        of_query, *of_block = self.function(gradient, query, *block, out, lse, self.seen(query), group=group)
        return of_query, torch.stack(of_block)


class Merged(RingWay):
    """Blocks in a ring that `context_parallel.merge_blocks` brings together."""

    def __init__(self, base: BlockAttention, function: Function_) -> None:
        super().__init__(base)
        self.function = function

    def forward(self, query: Tensor, block: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        """n steps, n - 1 messages."""
        out, lse = torch.zeros_like(query), query.new_full(query.shape[:3], -torch.inf)
        seen, n, rank = self.seen(query), self.ranks, self.rank
        for step in range(n):
            out, lse = self.function(out, lse, *attend(query, *block, seen[(rank - step) % n]))
            if step < n - 1:
                incoming = torch.empty_like(block)
                block = self.communicator.start_exchange(block, (rank + 1) % n, incoming, (rank - 1) % n)()
        return out, lse


def gathered(base: BlockAttention, function: Function_) -> Callable[..., Tensor]:
    """All keys at once by `context_parallel.gather_keys`."""
    where = torch.stack([positions(held) for held in base.tokens])
    return lambda query, key, value, mask: function(query, key, value, where, group=base.communicator.group)


def by_heads(base: BlockAttention, function: Function_) -> Callable[..., Tensor]:
    """Heads instead of tokens by `context_parallel.ulysses`: slices of a window in order."""
    return lambda query, key, value, mask: function(query, key, value, group=base.communicator.group)


class Routes(Around):
    """Tokens to experts on other ranks, and back.

    Args:
        functions: by the name of the puzzle's function; the others are the reference's.
    """

    def __init__(self, inside: Ops, functions: dict[str, Function_]) -> None:
        super().__init__(inside)
        all_of = {"counts_first": counts_first, "dispatch": dispatch, "combine": combine} | functions
        self.counts_first, self.dispatch, self.combine = all_of["counts_first"], all_of["dispatch"], all_of["combine"]
        while not hasattr(inside, "dispatch") or inside.dispatch is None:
            inside = inside.inside
        self.group = inside.dispatch.ranks.group

    def start_experts(self, compute: Compute, x: Tensor, chosen: Tensor, weights: Tensor, experts: int) -> Made:
        """Counts, rows there, experts, rows back."""
        flat, flat_chosen, flat_weights = (each.flatten(0, 1) for each in (x, chosen, weights))
        _, _, counts = self.counts_first(flat_chosen, experts, group=self.group)
        rows = self.dispatch(flat, flat_chosen, counts, group=self.group)
        made = compute(rows, counts.sum(0).tolist())
        back = self.combine(made, counts, flat_chosen, flat_weights, group=self.group)
        return lambda: back.view_as(x)


class AtHome(Around):
    """Experts that are all here by `expert_parallel.permute_and_come_back`."""

    def __init__(self, inside: Ops, function: Function_) -> None:
        super().__init__(inside)
        self.function = function

    def start_experts(self, compute: Compute, x: Tensor, chosen: Tensor, weights: Tensor, experts: int) -> Made:
        """Rows in the order of experts, and back."""
        flat, flat_chosen, flat_weights = (each.flatten(0, 1) for each in (x, chosen, weights))
        made = self.function(flat, flat_chosen, flat_weights, experts, compute)
        return lambda: made.view_as(x)


class HiddenStates(Around):
    """Instead of logits what the head is given: `memory.chunked_loss` makes the loss of it."""

    def logits(self, x: Tensor, table: nn.Module) -> Tensor:
        """[B, S, D] as it is."""
        return x


def around(
    kind: type[nn.Module], wrap: Callable[[Ops, Function_], Ops], which: Callable[[int], bool] = every
) -> Callable[[Function_, Any], None]:
    """The adapter that puts ops around those of some layers."""

    def take(function: Function_, parts: Any) -> None:
        parts.ops.append((kind, which, lambda ops: wrap(ops, function)))

    return take


def between(make: Callable[[Any, Function_], Any], layer: int) -> Callable[[Function_, Any], None]:
    """The adapter of attention between ranks, in one layer."""
    return around(Attention, lambda ops, function: Between(ops, lambda base: make(base, function)), only(layer))


def route(name: str) -> Callable[[Function_, Any], None]:
    """The adapter of a part of the way to experts and back."""

    def take(function: Function_, parts: Any) -> None:
        if not parts.routes:
            parts.ops.append((MixtureOfExperts, only(0), lambda ops: Routes(ops, parts.routes)))
        parts.routes[name] = function

    return take


def choice(function: Function_, parts: Any) -> None:
    """Which experts a token goes to, and how much of each, by `expert_parallel.route_top_k`."""

    def routed(scores: Tensor, config: Any) -> tuple[Tensor, Tensor]:
        chosen, weights = function(
            scores.flatten(0, -2).log(), config.top_k, str(config.gate), config.normalised, config.scale
        )
        return chosen.unflatten(0, scores.shape[:-1]), weights.unflatten(0, scores.shape[:-1])

    def put(training: Any) -> None:
        for layer in _mixtures(training):
            layer.choose = lambda scores, config, bias: routed(scores, config)[0]
            layer.weigh = lambda scores, chosen, config: routed(scores, config)[1]

    parts.after.append(put)


def balance(function: Function_, parts: Any) -> None:
    """The loss that keeps experts busy by `expert_parallel.auxiliary_loss`."""

    def put(training: Any) -> None:
        def loss(scores: Tensor, counts: Tensor, is_token: Tensor, config: Any, tokens: int) -> Tensor:
            flat = scores.flatten(0, -2)
            return function(flat, choose(flat.detach(), config), group=training.group)

        for layer in _mixtures(training):
            layer.balance_loss = loss

    parts.after.append(put)


def _mixtures(training: Any) -> Sequence[MixtureOfExperts]:
    return [module for module in training.model.modules() if isinstance(module, MixtureOfExperts)]


ATTENTION, FEED_FORWARD, BLOCK, EMBEDDING, HEAD = Attention, SwiGLU, Block, Embedding, Head
