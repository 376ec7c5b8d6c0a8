"""What islands agree on: the mean of their changes, or one that stands liars, hides each island, or tells little of it.

Each way to meet that needs one mean of all changes asks here. So DiLoCo, local SGD, FedAdam and FedProx have all of
these, and SCAFFOLD has the secure sum: its controls are gradients, which would travel without noise.

| option        | islands agree on                              | a rank sends in a round, of N numbers of b bytes     |
|---------------|-----------------------------------------------|------------------------------------------------------|
|               | the mean                                      | 2 (n-1)/n · b N                                      |
| --aggregation | median, trimmed mean or Krum, by `robust`     | as much, chunks being padded; with Krum (n-1) · b N  |
| --secure-sum  | a mean of masked integers, by `secure_sum`    | 2 (n-1)/n · 8 (N + n), and keys once                 |
| --clip-change | a mean of clipped changes and noise, `privacy` | as without                                          |

Inside an island, ranks that hold different parts add up 8 bytes for the norm of a change, and 8 n² for Krum.

An island is one client. Its change of all parameters is clipped by one norm. Krum chooses one island's whole change, by
distances over all parameters; both count each parameter once, however many ranks of an island have it. What is hidden
of an island is all that it adds; of its text that is all there is with `--island-text own`, where no other reads it.

Noise is in what all islands take, and so in the trained model: an island is hidden from those that get the model. The
islands add up and draw the noise themselves, so among each other the noise hides nothing; `--secure-sum` leaves them
the sum alone, which of two islands tells each what the other one has said. Noise, and which islands take part, follow
from a secret of the first rank. All ranks know it, and a checkpoint has it, so a resumed run is the one that was not
interrupted; those who read a checkpoint could take the noise off. Masks leave no trace in a sum: islands that resume
agree on new keys, and no mask is used twice.
"""

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from reference.choices import Aggregation, Lie
from reference.collectives.communicator import Communicator
from reference.data_parallel.gradient_sync import ParameterShard
from reference.islands import Meets

from . import robust
from .clients import chosen, volunteers
from .privacy import Privacy, clipped, epsilon
from .secure_sum import MaskedSum, require_bits
from .wire import mean

Combine = Callable[[Tensor, Sequence[int], float], Tensor]
"""Of this island's change [N], the islands that count, and what a sum of theirs is divided by: what all agree on, [N].

The change means nothing afterwards.
"""
RULES: Mapping[Aggregation, robust.Robust] = MappingProxyType(
    {
        Aggregation.MEDIAN: robust.median,
        Aggregation.TRIMMED_MEAN: robust.trimmed_mean,
        Aggregation.KRUM: robust.krum,
    }
)
ATTACKS: Mapping[Lie, robust.Attack] = MappingProxyType({Lie.SIGN_FLIP: robust.sign_flip, Lie.LARGE: robust.large})
BITS, FRACTION = 56, 32  # of masked numbers: rounded by 2^-33 at most, and below 2^23 / n
DELTA = 1e-5  # of what is said about privacy


class WholeChange:
    """The change of an island, of which this rank holds a part.

    Args:
        parts: of this rank: their elements are those of its change, in this order.
        inside: groups of ranks of this island along which they hold different parts.
        across: ranks at this one's place, one in each island.
    """

    def __init__(self, parts: Sequence[ParameterShard], inside: Sequence[Communicator], across: Communicator) -> None:
        self.parts, self.inside, self.across = parts, inside, across

    def norm(self, change: Tensor) -> float:
        """Of all of it, from this rank's [N]: the same number on all ranks of the island."""
        squares = torch.zeros((), dtype=torch.float64, device=change.device)
        for piece in self.primary(change):
            squares += torch.linalg.vector_norm(piece, dtype=torch.float64) ** 2
        return float(self.summed(squares).sqrt())

    def squared_distances(self, said: Tensor) -> Tensor:
        """Between changes of all islands, from this rank's parts [n, N]: [n, n] in float64, equal on all ranks."""
        apart = torch.zeros(len(said), len(said), dtype=torch.float64, device=said.device)
        for piece in self.primary(said):
            apart += robust.squared_distances(piece)
        self.summed(apart)
        if self.inside:
            self.across.broadcast(apart, 0)  # each island has added up for itself: let all choose by the same digits
        return apart

    def primary(self, said: Tensor) -> list[Tensor]:
        """The pieces of [..., N] that no other rank of the island counts, too: views."""
        pieces = said.split([part.master.numel() for part in self.parts], dim=-1)
        return [piece for piece, part in zip(pieces, self.parts, strict=True) if part.is_primary]

    def summed(self, x: Tensor) -> Tensor:
        """The sum over the ranks of the island, in place."""
        for communicator in self.inside:
            communicator.all_reduce(x)
        return x


def plain_mean(meets: Meets, across: Communicator) -> Combine:
    """The sum, in the numbers of `wire`. An island that does not count has trained in vain, and sends zeros."""

    def combine(change: Tensor, counted: Sequence[int], divisor: float) -> Tensor:
        if across.rank() in counted:
            change.mul_(across.size() / divisor)
        else:
            change.zero_()
        return mean(change, across, meets.wire)

    return combine


def masked_mean(across: Communicator, device: torch.device) -> Combine:
    """The sum of what islands say under masks.

    Each number is rounded by 2^-33 at most, and so is the mean. A clipped change may be longer by 2^-33 √N for that.
    """
    island = across.rank()
    masked = MaskedSum(across, [island], across.size(), BITS, FRACTION, device)

    def combine(change: Tensor, counted: Sequence[int], divisor: float) -> Tensor:
        said = {island: change} if island in counted else {}
        return masked.sum(said, change, [*counted]) / divisor

    return combine


