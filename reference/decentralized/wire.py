"""The mean over islands of what they have changed, said in few bits.

An all-reduce in few bits would round sums at each hop. Here each island owns a chunk: it gets all others' values of it,
rounded once, adds them up in full precision, and sends the mean, rounded once more. All take what was sent, the owner
too: so islands stay equal.

| numbers | bytes an element                   | who takes it                                     |
|---------|------------------------------------|--------------------------------------------------|
| full    | those of the masters               | DiLoCo (Douillard et al. 2023)                   |
| bf16    | 2                                  | OpenDiLoCo (Jaghouar et al. 2024), in fp16       |
| int8    | 1, and a scale for each 256        | INTELLECT-1 (Jaghouar et al. 2024b)              |
| int4    | 1/2, and a scale for each 256      | Streaming DiLoCo (Douillard et al. 2025), in E3M0 |

A rank sends 2 (n-1)/n of that for each element, whatever the numbers.
"""

from collections.abc import Generator

import torch
from torch import Tensor

from reference.choices import Wire
from reference.collectives.communicator import Communicator, Finish
from reference.compression.formats import FORMATS

BLOCK = 256  # elements with a scale of their own, in both formats of `reference.compression.formats`

Stages = Generator[Finish, None, Tensor]
"""A mean that is under way: it yields what to wait for before it continues, and returns the mean."""


def mean_in_stages(x: Tensor, across: Communicator, wire: Wire) -> Stages:
    """The mean over islands; `x`, flat, means nothing afterwards. Between stages a caller may do something else."""
    n = across.size()
    if n == 1:
        return x if wire is Wire.FULL else decode(encode(x, wire), wire, x.dtype)[: x.numel()]
    if wire is Wire.FULL:
        finish = across.start_all_reduce(x)
        yield finish
        return x / n
    size = padded(x.numel(), n)
    chunks = torch.nn.functional.pad(x, (0, n * size - x.numel())).view(n, size)
    said = torch.stack([encode(chunk, wire) for chunk in chunks])
    heard = torch.empty_like(said)
    yield across.start_all_to_all_uneven(said, heard, [1] * n, [1] * n)
    mean = torch.stack([decode(row, wire, x.dtype) for row in heard]).sum(0) / n
    own = encode(mean, wire)
    whole = torch.empty_like(said)
    yield across.start_all_gather(own, whole)
    return torch.cat([decode(row, wire, x.dtype) for row in whole.view(n, -1)])[: x.numel()]


def mean(x: Tensor, across: Communicator, wire: Wire = Wire.FULL) -> Tensor:
    """The same, at once."""
    return at_once(mean_in_stages(x, across, wire))


def at_once(stages: Stages) -> Tensor:
    """What comes of stages: wait for each."""
    while True:
        try:
            next(stages)()
        except StopIteration as end:
            return end.value


def padded(numel: int, n: int) -> int:
    """Elements of each of n chunks, whole blocks."""
    return -(-numel // (n * BLOCK)) * BLOCK


def wire_bytes(numel: int, n: int, wire: Wire, itemsize: int = 4) -> float:
    """What a rank sends for the mean of so many elements over n islands."""
    if wire is Wire.FULL:
        return 2 * (n - 1) / n * numel * itemsize
    size = padded(numel, n)
    return 2 * (n - 1) * (2 * size if wire is Wire.BF16 else FORMATS[wire].nbytes(size))


def encode(x: Tensor, wire: Wire) -> Tensor:
    """Bytes of `x`, which is padded to whole blocks."""
    x = torch.nn.functional.pad(x, (0, -x.numel() % BLOCK))
    match wire:
        case Wire.FULL:
            return x.contiguous().view(torch.uint8)
        case Wire.BF16:
            return x.to(torch.bfloat16).view(torch.uint8)
    return FORMATS[wire].encode(x)


def decode(said: Tensor, wire: Wire, dtype: torch.dtype) -> Tensor:
    """What `encode` said, with the padding."""
    match wire:
        case Wire.FULL:
            return said.view(dtype)
        case Wire.BF16:
            return said.view(torch.bfloat16).to(dtype)
    blocks = said.numel() // FORMATS[wire].nbytes(BLOCK)
    return FORMATS[wire].decode(said, blocks * BLOCK).to(dtype)
