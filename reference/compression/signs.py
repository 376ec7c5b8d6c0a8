"""One bit of each element: votes, and a sum in two stages with a memory on both ways.

A sum of bits is no bit, so a ring cannot add them up. Instead each rank is the server of a chunk:

    to servers     an all-to-all: rank i sends chunk j of its bits to rank j         (n - 1)/n N/8 bytes
    from servers   an all-gather: rank j sends the bits of its result to all         (n - 1)/n N/8 bytes

| class           | a server sends                                        | memory                                   |
|-----------------|--------------------------------------------------------|------------------------------------------|
| `MajorityVote`  | the sign that most ranks have                          | none                                     |
| `OneBit`        | signs and scale of the sum, and keeps what that lacks  | of each rank, and of each server's chunk |

Each chunk of each gradient has a scale of its own, a float32: 4 bytes beside N/8n of bits. Chunks are cut from each
gradient alone, to whole bytes, so no sum depends on what else travels in the same message. A bit is 1 for zero or more:
it cannot say zero, see `reference.compression.one_bit_adam` for what to do about it.

Bernstein et al. 2018, "signSGD" (arXiv:1802.04434) and 2019, "signSGD with majority vote" (arXiv:1810.05291); Tang et
al. 2021, "1-bit Adam" (arXiv:2102.02888); Karimireddy et al. 2019, "Error feedback fixes signSGD" (arXiv:1901.09847).
"""

from collections.abc import Sequence
from math import ceil

import torch
from torch import Tensor
from torch.nn.functional import pad

from reference.collectives.communicator import Communicator
from reference.data_parallel.remembered import Remembered

from .memory import Compressor, Known, WithResiduals

SCALE = torch.float32
BYTE = 8  # bits


def pack(x: Tensor) -> Tensor:
    """A bit for each element, 1 where it is 0 or more: [..., L] to bytes [..., L/8]."""
    bits = (x >= 0).unflatten(-1, (-1, BYTE)).to(torch.uint8)
    return (bits << torch.arange(BYTE, dtype=torch.uint8, device=x.device)).sum(-1, dtype=torch.uint8)


def unpack(packed: Tensor, dtype: torch.dtype) -> Tensor:
    """1 and -1 of bytes [..., L/8]: [..., L]."""
    bits = (packed.unsqueeze(-1) >> torch.arange(BYTE, dtype=torch.uint8, device=packed.device)) & 1
    return bits.flatten(-2).to(dtype).mul_(2).sub_(1)


def chunk_length(elements: int, n: int) -> int:
    """Elements of a chunk of a gradient: whole bytes of bits."""
    return BYTE * ceil(elements / (BYTE * n))


def cut(x: Tensor, n: int) -> Tensor:
    """A flat gradient [N] in chunks [n, L], with zeros at the end."""
    length = chunk_length(x.numel(), n)
    return pad(x, (0, n * length - x.numel())).view(n, length)


def sizes(elements: int, n: int, device: torch.device) -> Tensor:
    """How many elements each chunk has without what was added at the end: [n, 1]."""
    length = chunk_length(elements, n)
    return (elements - length * torch.arange(n, device=device)).clamp(0, length).unsqueeze(1)


