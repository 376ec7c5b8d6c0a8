"""Ranks that have different amounts of work: in a batch, and in number of batches.

*In a batch.* The loss is the mean over all tokens of all ranks. The mean of the ranks' means is another one: it gives
a token of a short text more weight than one of a long text. So all ranks first agree on the number of tokens, 8
bytes in one all-reduce, and each divides the sum of its losses by that. Gradients then add up, as everywhere here.

*In number of batches.* Collectives need all ranks. A rank that has run out must still take part in those of the
others, bringing zeros, until the last has finished:

    form = DistributedDataParallel(model, group, unused=True)
    for batch, tokens in joined(batches, group, tokens_of=lambda batch: batch[1].numel()):
        with form.micro_batch(last=True):
            if batch is not None:                     # without one, every parameter is unused, and zeros are sent
                token_loss(model(batch[0]), batch[1], tokens).backward()
        form.reduce_gradients(); optimizer.step(); form.end_step()

That works where parameters stay whole: with every form but FSDP, whose ranks gather each unit together, in forward
too. There a rank without a batch is named (`BadInput`), and must compute one that counts zero: take a batch that it has
had, and `0 * model(batch[0]).sum()` as its loss.

Whether any rank has a batch, and how many tokens there are, fits into one message. torch calls this `Join`; it does
the same by shadowing each collective of DDP.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.collectives.compat import device_of


def weighted_loss(losses: Tensor, group: ProcessGroup) -> Tensor:
    """This rank's part of the mean over all tokens of all ranks.

    Args:
        losses: of this rank's tokens, of any shape, in float32 at least, since they are added up; as many as it has,
            none at all included. Not all ranks may have none.
        group: n ranks, which all call this.

    Returns:
        A scalar. The sum of all ranks' scalars is the mean, and the sum of their gradients its gradient.
    """
    tokens = torch.tensor(losses.numel(), device=losses.device)
    dist.all_reduce(tokens, group=group)
    return losses.sum() / tokens


def joined(
    batches: Iterable[Any],
    group: ProcessGroup,
    tokens_of: Callable[[Any], int] = len,
) -> Iterator[tuple[Any | None, int]]:
    """This rank's batches, and None after the last of them, until all ranks have finished.

    One all-reduce of 16 bytes for each step, and one more that says that all are done. A rank that leaves the loop
    early leaves the others waiting.

    Args:
        batches: of this rank; how many need not be known.
        group: n ranks, which all go through this.
        tokens_of: how many tokens (or samples, or whatever the loss is a mean of) a batch has.

    Yields:
        A batch or None, and the number of tokens that all ranks have in this step.
    """
    rest = iter(batches)
    while True:
        batch = next(rest, None)
        mine = (0, 0) if batch is None else (1, tokens_of(batch))
        ranks_and_tokens = torch.tensor(mine, device=device_of(group))
        dist.all_reduce(ranks_and_tokens, group=group)
        ranks, tokens = ranks_and_tokens.tolist()
        if ranks == 0:
            return
        yield batch, tokens
