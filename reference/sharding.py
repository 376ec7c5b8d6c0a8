"""What each axis of the mesh does to a parameter: one spec, from which everything else follows.

    Spec(split={"tp_head": 0, "tp_copy": 0})         a query matrix: each rank holds some of its rows
    Spec(split={"tp_head": 0}, partial={"tp_copy"})  keys that several ranks share: each finds a part of the gradient
    Spec()                                           a norm: replicas, whose gradients are equal
    Spec(partial={"tp_head", "tp_copy"})             a norm under sequence parallelism: each rank saw other tokens
    Spec(split={"ep": 0})                            experts: each rank holds some of them
    Spec(split={"pp": None})                         a stage of a pipeline: the other ranks hold other parameters

| question                                     | answer                                                              |
|----------------------------------------------|---------------------------------------------------------------------|
| what does a rank hold?                       | the block at its coordinates on the axes of `split`: `block_of`     |
| over which ranks is its gradient summed?     | those along the batch's axes and `partial`: `gradient_axes`         |
| who counts it in a norm?                     | the first rank along each axis that does not split it: `is_primary` |
| where do its elements stand in a checkpoint? | where its block does in the whole: `pieces`                         |
| which ranks hold equal replicas?             | those that differ along axes that do not split it                   |
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod

import torch
from torch import Tensor

from reference.mesh import Mesh


@dataclass(frozen=True)
class Spec:
    """What the axes of a mesh do to one parameter. Along an axis that is not named here, ranks are replicas.

    Attributes:
        split: for each axis along which ranks hold different elements, the dim that is split; None where they hold
            different parameters, as the stages of a pipeline do. Several axes may split one dim, the outermost first.
        partial: axes along which each rank finds a part of the gradient, so that the parts are summed.
        padded: whether all blocks have one size, and the last ones stick out. Otherwise the last are smaller.
    """

    split: Mapping[str, int | None] = field(default_factory=dict)
    partial: frozenset[str] = frozenset()
    padded: bool = False


@dataclass(frozen=True)
class Slices:
    """A box of elements: in each dim of a parameter, where it begins and how many there are.

    A scalar counts as a vector of one element.
    """

    begins: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, shape: torch.Size) -> "Slices":
        """All of a parameter of this shape."""
        sizes = tuple(shape) or (1,)
        return cls((0,) * len(sizes), sizes)

    @property
    def numel(self) -> int:
        """How many elements."""
        return prod(self.sizes)

    def within(self, x: Tensor) -> Tensor:
        """What a parameter `x` has here: a view, smaller than the box where that sticks out."""
        box = tuple(slice(begin, begin + size) for begin, size in zip(self.begins, self.sizes, strict=True))
        return (x if x.dim() else x.view(1))[box]

    def cut(self, x: Tensor) -> Tensor:
        """A copy of what a parameter `x` has here, of the box's sizes; where that sticks out, there are zeros."""
        block, known = x.new_zeros(self.sizes), self.within(x)
        block[tuple(map(slice, known.shape))] = known
        return block


@dataclass(frozen=True)
class Placement:
    """A parameter on one rank of a mesh."""

    shape: torch.Size  # of the whole
    spec: Spec
    block: Slices  # what this rank holds of it

    @classmethod
    def of(cls, shape: torch.Size, spec: Spec, mesh: Mesh, rank: int) -> "Placement":
        """Of one rank of a mesh."""
        return cls(shape, spec, block_of(shape, spec, mesh, rank))

    @property
    def local(self) -> torch.Size:
        """The shape of this rank's block."""
        return torch.Size(self.block.sizes if self.shape else ())

    def cut(self, whole: Tensor) -> Tensor:
        """This rank's block of a whole parameter; padding is zero."""
        return self.block.cut(whole).view(self.local)


def block_of(shape: torch.Size, spec: Spec, mesh: Mesh, rank: int) -> Slices:
    """What a rank of a mesh holds of a parameter of this shape.

    Each dim is cut into as many pieces as there are ranks along the axes that split it, all but the last of one size.
    """
    at, begins, sizes = mesh.coordinates(rank), [], []
    for dim, length in enumerate(shape or (1,)):
        pieces, piece = 1, 0
        for axis in mesh.names:
            if axis in spec.split and spec.split[axis] == dim:
                pieces, piece = pieces * mesh.size(axis), piece * mesh.size(axis) + at[axis]
        size = -(-length // pieces)
        begin = piece * size if spec.padded else min(piece * size, length)
        begins.append(begin)
        sizes.append(size if spec.padded else min(size, length - begin))
    return Slices(tuple(begins), tuple(sizes))


def gradient_axes(spec: Spec, mesh: Mesh, batch: Collection[str]) -> tuple[str, ...]:
    """The axes along which ranks each have a part of a parameter's gradient, so that the parts are summed.

    Args:
        spec: of the parameter.
        mesh: whose axes the spec names; what it names besides is no axis of it.
        batch: axes along which ranks read different tokens.
    """
    of_batch = {axis for axis in batch if axis not in spec.split}
    return tuple(axis for axis in mesh.names if axis in of_batch or axis in spec.partial)


def pieces(values: Tensor, begin: int, block: Slices, shape: torch.Size) -> list[tuple[Slices, Tensor]]:
    """Boxes of a parameter that the elements of a block from `begin` on fill, with the values of each.

    ZeRO cuts what a rank holds, flattened, at arbitrary places. Of a block of a matrix that leaves the end of one row,
    whole rows, and the start of one:

        a block of 3 rows and 4 columns, elements 2 to 9:     . . a a
                                                              b b b b
                                                              c . . .

    Args:
        values: flat; elements [begin, begin + values.numel()) of the flattened block.
        begin: where they begin.
        block: of the parameter; what sticks out of it is padding.
        shape: of the whole parameter.

    Returns:
        At most 2d - 1 boxes of a tensor with d dims, none of them empty, and views of `values` of their sizes.
    """
    found = []
    boxes = list(_boxes(begin, begin + values.numel(), block.sizes))
    ends = accumulate((box.numel for box in boxes), initial=0)
    for box, end in zip(boxes, ends, strict=False):
        begins = tuple(start + offset for start, offset in zip(block.begins, box.begins, strict=True))
        known = (
            max(0, min(size, length - start))
            for start, size, length in zip(begins, box.sizes, shape or (1,), strict=True)
        )
        inside = Slices(begins, tuple(known))
        if inside.numel:
            whole = values[end : end + box.numel].view(box.sizes)
            found.append((inside, whole[tuple(map(slice, inside.sizes))]))
    return found


def _boxes(begin: int, end: int, sizes: tuple[int, ...]) -> Iterator[Slices]:
    """The boxes, in order, that elements [begin, end) of a row-major tensor of these sizes fill."""
    if begin >= end:
        return
    if not sizes:
        yield Slices((), ())
        return
    inner = prod(sizes[1:])
    if first := begin % inner:  # the end of a row
        row, until = begin // inner, min(end, begin - first + inner)
        for box in _boxes(first, first + until - begin, sizes[1:]):
            yield Slices((row, *box.begins), (1, *box.sizes))
        begin = until
    if rows := (end - begin) // inner:
        yield Slices((begin // inner, *(0 for _ in sizes[1:])), (rows, *sizes[1:]))
        begin += rows * inner
    if begin < end:  # the start of a row
        for box in _boxes(0, end - begin, sizes[1:]):
            yield Slices((begin // inner, *box.begins), (1, *box.sizes))