class TwoStages(Compressor):
    """Bits to the servers of chunks, and bits back."""

    is_scaled: bool  # whether a scale goes with the bits of each chunk

    def exchange(self, messages: list[Tensor]) -> list[Tensor]:
        """Bring row j of each message [n, bytes] to rank j. Returns, for each, what all ranks have sent to this one."""
        whole = torch.cat(messages, dim=1)
        received = torch.empty_like(whole)
        self.communicator.all_to_all(whole, received)
        return [*received.split([message.shape[1] for message in messages], dim=1)]

    def publish(self, messages: list[Tensor]) -> list[Tensor]:
        """Send each message [bytes] to all. Returns, for each, those of all ranks: [n, bytes]."""
        whole = torch.cat(messages)
        received = whole.new_empty(self.communicator.size(), whole.numel())
        self.communicator.start_all_gather(whole, received.view(-1))()
        return [*received.split([message.numel() for message in messages], dim=1)]

    def sent(self, rank: int, n: int, itemsize: int) -> int:
        """Two ways, to n - 1 other ranks."""
        each = [chunk_length(known.shape.numel(), n) // BYTE for call in self.calls for known in call]
        return 2 * (n - 1) * sum(length + SCALE.itemsize * self.is_scaled for length in each)


class MajorityVote(TwoStages):
    """The sign of most ranks, 1 or -1, in each place: 1 where they are even."""

    is_scaled = False

    def prepare(self, call: Sequence[Known]) -> None:
        """Nothing is remembered."""

    def sum(self, number: int, gradients: Sequence[Tensor]) -> None:
        """Votes go to the server of their chunk, which counts them."""
        n = self.communicator.size()
        votes = self.exchange([pack(cut(gradient.flatten(), n)) for gradient in gradients])
        outcome = self.publish([pack(unpack(vote, torch.int32).sum(0)) for vote in votes])
        for gradient, packed in zip(gradients, outcome, strict=True):
            gradient.copy_(unpack(packed, gradient.dtype).view(-1)[: gradient.numel()].view_as(gradient))


class OneBit(TwoStages, WithResiduals):
    """Signs and a scale for each chunk, with error feedback of each rank and of each server."""

    is_scaled = True

    def __init__(self, communicator: Communicator) -> None:
        super().__init__(communicator)
        self.of_server: dict[str, Tensor] = {}  # what this rank did not send of its chunk of the sum: [1, L]

    def prepare(self, call: Sequence[Known]) -> None:
        super().prepare(call)
        for known in call:
            length = chunk_length(known.shape.numel(), self.communicator.size())
            self.of_server[known.name] = torch.zeros(1, length, dtype=known.dtype, device=known.device)

    def sum(self, number: int, gradients: Sequence[Tensor]) -> None:
        """To the servers, which add up what the bits mean, and back."""
        n, rank, call = self.communicator.size(), self.communicator.rank(), self.calls[number]
        messages = []
        for known, wanted in zip(call, self.wanted(number, gradients), strict=True):
            packed, sent = encode(cut(wanted, n), sizes(wanted.numel(), n, wanted.device))
            self.residuals[known.name].sub_(sent.view(-1)[: wanted.numel()])
            messages.append(packed)
        answers = []
        for known, received in zip(call, self.exchange(messages), strict=True):
            wanted = self.of_server[known.name].add_(decode(received, known.dtype).sum(0))
            size = sizes(known.shape.numel(), n, wanted.device)[rank : rank + 1]
            wanted[:, int(size) :] = 0  # bits that no element has
            packed, sent = encode(wanted, size)
            wanted.sub_(sent)
            answers.append(packed[0])
        for gradient, received in zip(gradients, self.publish(answers), strict=True):
            whole = decode(received, gradient.dtype).view(-1)
            gradient.copy_(whole[: gradient.numel()].view_as(gradient))

    def remembered(self) -> list[Remembered]:
        """Of each rank its residuals; and of each server its chunk, as if it were a shard."""
        found, n, rank = super().remembered(), self.communicator.size(), self.communicator.rank()
        for name, chunk in self.of_server.items():
            shape, begin = self._shapes[name], rank * chunk.numel()
            size = int(sizes(shape.numel(), n, chunk.device)[rank])
            found.append(Remembered.of("residual of server", name, chunk[0, :size], shape, min(begin, shape.numel())))
        return found


def encode(chunks: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """Signs and mean magnitude of each chunk [m, L], of which the first `size` elements [m, 1] count; others are zeros.

    Returns:
        Bytes [m, L/8 + 4], and what they mean [m, L].
    """
    scale = (chunks.abs().sum(1, keepdim=True) / size.clamp(min=1)).to(SCALE)
    packed = pack(chunks)
    message = torch.cat([packed, scale.view(torch.uint8)], dim=1)
    return message, unpack(packed, chunks.dtype).mul_(scale.to(chunks.dtype))


def decode(message: Tensor, dtype: torch.dtype) -> Tensor:
    """What bytes [m, L/8 + 4] mean: [m, L]."""
    packed, scale = message[:, : -SCALE.itemsize], message[:, -SCALE.itemsize :]
    return unpack(packed, dtype).mul_(scale.clone(memory_format=torch.contiguous_format).view(SCALE).to(dtype))
