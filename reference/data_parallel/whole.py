"""Whole parameters from the parts that ranks hold: to compare with one process, to sample from, to hand on."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from .form import Part, UpdateForm


@torch.no_grad()
def whole(form: UpdateForm, value: Callable[[Part], Tensor | None] = lambda part: part.master) -> dict[str, Tensor]:
    """Every trainable parameter, or what belongs to it, whole on every rank. All ranks of a form call this together.

    Args:
        form: whose parts.
        value: of a part, as many elements as its master has: the master by default, `lambda part: part.master.grad`
            for gradients.

    Returns:
        By the parameter's name, in its whole shape, copies on the CPU, in the dtype of `value`; without those for
        which it is None.
    """
    found: dict[str, Tensor] = {}
    for shape, name, pieces in _of_everybody(form, value):
        for box, values in pieces:
            box.within(found.setdefault(name, torch.empty(shape, dtype=values.dtype)))[...] = values
    return found


def _of_everybody(form: UpdateForm, value: Callable[[Part], Tensor | None]) -> list[tuple]:
    """Shape, name and pieces of all parts of all ranks."""
    held = []
    for part in form.parts:
        if (x := value(part)) is not None:
            x = x.detach().cpu().clone()  # a view would be sent with all of what it is a view of
            held.append((part.shape, part.name, part.pieces(x)))
    for group in form.shards:
        theirs: list = [None] * dist.get_world_size(group)
        dist.all_gather_object(theirs, held, group=group)
        held = [one for each in theirs for one in each]
    return held
