"""Whole parameters from the parts that ranks hold: to compare with one process, to sample from, to hand on."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .gradient_sync import GradientSync, ParameterShard


@torch.no_grad()
def gather_full(
    form: GradientSync, value: Callable[[ParameterShard], Tensor | None] = lambda part: part.master
) -> dict[str, Tensor]:
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
    for shape, name, dtype, pieces in _of_all_ranks(form, value):
        target = found.setdefault(name, torch.empty(shape, dtype=dtype))
        for box, values in pieces:
            box.within(target)[...] = values
    return found


@torch.no_grad()
def full_state_dict(form: GradientSync, model: nn.Module) -> dict[str, Tensor]:
    """What `model.state_dict()` would be in one process: `torch.save` and `load_state_dict` take it as it is.

    All ranks of a form call this together. Names and order are those of the model: all names of tied parameters, which
    share memory as before; frozen parameters; and buffers, which are this rank's own.

    Args:
        form: of the whole model, between two steps.
        model: that it has wrapped.

    Returns:
        The same parameters on every rank: copies on the CPU, the trainable ones as the masters are.
    """
    masters = gather_full(form)
    for unit in form.units:
        unit.unshard()
        unit.wait_for_unshard()
        masters |= {
            name: parameter.detach().cpu().clone()
            for name, parameter in zip(unit.names, unit.parameters, strict=True)
            if not parameter.requires_grad
        }
        unit.reshard()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    state = model.state_dict(keep_vars=True)
    copies = {id(x): x.detach().cpu().clone() for x in state.values() if isinstance(x, Tensor) and id(x) not in names}
    frozen = {id(p): p.detach().cpu().clone() for n, p in model.named_parameters() if n not in masters}
    found = copies | frozen | {number: masters[name] for number, name in names.items() if name in masters}
    return {name: found.get(id(x), x) for name, x in state.items()}


def _of_all_ranks(form: GradientSync, value: Callable[[ParameterShard], Tensor | None]) -> list[tuple]:
    """Shape, name, dtype and pieces of all parts of all ranks."""
    held = []
    for part in form.parts:
        if (x := value(part)) is not None:
            x = x.detach().cpu().clone()  # a view would be sent with all of what it is a view of
            held.append((part.shape, part.name, x.dtype, part.pieces(x)))
    for group in form.shard_groups:
        theirs: list = [None] * dist.get_world_size(group)
        dist.all_gather_object(theirs, held, group=group)
        held = [one for each in theirs for one in each]
    return held
