"""A mesh: ranks in a box whose axes have names. What is said along an axis is said among the ranks of its groups.

    mesh = Mesh({"pipe": 2, "data": 2, "tensor": 2})
    mesh.coordinates(5)            {"pipe": 1, "data": 0, "tensor": 1}
    mesh.groups("tensor")          [(0, 1), (2, 3), (4, 5), (6, 7)]
    mesh.groups("pipe", "data")    [(0, 2, 4, 6), (1, 3, 5, 7)]

The order of the axes decides who are neighbours: ranks of the last axis are, and share a node if it has room for them.
So the axis that sends most comes last. Megatron-LM's default order is the same, read from the inside out:
"tp-cp-ep-dp-pp".

The mesh of a plan has the axes `AXES`. The same ranks can be seen in another way, with other axes in the place of some:

    mesh.view({"edp": 2, "ep": 2}, of=("dp_shard",))    experts are split where everything else is replicated

A mesh is data, and sends nothing: `reference.groups` makes process groups of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

from reference.errors import BadInput

DATA = ("dp_replicate", "dp_shard")  # ranks that read different windows; with HSDP, two axes
GRADIENTS = (*DATA, "cp")  # ranks that read different tokens: their gradients are summed, and their losses
TENSOR = ("tp_head", "tp_copy")  # ranks that share each matrix; along the second they have the same key-value heads
EXPERT_GRADIENTS = ("dp_replicate", "edp")  # of the view that experts have: ranks that hold the same ones
AXES = ("pp", *GRADIENTS, *TENSOR)
"""Of a plan, the outermost first: pipeline stages, replicas, shards, slices of the context, blocks of matrices."""


@dataclass(frozen=True, init=False, repr=False)
class Mesh:
    """Ranks 0, 1, ... in a box, row-major: along the last axis they are neighbours.

    Args:
        axes: how many ranks along each, by name, the outermost first. An axis of one rank is as good as none.

    Raises:
        BadInput: if there is no axis, or one without a rank.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def __init__(self, axes: Mapping[str, int]) -> None:
        if not axes:
            raise BadInput("a mesh has at least one axis, such as data")
        for name, size in axes.items():
            if size < 1:
                raise BadInput(f"an axis has at least 1 rank, and {name} has {size}")
        object.__setattr__(self, "names", tuple(axes))
        object.__setattr__(self, "sizes", tuple(axes.values()))

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{name}={size}' for name, size in zip(self.names, self.sizes, strict=True))})"

    @property
    def ranks(self) -> range:
        """All of them."""
        return range(prod(self.sizes))

    def size(self, *axes: str) -> int:
        """How many ranks a group along these axes has."""
        return prod(self.sizes[axis] for axis in self._numbers(axes))

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank stands on each axis."""
        if rank not in self.ranks:
            raise BadInput(f"{self} has ranks 0 to {self.ranks[-1]}, and no rank {rank}")
        found: list[int] = []
        for size in reversed(self.sizes):
            rank, here = divmod(rank, size)
            found.append(here)
        return dict(zip(self.names, reversed(found), strict=True))

    def rank(self, **coordinates: int) -> int:
        """The rank at these coordinates.

        Args:
            coordinates: on every axis, by name.
        """
        if missing := [name for name in self.names if name not in coordinates]:
            raise BadInput(f"where on {', '.join(missing)}? A rank of {self} has a place on every axis")
        for number, (name, place) in zip(self._numbers(coordinates), coordinates.items(), strict=True):
            if not 0 <= place < self.sizes[number]:
                raise BadInput(f"{name} has places 0 to {self.sizes[number] - 1}, and no place {place}")
        rank = 0
        for name, size in zip(self.names, self.sizes, strict=True):
            rank = rank * size + coordinates[name]
        return rank

    def groups(self, *axes: str) -> list[tuple[int, ...]]:
        """Ranks that differ along these axes alone, group by group: as many groups as the other axes leave places.

        Returns:
            Groups in order of their first ranks, and the ranks of each in order, however the axes are named.
        """
        self._numbers(axes)  # see that they are axes
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in self.ranks:
            elsewhere = tuple(place for name, place in self.coordinates(rank).items() if name not in axes)
            groups.setdefault(elsewhere, []).append(rank)
        return [tuple(group) for group in groups.values()]

    def group_of(self, rank: int, *axes: str) -> tuple[int, ...]:
        """The group along these axes that a rank belongs to."""
        numbers, here = self._numbers(axes), self.coordinates(rank)
        places = [range(size) if axis in numbers else (here[self.names[axis]],) for axis, size in enumerate(self.sizes)]
        return tuple(self.rank(**dict(zip(self.names, place, strict=True))) for place in product(*places))

    def view(self, axes: Mapping[str, int], of: tuple[str, ...]) -> "Mesh":
        """The same ranks, seen with other axes in the place of some that lie side by side.

        Args:
            axes: how many ranks along each new axis, the outermost first.
            of: the axes in whose place they stand, as many ranks together.

        Raises:
            BadInput: if the numbers of ranks differ, or `of` are not neighbours.
        """
        numbers = self._numbers(of)
        if list(numbers) != list(range(numbers[0], numbers[0] + len(numbers))):
            raise BadInput(f"{', '.join(of)} do not lie side by side in {self}")
        if prod(axes.values()) != self.size(*of):
            raise BadInput(f"{' x '.join(of)} has {self.size(*of)} ranks, and {' x '.join(axes)} {prod(axes.values())}")
        sizes = dict(zip(self.names, self.sizes, strict=True))
        before, after = list(sizes.items())[: numbers[0]], list(sizes.items())[numbers[-1] + 1 :]
        return Mesh(dict([*before, *axes.items(), *after]))

    def apart(self, one: int, other: int) -> tuple[str, ...]:
        """The axes along which two ranks stand apart; a message between them goes along these."""
        here, there = self.coordinates(one), self.coordinates(other)
        return tuple(name for name in self.names if here[name] != there[name])

    def _numbers(self, axes: Mapping[str, int] | tuple[str, ...]) -> tuple[int, ...]:
        """Which axes these are, counted from the outermost."""
        if len(set(axes)) < len(axes):
            raise BadInput(f"an axis is named once, not as in {', '.join(axes)}")
        for name in axes:
            if name not in self.names:
                raise BadInput(f"{self} has no axis {name!r}: its axes are {', '.join(self.names)}")
        return tuple(self.names.index(name) for name in axes)
