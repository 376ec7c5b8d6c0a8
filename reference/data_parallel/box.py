"""Where a rank's elements are in a parameter, whatever cuts it has been through.

Tensor parallelism cuts a matrix into blocks of rows or of columns, and ZeRO cuts what it finds there, flattened, at
arbitrary places. So what a rank holds of a matrix is a few boxes: the end of one row, whole rows, the start of one.

    a block of 3 rows and 4 columns, elements 2 to 9:     . . a a
                                                          b b b b
                                                          c . . .

Parameters of other dims count as matrices: the first dim is the rows, the others together are the columns.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Box:
    """Rows [row, row + rows) and columns [column, column + columns) of a matrix."""

    row: int
    column: int
    rows: int
    columns: int

    @classmethod
    def of(cls, shape: torch.Size) -> "Box":
        """All of a parameter of this shape."""
        rows = shape[0] if shape else 1
        return cls(0, 0, rows, shape.numel() // rows if rows else 0)

    @property
    def numel(self) -> int:
        """How many elements."""
        return self.rows * self.columns

    def within(self, x: Tensor) -> Tensor:
        """What a parameter `x` has here: a view [rows, columns]."""
        own = Box.of(x.shape)
        matrix = x.view(own.rows, own.columns)
        return matrix[self.row : self.row + self.rows, self.column : self.column + self.columns]


def cut(values: Tensor, begin: int, block: Box, whole: Box) -> list[tuple[Box, Tensor]]:
    """Boxes of `whole` that the elements of a block from `begin` on fill, with the values of each.

    Args:
        values: flat; elements [begin, begin + values.numel()) of the flattened block.
        begin: where they begin.
        block: of the whole matrix; rows behind its last are padding.
        whole: the matrix.

    Returns:
        At most three boxes, none of them empty, and views of `values` of their shapes.
    """
    found, at, width = [], 0, block.columns
    while at < values.numel():
        row, column = divmod(begin + at, width)
        left = values.numel() - at
        rows, columns = (left // width, width) if column == 0 and left >= width else (1, min(left, width - column))
        inside = min(rows, whole.rows - block.row - row)
        if inside > 0:
            box = Box(block.row + row, block.column + column, inside, columns)
            found.append((box, values[at : at + box.numel].view(inside, columns)))
        at += rows * columns
    return found
