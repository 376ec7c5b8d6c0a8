"""Secure aggregation: the sum of what clients say, and nothing that any of them has said.

Bonawitz et al. 2017, "Practical secure aggregation". Each pair of clients agrees on a key (Diffie & Hellman 1976), and
draws from it a mask of random numbers for each round. One adds it, the other one subtracts it:

    client 0 says  x0 + m01 + m02
    client 1 says  x1 - m01 + m12
    client 2 says  x2 - m02 - m12        the sum is x0 + x1 + x2; each part alone is noise

Masks cancel exactly because numbers are integers modulo 2^bits: no rounding, and a uniform mask makes every value
equally likely, which no noise of floating point does. So values are rounded to a fixed point before.

A client that is gone leaves masks of others without a partner. Those that are left then say, in a second message, what
their masks with it add up to, and that is taken off.

What is simpler here than there: a server that lies about who is gone learns what that client has said, since there is
no second mask of each client by itself; and one that is gone during the second message is one too many, since keys are
not divided among others (Shamir 1979). Both matter where the server may cheat.

| per round        | messages     | bytes, K numbers of each of c clients |
|------------------|--------------|---------------------------------------|
| no client gone   | 1 all-reduce | 8 (K + c)                             |
| else             | 2            | 8 (2K + c)                            |
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from reference.collectives.communicator import Communicator
from reference.errors import BadInput

WORDS = 64  # of 32 bits, in a public key


class MaskedSum:
    """Adds up what clients say, of whom each has hidden its own: in place of `federated.PlainSum`.

    Args:
        communicator: of all ranks.
        own: clients of this rank, by number.
        clients: of all ranks, from 0 on.
        bits: of a number that travels.
        fraction: how many of them are behind the point: a number is rounded by 2^-(fraction + 1) at most.
        device: where numbers are.

    Raises:
        BadInput: if there are not so many bits, or so few that sums would overflow.
    """

    def __init__(
        self,
        communicator: Communicator,
        own: Sequence[int],
        clients: int,
        bits: int = 48,
        fraction: int = 24,
        device: torch.device = torch.device("cpu"),  # noqa: B008  # immutable
    ) -> None:
        require_bits(bits, fraction, clients)
        self.device = device
        self.communicator, self.own, self.clients, self.rounds = communicator, [*own], clients, 0
        self.bits, self.fraction = bits, fraction
        keys = {client: secrets.randbits(256) for client in own}
        public = torch.zeros(clients, WORDS, dtype=torch.int64)
        for client, key in keys.items():
            public[client] = words(pow(2, key, prime()))
        public = public.to(device)
        communicator.all_reduce(public)
        self.seeds = {  # of this rank's clients, by pair: both know it, no other
            (client, other): hashlib.sha256(str(pow(number(public[other]), key, prime())).encode()).digest()
            for client, key in keys.items()
            for other in range(clients)
            if other != client
        }

    def sum(self, said: Mapping[int, Tensor], like: Tensor, taking_part: list[int]) -> Tensor:
        """As for `federated.Aggregate`. A client that takes part and says nothing is gone.

        Raises:
            BadInput: for numbers that are too large for the bits that there are.
        """
        masked = {client: self.hide(client, x, taking_part) for client, x in said.items()}
        here = torch.zeros(self.clients, dtype=torch.int64, device=self.device)
        here[[*masked]] = 1
        total = sum(masked.values(), torch.zeros(like.numel(), dtype=torch.int64, device=self.device))
        message = torch.cat([here, total])
        message = self.communicator.start_all_reduce(message)()
        here, total = message.split([self.clients, like.numel()])
        if gone := [client for client in taking_part if not here[client]]:
            left = [self.masks(client, gone, like.numel()) for client in masked]
            lonely = sum(left, torch.zeros_like(total))
            lonely = self.communicator.start_all_reduce(lonely)()
            total = total - lonely
        self.rounds += 1
        return self.decode(total).to(like.dtype).view_as(like)

    def hide(self, client: int, x: Tensor, taking_part: Sequence[int]) -> Tensor:
        """What a client says: [K] of int64, which looks like any other to all who do not know its keys."""
        others = [other for other in taking_part if other != client]
        return self.modulo(self.encode(x) + self.masks(client, others, x.numel()))

    def masks(self, client: int, others: Sequence[int], size: int) -> Tensor:
        """The sum of a client's masks with others: those with larger numbers are added, the rest subtracted."""
        total = torch.zeros(size, dtype=torch.int64, device=self.device)
        for other in others:
            mask = self.modulo(expand(self.seeds[client, other] + self.rounds.to_bytes(8), size).to(self.device))
            total = self.modulo(total + mask if other > client else total - mask)
        return total

    def encode(self, x: Tensor) -> Tensor:
        """Fixed point: [K] -> [K] of int64 in 0 to 2^bits - 1. Raises BadInput for what does not fit in a sum."""
        most = 2.0 ** (self.bits - 1 - self.fraction) / self.clients
        if not bool((x.abs() < most).all()):
            raise BadInput(f"a client says a number of {most:g} or more, or NaN: clip it, or give more bits")
        return self.modulo((x.double().flatten() * 2.0**self.fraction).round().long())

    def decode(self, x: Tensor) -> Tensor:
        """The numbers in float64 for which integers modulo 2^bits stand: the upper half are negative."""
        half = 1 << (self.bits - 1)
        return (self.modulo(x + half) - half).double() / 2.0**self.fraction

    def modulo(self, x: Tensor) -> Tensor:
        """Into 0 to 2^bits - 1."""
        return x & ((1 << self.bits) - 1)


def require_bits(bits: int, fraction: int, clients: int) -> None:
    """See that sums of so many clients fit. Raises BadInput."""
    if not 0 <= fraction < bits - clients.bit_length() or bits + clients.bit_length() > 63:
        raise BadInput(f"{bits} bits, {fraction} of them a fraction, do not hold sums of {clients} clients")


def masked_bytes(numel: int, clients: int, ranks: int) -> float:
    """What a rank sends for the sum of so many numbers, where no client is gone."""
    return 2 * (ranks - 1) / ranks * 8 * (numel + clients)


def expand(seed: bytes, size: int) -> Tensor:
    """A stream of random integers from a seed: [size] of int64. SHAKE-256, from which the seed is not found again."""
    return torch.from_numpy(np.frombuffer(hashlib.shake_256(seed).digest(8 * size), dtype=np.int64).copy())


@cache
def prime() -> int:
    """Of 2,048 bits, in whose group keys are agreed on: group 14 of RFC 3526, where 2 generates.

    2^2048 - 2^1984 - 1 + 2^64 (floor(2^1918 pi) + 124476): the digits of pi show that nothing is hidden in it.
    """
    return 2**2048 - 2**1984 - 1 + 2**64 * ((pi(2000) >> (2000 - 1918)) + 124476)


def pi(bits: int) -> int:
    """floor(2^bits pi) but for the last few bits, by Machin's formula: 16 atan(1/5) - 4 atan(1/239)."""

    def atan(inverse: int) -> int:
        term = total = (1 << bits) // inverse
        for odd in range(3, bits, 2):
            term //= -(inverse**2)
            total += term // odd
        return total

    return 16 * atan(5) - 4 * atan(239)


def words(key: int) -> Tensor:
    """A public key in pieces of 32 bits, which survive a sum with zeros: [WORDS] of int64."""
    return torch.tensor([(key >> (32 * place)) & 0xFFFFFFFF for place in range(WORDS)])


def number(key: Tensor) -> int:
    """The key that pieces stand for."""
    return sum(word << (32 * place) for place, word in enumerate(key.tolist()))
