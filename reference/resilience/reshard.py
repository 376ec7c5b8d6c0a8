"""From one layout to another without a disk: each rank fetches what it needs from those who hold it.

What a rank holds of a parameter, or of what the optimizer remembers of it, are boxes of elements
(`reference.sharding.Slices`). Ranks of one layout hold boxes that are equal or have nothing in common; those of another
layout lie across them. All learn which rank holds and which needs what; from these two lists each finds out for itself
what it sends and receives, in the same order as the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from reference.sharding import Slices

Key = tuple[str, Slices]
"""Whose elements, and which."""


@dataclass(frozen=True)
class BoxTransfer:
    """Elements that travel from rank to rank."""

    source: int
    target: int
    held: Key  # the source has them in this box
    needed: Key  # the target wants them in this one
    common: Slices  # these are both


def overlap(a: Slices, b: Slices) -> Slices | None:
    """The elements that two boxes have in common, if any."""
    begins = tuple(map(max, a.begins, b.begins))
    ends = (min(x + m, y + n) for x, m, y, n in zip(a.begins, a.sizes, b.begins, b.sizes, strict=True))
    sizes = tuple(end - begin for begin, end in zip(begins, ends, strict=True))
    return Slices(begins, sizes) if min(sizes) > 0 else None


def transfers(held: Sequence[Sequence[Key]], needed: Sequence[Sequence[Key]]) -> list[BoxTransfer]:
    """Which rank sends what to which.

    Args:
        held: what each rank has.
        needed: what each rank wants.

    Each takes from itself what it has, else from one of those who have it, from another one than its neighbours.
    """
    holders: dict[str, dict[Slices, list[int]]] = {}
    for rank, keys in enumerate(held):
        for name, box in keys:
            holders.setdefault(name, {}).setdefault(box, []).append(rank)
    found = []
    for target, keys in enumerate(needed):
        for name, box in keys:
            for there, ranks in holders.get(name, {}).items():
                if common := overlap(box, there):
                    source = target if target in ranks else ranks[target % len(ranks)]
                    found.append(BoxTransfer(source, target, (name, there), (name, box), common))
    return found


def fetch(held: Mapping[Key, Tensor], needed: Mapping[Key, Tensor], group: dist.ProcessGroup) -> None:
    """Fill what is needed with what the ranks hold. All ranks of `group` call this together.

    Args:
        held: values on the CPU, in the form of their boxes.
        needed: room for values, in the form of their boxes; of the same dtypes.
    """
    said: list = [None] * group.size()
    dist.all_gather_object(said, (list(held), list(needed)), group=group)
    planned = transfers(*zip(*said, strict=True))
    me, requests, arriving = group.rank(), [], []
    for source, target in dict.fromkeys((t.source, t.target) for t in planned):
        pieces = [t for t in planned if (t.source, t.target) == (source, target)]
        if me == source:
            message = torch.cat([as_bytes(_within(held[t.held], t.held[1], t.common)) for t in pieces])
            if me == target:
                _unpack(message, pieces, needed)
            else:
                requests.append(dist.isend(message, group=group, group_dst=target))
        elif me == target:
            message = torch.empty(sum(t.common.numel * needed[t.needed].itemsize for t in pieces), dtype=torch.uint8)
            arriving.append((dist.irecv(message, group=group, group_src=source), message, pieces))
    for request, message, pieces in arriving:
        request.wait()
        _unpack(message, pieces, needed)
    for request in requests:
        request.wait()


def _unpack(message: Tensor, pieces: Sequence[BoxTransfer], needed: Mapping[Key, Tensor]) -> None:
    """Put the elements of a message where they belong."""
    begin = 0
    for piece in pieces:
        room = _within(needed[piece.needed], piece.needed[1], piece.common)
        end = begin + room.numel() * room.itemsize
        room.copy_(message[begin:end].clone().view(room.dtype).view(room.shape))
        begin = end


def _within(values: Tensor, box: Slices, common: Slices) -> Tensor:
    """The elements of `common`: a view of `values`, which are those of `box`."""
    begins = tuple(inner - outer for inner, outer in zip(common.begins, box.begins, strict=True))
    return Slices(begins, common.sizes).within(values)


def as_bytes(values: Tensor) -> Tensor:
    """The same memory, flat, as bytes."""
    return values.contiguous().view(-1).view(torch.uint8)