def robust_rule(meets: Meets, across: Communicator, whole: WholeChange) -> Combine:
    """What a rule makes of the changes of those that count."""
    rule, distances = RULES[meets.aggregation], whole.squared_distances
    return lambda change, counted, divisor: robust.combine(rule, change, meets.liars, across, counted, distances)


def lying(honest: Combine, attack: robust.Attack) -> Combine:
    """The same where this island lies: it knows no other's change, and makes something of its own."""
    return lambda change, counted, divisor: honest(attack(change[None], 0), counted, divisor)


class Aggregator:
    """What a meeting asks for what all islands agree on.

    Args:
        meets: how.
        across: ranks at this one's place, one in each island.
        seed: of which islands count: the same on all of them.
        combine: what they say.
    """

    def __init__(self, meets: Meets, across: Communicator, seed: int, combine: Combine) -> None:
        self.meets, self.across, self.seed, self.combine = meets, across, seed, combine

    def __call__(self, change: Tensor, taken: int) -> Tensor:
        """Of this island's change [N], in the round that ends after so many steps, which means nothing afterwards.

        Others than those that count begin the next round at the new anchor, too. The state of their inner optimizer,
        which no other sees, has moved.
        """
        counted = self.taking_part(taken)
        return self.combine(change, counted, len(counted))

    def taking_part(self, taken: int) -> list[int]:
        """The islands that count in the round that ends after so many steps: the same answer on all."""
        n = self.across.size()
        return chosen(n, per_round(self.meets, n), taken, self.seed)

    def told(self) -> list[str]:
        """What a person should know at the end."""
        return []

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue as another one was."""


class PrivateAggregator(Aggregator):
    """The same with clipped changes, and noise in their sum: DP-FedAvg (McMahan et al. 2018, `privacy`).

    Args:
        meets, across, seed, combine: as for `Aggregator`; the seed draws nothing.
        whole: of whose norm a change is clipped.
        everyone: all ranks of all islands.
    """

    def __init__(
        self,
        meets: Meets,
        across: Communicator,
        seed: int,
        combine: Combine,
        whole: WholeChange,
        everyone: Communicator,
    ) -> None:
        super().__init__(meets, across, seed, combine)
        self.privacy, self.whole, self.rounds = Privacy(meets.clip_change, meets.noise_multiplier), whole, 0
        secret = torch.tensor([secrets.randbits(62) for _ in range(2)], device=whole.parts[0].master.device)
        everyone.broadcast(secret, 0)
        self.secret = secret.tolist()

    def __call__(self, change: Tensor, taken: int) -> Tensor:
        change = clipped(change, self.privacy.clip, self.whole.norm(change))
        divisor = self.meets.taking_part * self.across.size()  # and not how many came, which would tell whether one did
        agreed = self.combine(change, self.taking_part(taken), divisor)
        self.rounds += 1
        noise = torch.cat([self.noise(part, taken) for part in self.whole.parts])
        return agreed + noise.to(agreed) / divisor

    def taking_part(self, taken: int) -> list[int]:
        return volunteers(self.across.size(), self.meets.taking_part, taken, self.drawn("islands", taken) >> 24)

    def noise(self, part: ParameterShard, taken: int) -> Tensor:
        """For this rank's part of a parameter, of which each element has its own, however the island is laid out."""
        generator = torch.Generator().manual_seed(self.drawn(part.name, taken))
        whole = torch.randn(part.shape, generator=generator, dtype=torch.float64)
        own = torch.zeros(part.master.numel(), dtype=torch.float64)
        for box, values in part.pieces(own):
            values.copy_(box.within(whole))
        return own * (self.privacy.noise * self.privacy.clip)

    def drawn(self, what: str, taken: int) -> int:
        """A number of 63 bits for something in a round, which tells nothing without the secret."""
        digest = hashlib.sha256(f"{self.secret} {taken} {what}".encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def told(self) -> list[str]:
        spent = epsilon(self.meets.taking_part, self.privacy.noise, self.rounds, DELTA)
        rounds = f"{self.rounds} round{'s' * (self.rounds != 1)}"
        return [f"differential privacy of each island after {rounds}: epsilon {spent:.3g}, delta {DELTA:g}"]

    def state_dict(self) -> dict[str, Any]:
        return {"secret": self.secret, "private rounds": self.rounds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.secret, self.rounds = state["secret"], state["private rounds"]


def aggregator_of(
    meets: Meets,
    parts: Sequence[ParameterShard],
    across: Communicator,
    seed: int,
    everyone: Communicator,
    inside: Sequence[Communicator],
) -> Aggregator:
    """What a run has chosen.

    Args:
        meets: how islands meet.
        parts, across, inside: as for `WholeChange`.
        seed, everyone: as for `Aggregator` and `PrivateAggregator`.
    """
    whole = WholeChange(parts, inside, across)
    if meets.aggregation in RULES:
        combine = robust_rule(meets, across, whole)
    elif meets.secure_sum:
        combine = masked_mean(across, parts[0].master.device)
    else:
        combine = plain_mean(meets, across)
    if lie := meets.lies.get(across.rank()):
        combine = lying(combine, ATTACKS[lie])
    if meets.clip_change is not None:
        return PrivateAggregator(meets, across, seed, combine, whole, everyone)
    return Aggregator(meets, across, seed, combine)


def per_round(meets: Meets, islands: int) -> int:
    """How many of so many islands count in a round: one at least."""
    return max(1, round(meets.taking_part * islands))


def require_agreement(meets: Meets, islands: int) -> None:
    """See whether so many islands can agree so. Raises BadInput."""
    if meets.aggregation in RULES:
        robust.require_honest(RULES[meets.aggregation], per_round(meets, islands), meets.liars, "islands")
    if meets.secure_sum:
        require_bits(BITS, FRACTION, islands)
