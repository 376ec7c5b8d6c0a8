"""A sequence in slices: what happens between the slices and the whole, as plain functions of tensors.

Outside of attention and MLP rank r has the r-th slice of the tokens, [B, S / t, D]. Inside, each rank has all tokens,
[B, S, D], and does another share of the work on them.

| function | forward                                          | backward                | bytes sent, S all tokens |
|----------|--------------------------------------------------|-------------------------|--------------------------|
| gather   | every rank's slices, one after another           | scatter                 | (t-1)/t · S each way     |
| scatter  | the sum of what all have made, a slice to each   | gather                  | (t-1)/t · S each way     |
| shared   | nothing: a weight that all have                  | the sum of its gradient | 2(t-1)/t · its size      |

gather and scatter are each other's backward. `shared` is for what lies outside and has weights, such as a norm: each
rank uses the same weight on other tokens, so what it finds is a part of the gradient. It is Megatron's f.

`SequenceRegion` is the same with messages that overlap, and with less that is kept.

Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models", sec. 4.2.2.
"""

from collections.abc import Callable

from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.default import over
from reference.collectives.differentiable import Conjugate
from reference.tensor_parallel.plain import enter

from .region import cut


def gather_slices(x: Tensor, group: ProcessGroup) -> Tensor:
    """All tokens, of every rank's slices: [B, S / t, D] -> [B, S, D]. Gradients do not pass."""
    slices = x.new_empty(group.size(), *x.shape)
    over(group).all_gather(x.detach().contiguous(), slices)
    return slices.movedim(0, 1).flatten(1, 2)


def sum_slices(x: Tensor, group: ProcessGroup) -> Tensor:
    """This rank's slice of the sum of every rank's `x`: [B, S, D] -> [B, S / t, D]. Gradients do not pass."""
    slices = cut(x.detach(), group.size(), dim=1).movedim(1, 0).contiguous()
    mine = slices.new_empty(slices.shape[1:])
    over(group).reduce_scatter(slices, mine)
    return mine


def gather(x: Tensor, group: ProcessGroup) -> Tensor:
    """All tokens, for work that differs from rank to rank: [B, S / t, D] -> [B, S, D]. Its backward is a scatter."""
    return Conjugate.apply(x, lambda x: gather_slices(x, group), lambda gradient: sum_slices(gradient, group))


def scatter(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of all ranks' `x`, and of it this rank's slice: [B, S, D] -> [B, S / t, D]. Its backward is a gather."""
    return Conjugate.apply(x, lambda x: sum_slices(x, group), lambda gradient: gather_slices(gradient, group))


def shared(weight: Tensor, group: ProcessGroup) -> Tensor:
    """A weight that all ranks have, for use on slices: its gradient is the sum of what all ranks find."""
    return enter(weight, group)


def gather_and_scatter(group: ProcessGroup) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """The pair, for one group: `gather` [B, S / t, D] -> [B, S, D], and `scatter`, which is its backward."""
    return lambda x: gather(x, group), lambda x: scatter(x, group)
