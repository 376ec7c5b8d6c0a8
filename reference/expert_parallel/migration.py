"""Experts move to other ranks between two steps, with all that training knows of them.

An expert is a row in each of some tensors: its matrices, and for each of these the moments of its optimizer. Left
behind, moments would belong to another expert from then on, and the next step would be wrong without an error. So a
slot travels as one row of bytes, whatever it is made of.

    migrate       each new slot gets its expert from one rank that has it: from this one if possible, then from the
                  nearest on the same node, then from the nearest; an expert comes to a rank once, however many of its
                  slots are there
    sum_copies    gradients of an expert's copies are summed before the optimizer's step, so copies stay equal

A rank receives the bytes of each expert that it did not have. To sum gradients of an expert that c ranks have takes
2 (c - 1) rows: to the first of them, which adds them up in the order of ranks, and back; so the sum is the same bits
on all of them.

DeepSeek-AI 2024, "DeepSeek-V3", sec. 3.4: experts that get most tokens change from time to time, and their copies too.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reference.collectives.communicator import Communicator
from reference.errors import BadInput

from .placement import ExpertPlacement


class ExpertMove(NamedTuple):
    """One expert, from one rank to another."""

    expert: int
    source: int
    target: int


def moves_between(before: ExpertPlacement, after: ExpertPlacement, ranks_per_node: int = 1) -> list[ExpertMove]:
    """Which experts come to which ranks, and where from, in the order of targets.

    Args:
        before, after: of the same experts on the same ranks; slots may be more or fewer.
        ranks_per_node: neighbouring ranks that share a node.

    Raises:
        BadInput: if experts or ranks are not as many.
    """
    if (before.experts, before.ranks) != (after.experts, after.ranks):
        raise BadInput(
            f"{before.experts} experts on {before.ranks} ranks cannot move to a placement of {after.experts} experts "
            f"on {after.ranks}"
        )

    def distance(source: int, target: int) -> tuple[bool, int, int]:
        return source // ranks_per_node != target // ranks_per_node, abs(source - target), source

    return [
        ExpertMove(expert, min(before.holders(expert), key=lambda source: distance(source, target)), target)
        for target, (old, new) in enumerate(zip(before.slots, after.slots, strict=True))
        for expert in sorted(set(new) - set(old))
    ]


def migrate(
    tensors: Sequence[Tensor],
    before: ExpertPlacement,
    after: ExpertPlacement,
    ranks: Communicator,
    ranks_per_node: int = 1,
) -> list[Tensor]:
    """Give each slot of a new placement what its expert's slot had. All ranks call it.

    Args:
        tensors: of this rank, each [slots of a rank, ...], of any dtypes: a row for each slot of the old placement.
        before, after: the placements.
        ranks: n.
        ranks_per_node: as for `moves_between`.

    Returns:
        As many tensors, with a row for each slot of the new placement.

    Raises:
        BadInput: as `moves_between`, and if tensors or ranks are not those of the old placement.
    """
    here = _slots_of(before, tensors, ranks)
    rows = {expert: row for expert, row in zip(here, _as_bytes(tensors), strict=True)}
    moves = moves_between(before, after, ranks_per_node)
    rows |= {move.expert: row for move, row in carry(rows, moves, ranks)}
    return _from_bytes(torch.stack([rows[expert] for expert in after.slots[ranks.rank()]]), tensors)


def migrate_optimizer(
    optimizer: torch.optim.Optimizer, before: ExpertPlacement, after: ExpertPlacement, ranks: Communicator
) -> None:
    """`migrate` all parameters of an optimizer, and of its state all that has their shapes, in place.

    Args:
        optimizer: of parameters [slots of a rank, ...] alone. Their gradients are forgotten.
        before, after: placements with as many slots; of others make a new optimizer, from what `migrate` returns.
        ranks: n.

    Raises:
        BadInput: as `migrate`, and if there are more slots or fewer.
    """
    if len(before.slots[0]) != len(after.slots[0]):
        raise BadInput(
            f"parameters have {len(before.slots[0])} slots on a rank, and cannot become {len(after.slots[0])}"
        )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = [
        value
        for parameter in parameters
        for value in optimizer.state[parameter].values()
        if isinstance(value, Tensor) and value.shape == parameter.shape
    ]
    tensors = [*(parameter.detach() for parameter in parameters), *states]
    for old, new in zip(tensors, migrate(tensors, before, after, ranks), strict=True):
        old.copy_(new)
    for parameter in parameters:
        parameter.grad = None


def sum_copies(gradients: Tensor, placement: ExpertPlacement, ranks: Communicator) -> None:
    """Let each slot have the sum of the gradients of all slots of its expert, in place. All ranks call it.

    Args:
        gradients: [slots of a rank, ...], of this rank.
        placement: says whose they are.
        ranks: n.

    Raises:
        BadInput: if tensors or ranks are not those of the placement.
    """
    here = _slots_of(placement, [gradients], ranks)
    sums: dict[int, Tensor] = {}
    for expert, row in zip(here, gradients, strict=True):
        sums[expert] = sums[expert] + row if expert in sums else row
    first = {expert: placement.holders(expert)[0] for expert in range(placement.experts)}
    others = [(expert, rank) for expert in first for rank in placement.holders(expert)[1:]]
    there = [ExpertMove(expert, rank, first[expert]) for expert, rank in others]
    for move, row in carry(sums, there, ranks):
        sums[move.expert] = sums[move.expert] + row
    sums |= {move.expert: row for move, row in carry(sums, [ExpertMove(e, to, by) for e, by, to in there], ranks)}
    gradients.copy_(torch.stack([sums[expert] for expert in here]))


def carry(
    rows: Mapping[int, Tensor], moves: Iterable[ExpertMove], ranks: Communicator
) -> list[tuple[ExpertMove, Tensor]]:
    """Rows between ranks, in one exchange: what has come, in the order of the ranks it is from.

    Args:
        rows: of this rank, by expert, all of one shape and dtype; at least one.
        moves: of all ranks, in the same order on each of them.
        ranks: n.
    """
    n, me = ranks.size(), ranks.rank()
    sent = sorted((move for move in moves if move.source == me), key=lambda move: move.target)
    received = sorted((move for move in moves if move.target == me), key=lambda move: move.source)
    like = next(iter(rows.values()))
    out = like.new_empty(len(received), *like.shape)
    x = torch.stack([rows[move.expert] for move in sent]) if sent else out[:0]
    targets, sources = [move.target for move in sent], [move.source for move in received]
    ranks.all_to_all_uneven(
        x, out, [targets.count(rank) for rank in range(n)], [sources.count(rank) for rank in range(n)]
    )
    return list(zip(received, out.unbind(), strict=True))


def _as_bytes(tensors: Sequence[Tensor]) -> Tensor:
    """A row for each slot: the bytes of its rows of all tensors, [slots, bytes]."""
    return torch.cat([x.detach().contiguous().view(len(x), -1).view(torch.uint8) for x in tensors], dim=1)


def _from_bytes(rows: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The tensors whose rows these are, in the dtypes and but for their number in the shapes of `like`."""
    sizes = [x[0].numel() * x.element_size() for x in like]
    parts = zip(rows.split(sizes, dim=1), like, strict=True)
    return [part.clone().view(x.dtype).view(-1, *x.shape[1:]) for part, x in parts]


def _slots_of(placement: ExpertPlacement, tensors: Sequence[Tensor], ranks: Communicator) -> tuple[int, ...]:
    """The experts of this rank's slots."""
    if ranks.size() != placement.ranks:
        raise BadInput(f"a placement on {placement.ranks} ranks is none of {ranks.size()}")
    here = placement.slots[ranks.rank()]
    if wrong := [x for x in tensors if not x.dim() or len(x) != len(here)]:
        raise BadInput(
            f"a rank has {len(here)} slots, and a tensor of shape {tuple(wrong[0].shape)} has no row for each"
        )
    return here
