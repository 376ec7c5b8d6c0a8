"""What a step of FSDP sends with fewer bits, and what the second copy of its parameters takes. Exact, scales included.

Of units of Ψ elements on n ranks, in N nodes of L: a gather or a reduction in 16 bits takes 2Ψ(n-1)/n bytes of each
rank. Let M be 2Ψ. What leaves a node, in a step of one micro-batch (Wang et al. 2023, "ZeRO++", table 1):

|             | gather for forward | gather for backward | gradients          | together |
|-------------|--------------------|---------------------|--------------------|----------|
| ZeRO-3      | M                  | M                   | M                  | 3 M      |
| qwZ, 8 bits | M/2                | M/2                 |                    |          |
| hpZ         |                    | 0: within the node  |                    |          |
| qgZ, 4 bits |                    |                     | M/4                |          |
| ZeRO++      | M/2                | 0                   | M/4                | 0.75 M   |

This is for large n and N: a gather around a ring brings a node (n-1)/n of M, and sums of N nodes (N-1)/N of it. Scales
add a hundredth.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from reference.zero.cost import padded

from .formats import Format


@dataclass(frozen=True)
class FewerBits:
    """How FSDP's parameters and gradients travel.

    Attributes:
        ranks: n, that share parameters.
        weights: format of gathers; None for elements of `weight_size` bytes.
        gradients: format of reductions; None for elements of `gradient_size` bytes.
        secondary: s, ranks of a node that keep a second copy of the parameters together; 1 for none.
        node: L, ranks of a node that sum gradients before they leave it; 1 for one level.
        inside: format of gradients within a node.
        weight_size, gradient_size: bytes of an element that is not quantised.
    """

    ranks: int
    weights: Format | None = None
    gradients: Format | None = None
    secondary: int = 1
    node: int = 1
    inside: Format | None = None
    weight_size: int = 2
    gradient_size: int = 2

    def sent(self, units: Sequence[int], micro_batches: int = 1) -> int:
        """Bytes that a rank sends in a step.

        Args:
            units: elements of each unit.
            micro_batches: K. Each gathers twice; with a second copy, all gathers but the first are within a node.
        """
        gathers = 2 * micro_batches
        shards = [padded(unit, self.ranks) // self.ranks for unit in units]
        far = sum((self.ranks - 1) * _bytes(shard, self.weights, self.weight_size) for shard in shards)
        gradients = micro_batches * sum(map(self._reduced, shards))
        if self.secondary == 1:
            return gathers * far + gradients
        near = sum((self.secondary - 1) * self._second(shard) * self.weight_size for shard in shards)
        return far + (gathers - 1) * near + gradients

    def second_copy(self, units: Sequence[int]) -> int:
        """Bytes of the second copy that a rank keeps from its first gather to the end of the step (hpZ)."""
        shards = (padded(unit, self.ranks) // self.ranks for unit in units)
        return 0 if self.secondary == 1 else sum(self._second(shard) * self.weight_size for shard in shards)

    def _second(self, shard: int) -> int:
        return shard * self.ranks // self.secondary

    def _reduced(self, shard: int) -> int:
        """Bytes of a unit's gradients that a rank sends."""
        nodes = self.ranks // self.node
        if self.node == 1:
            return (self.ranks - 1) * _bytes(shard, self.gradients, self.gradient_size)
        inside = (self.node - 1) * nodes * _bytes(shard, self.inside, self.gradient_size)
        return inside + (nodes - 1) * _bytes(shard, self.gradients, self.gradient_size)


def _bytes(numel: int, form: Format | None, size: int) -> int:
    return numel * size if form is None else form.nbytes(numel)
