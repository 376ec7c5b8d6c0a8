"""Replicas start alike, and whether they still are.

Data parallelism sums gradients and nothing else. Replicas that start from the same bits and take the same steps stay
the same, bit by bit; a rank that starts differently stays different, as far as gradients go, and no loss curve shows it
at once. So rank 0's state is sent to all before the first step: parameters *and* buffers, which no gradient ever
corrects.

| function         | messages                         | bytes sent by a rank       |
|------------------|----------------------------------|----------------------------|
| broadcast_state  | one for each dtype, or 256 MB    | what a broadcast of it all |
| find_drift       | one all-gather                   | 8 (n-1) for each tensor    |
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from reference.collectives.compat import all_gather_single
from reference.models.dropout import number

from .flat_layout import FlatLayout

MESSAGE_BYTES = 256 << 20  # a second copy of so much of the model, for a moment
BLOCK = 1 << 20  # elements that are hashed at a time

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def broadcast_state(module: nn.Module, group: ProcessGroup, root: int = 0) -> None:
    """Give every rank the root's parameters and buffers, in place: those of one dtype in one message.

    Buffers that no checkpoint keeps are state, too. Tied parameters are sent once.

    Args:
        module: with the same parameters and buffers, of the same shapes and dtypes, on every rank.
        group: n ranks.
        root: group rank of the one whose state counts.
    """
    for tensors in together([*module.parameters(), *module.buffers()]):
        layout = FlatLayout.of(tensors)
        flat = tensors[0].new_empty(layout.numel)
        views = layout.views(flat)
        if dist.get_rank(group) == root:
            _copy(tensors, views)
        dist.broadcast(flat.view(torch.uint8), group=group, group_src=root)  # gloo does not know every dtype
        _copy(views, tensors)


def together(tensors: Iterable[Tensor], most: int = MESSAGE_BYTES) -> Iterator[list[Tensor]]:
    """Tensors that travel together: of one dtype and device, in their order, at most so many bytes; a larger one alone.

    So the flat copy of a large model never exists whole.
    """
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for alike in kinds.values():
        message, size = [], 0
        for tensor in alike:
            if message and size + tensor.nbytes > most:
                yield message
                message, size = [], 0
            message.append(tensor)
            size += tensor.nbytes
        yield message


def replicas_agree(tensors: Mapping[str, Tensor], group: ProcessGroup) -> bool:
    """Whether every rank's `tensors` are the same, bit by bit; the same answer on every rank. See `find_drift`."""
    return find_drift(tensors, group) is None


def find_drift(tensors: Mapping[str, Tensor], group: ProcessGroup) -> tuple[str, list[int]] | None:
    """The first tensor that is not the same on every rank, bit by bit, and the ranks that are off.

    Tensors stay where they are: 64 bits of each are compared, in one message. That differing tensors agree in them has
    a chance of 2^-64. Tensors of other names, shapes or dtypes differ.

    Args:
        tensors: by name, in the same order on every rank, and as many.
        group: n ranks, which all call this.

    Returns:
        None if all agree; otherwise the name, and the group ranks that do not have the value that the largest number of
        ranks has; of several such values, that of the lowest rank. The same on every rank, where names are.
    """
    if not tensors:
        return None
    mine = torch.stack([fingerprint(tensor) ^ _hashed(name) for name, tensor in tensors.items()])
    everyones = mine.new_empty(dist.get_world_size(group) * len(mine))
    all_gather_single(everyones, mine, group=group)
    for name, *prints in zip(tensors, *everyones.view(-1, len(mine)).tolist(), strict=True):
        if len(set(prints)) > 1:
            usual, _ = Counter(prints).most_common(1)[0]
            return name, [rank for rank, each in enumerate(prints) if each != usual]
    return None


@torch.no_grad()
def fingerprint(x: Tensor) -> Tensor:
    """64 bits that depend on dtype and shape, and on every bit of `x` and its place: an int64 scalar, where `x` is.

    Bits, not values: 0.0 and -0.0 differ, a NaN is like itself. Each element begins a stream of random numbers, its
    place chooses one of them, and these are added up, which can be done in any order.
    """
    total = torch.tensor(_hashed(f"{x.dtype} {list(x.shape)}"), device=x.device)
    x = torch.view_as_real(x) if x.is_complex() else x
    bits = x.reshape(-1).view(_INTEGERS[x.element_size()])
    for first in range(0, len(bits), BLOCK):
        block = bits[first : first + BLOCK].to(torch.int64)
        total += number(block, torch.arange(first, first + len(block), device=x.device)).sum()
    return total


def _hashed(text: str) -> int:
    """An int64, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), signed=True)


def _copy(sources: Iterable[Tensor], targets: Iterable[Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)
