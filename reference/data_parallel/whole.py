"""Whole parameters from the parts that ranks hold: to compare with one process, to sample from, to hand on."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from .form import DataParallel, Part


@torch.no_grad()
def whole(form: DataParallel, value: Callable[[Part], Tensor | None] = lambda part: part.master) -> dict[str, Tensor]:
    """Every trainable parameter, or what belongs to it, whole on every rank. All ranks of a form call this together.

    Args:
        form: whose parts.
        value: of a part, as many elements as its master has: the master by default, `lambda part: part.master.grad`
            for gradients.

    Returns:
        By the parameter's name, in its whole shape, copies on the CPU, in the dtype of `value`; without those for
        which it is None.
    """
    values = {part: x.detach().cpu().clone() for part in form.parts if (x := value(part)) is not None}
    if form.shards is None:
        return {part.name: x.view(part.shape) for part, x in values.items()}
    mine = {}
    for part, x in values.items():  # clones: a view would be sent with all of the shard that it is a view of
        mine.setdefault(part.name, (part.shape, []))[1].append((part.begin, part.end, x))
    theirs: list = [None] * dist.get_world_size(form.shards)
    dist.all_gather_object(theirs, mine, group=form.shards)
    found: dict[str, Tensor] = {}
    for name, (shape, pieces) in ((name, held) for each in theirs for name, held in each.items()):
        flat = found.setdefault(name, torch.empty(shape, dtype=pieces[0][2].dtype)).view(-1)
        for begin, end, values in pieces:
            flat[begin:end] = values.flatten()
    return found
