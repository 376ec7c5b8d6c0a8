"""Which rank owns which matrix, and by what way its pieces get there and back.

What a rank holds of a matrix follows from where its parts are (`ParameterShard.pieces`), and from nothing else: under
ZeRO and FSDP the end of one row, whole rows and the start of one; under tensor parallelism a block, and under both a
part of a block; with replicas everything, and with experts or stages what no other rank has. So all ranks tell each
other once what they hold, each works out the same routes from that, and a form of parallelism needs no word here.

    boxes       of a matrix, several ranks may hold the same one, as replicas do: one of them sends it
    owner       among the ranks that are tied together by matrices that they share: `deal` by cost, and among equals
                the one that holds most of it
    there       pieces to owners: one all-to-all, with which a shard sends what it holds of others' matrices
    back        what owners have made, to all that hold a box of it: another one
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from reference.collectives.communicator import Communicator
from reference.data_parallel.gradient_sync import ParameterShard
from reference.sharding import Slices

from .agreement import together


class WholeMatrix(NamedTuple):
    """A whole matrix: a parameter, or an expert's of one that has a matrix for each."""

    name: str
    expert: int | None
    rows: int
    columns: int


class HeldPiece(NamedTuple):
    """A box of a matrix that a rank holds."""

    matrix: WholeMatrix
    box: Slices  # of the matrix

    @property
    def numel(self) -> int:
        """How many elements."""
        return self.box.numel


def is_matrix(name: str, shape: Sequence[int]) -> bool:
    """Whether a parameter is a matrix of a hidden layer, or one for each expert.

    Tables of tokens and positions, the head, norms and biases are none; nor is what has one row or one column: there is
    one singular value in it, and to make that 1 is to normalise a vector.
    """
    return ".blocks." in f".{name}" and len(shape) in (2, 3) and min(shape[-2:]) > 1


def pieces_of(part: ParameterShard, values: Tensor) -> list[tuple[HeldPiece, Tensor]]:
    """What a part has of each of its matrices, and views of `values`, as many as the part has elements."""
    found = []
    for box, view in part.pieces(values):
        experts = [None] if len(part.shape) == 2 else range(box.begins[0], box.begins[0] + box.sizes[0])
        for number, expert in enumerate(experts):
            matrix = WholeMatrix(part.name, expert, *part.shape[-2:])
            inside = Slices(box.begins[-2:], box.sizes[-2:])
            found.append((HeldPiece(matrix, inside), view if expert is None else view[number]))
    return found


@dataclass(frozen=True)
class MatrixRoutes:
    """The way of every piece, the same on every rank."""

    held: Sequence[Sequence[HeldPiece]]  # by rank: the pieces that it has, in its own order
    owner: Mapping[WholeMatrix, int]
    there: Sequence[Sequence[Sequence[int]]]  # [from][to]: numbers of pieces of `from` that `to` owns and needs
    back: Sequence[Sequence[Sequence[int]]]  # [from][to]: numbers of pieces of `to` that `from` owns

    @classmethod
    def of(cls, held: Sequence[Sequence[HeldPiece]], cost: Callable[[int, int], float]) -> "MatrixRoutes":
        """Of what each rank holds, with the cost of a matrix of so many rows and columns."""
        n = len(held)
        holders: dict[HeldPiece, list[int]] = {}
        for rank, pieces in enumerate(held):
            for piece in pieces:
                holders.setdefault(piece, []).append(rank)
        owner = owners_of(held, cost)
        copy_of = [next((holders[piece].index(rank) for piece in pieces), 0) for rank, pieces in enumerate(held)]
        there = [[[] for _ in range(n)] for _ in range(n)]
        back = [[[] for _ in range(n)] for _ in range(n)]
        for rank, pieces in enumerate(held):
            for number, piece in enumerate(pieces):
                its, having = owner[piece.matrix], holders[piece]
                source = its if its in having else having[copy_of[its] % len(having)]  # of the owner's own replica
                if source == rank:
                    there[rank][its].append(number)
                back[its][rank].append(number)
        return cls(held, owner, there, back)

    def elements(self, ways: Sequence[Sequence[Sequence[int]]], sender: int, target: int, there: bool) -> int:
        """How many elements travel from one rank to another."""
        of = sender if there else target
        return sum(self.held[of][number].numel for number in ways[sender][target])

    def load(self, cost: Callable[[int, int], float]) -> list[float]:
        """What each rank computes in a step."""
        found = [0.0] * len(self.held)
        for matrix, rank in self.owner.items():
            found[rank] += cost(matrix.rows, matrix.columns)
        return found


def owners_of(held: Sequence[Sequence[HeldPiece]], cost: Callable[[int, int], float]) -> dict[WholeMatrix, int]:
    """Deal matrices by cost, the most expensive first, among ranks that are tied together by those that they share."""
    having: dict[WholeMatrix, dict[int, int]] = {}  # elements of it, by rank
    for rank, pieces in enumerate(held):
        for piece in pieces:
            of = having.setdefault(piece.matrix, {})
            of[rank] = of.get(rank, 0) + piece.numel
    family = list(range(len(held)))  # by rank: the lowest rank that it is tied to
    for ranks in having.values():
        tied = {family[rank] for rank in ranks}
        family = [min(tied) if each in tied else each for each in family]
    load, owner = [0.0] * len(held), {}
    for matrix in sorted(
        having, key=lambda matrix: (-cost(matrix.rows, matrix.columns), matrix.name, matrix.expert or 0)
    ):
        of = having[matrix]
        tied = [rank for rank in range(len(held)) if family[rank] == family[min(of)]]
        owner[matrix] = min(tied, key=lambda rank: (load[rank], -of.get(rank, 0), rank))
        load[owner[matrix]] += cost(matrix.rows, matrix.columns)
    return owner


class MatrixExchange:
    """Lets owners compute on whole matrices what all ranks hold pieces of.

    Args:
        parts: of matrices, that this rank holds.
        communicator: of all ranks that hold any. All of them make one together, and call it together.
        cost: of a matrix of so many rows and columns.
    """

    def __init__(
        self, parts: Sequence[ParameterShard], communicator: Communicator, cost: Callable[[int, int], float]
    ) -> None:
        self.parts, self.communicator = parts, communicator
        shapes = [torch.empty(part.end - part.begin, device="meta") for part in parts]
        mine = [held for part, x in zip(parts, shapes, strict=True) for held, _ in pieces_of(part, x)]
        self.routes = MatrixRoutes.of(together(lambda: mine, communicator.group), cost)
        self.rank = communicator.rank()
        self.owned = [matrix for matrix, owner in self.routes.owner.items() if owner == self.rank]

    def __call__(self, values: Sequence[Tensor], compute: Callable[[WholeMatrix, Tensor], Tensor]) -> list[Tensor]:
        """What owners make of the matrices, cut as `values` are: one tensor for each part, of its shape.

        Args:
            values: one tensor for each part, with an element for each of its master's.
            compute: called on the owner with each of its matrices, whole.
        """
        like = values[0] if values else torch.empty(0)
        held = [piece for part, x in zip(self.parts, values, strict=True) for piece in pieces_of(part, x)]
        routes, n = self.routes, self.communicator.size()
        arrived = self._travel(routes.there, [view for _, view in held], like, there=True)
        whole = {matrix: like.new_zeros(matrix.rows, matrix.columns) for matrix in self.owned}
        for source in range(n):
            for number in routes.there[source][self.rank]:
                matrix, box = routes.held[source][number]
                box.within(whole[matrix]).copy_(arrived[source, number])
        for matrix in self.owned:
            whole[matrix] = compute(matrix, whole[matrix])
        made = {
            (target, number): routes.held[target][number].box.within(whole[routes.held[target][number].matrix])
            for target in range(n)
            for number in routes.back[self.rank][target]
        }
        returned = self._travel(routes.back, made, like, there=False)
        results = [torch.zeros_like(x) for x in values]  # padding stays zero
        places = [view for part, x in zip(self.parts, results, strict=True) for _, view in pieces_of(part, x)]
        for source in range(n):
            for number in routes.back[source][self.rank]:
                places[number].copy_(returned[source, number])
        return results

    def _travel(self, ways: Sequence, views: Sequence | Mapping, like: Tensor, there: bool) -> dict[tuple, Tensor]:
        """Send pieces along; what comes, by (source, number of the piece), in the forms of their boxes."""
        ranks, held = range(self.communicator.size()), self.routes.held
        sizes = [[self.routes.elements(ways, source, target, there) for target in ranks] for source in ranks]
        sent, received = sizes[self.rank], [sizes[source][self.rank] for source in ranks]
        outgoing = [views[n] if there else views[target, n] for target in ranks for n in ways[self.rank][target]]
        x = torch.cat([view.reshape(-1) for view in outgoing]) if outgoing else like.new_empty(0)
        if any(sizes[source][target] for source in ranks for target in ranks if source != target):
            out = like.new_empty(sum(received))
            self.communicator.all_to_all_uneven(x, out, sent, received)
        else:
            out = x  # replicas, or one rank: everything is where it is needed
        numbers = [(source, number) for source in ranks for number in ways[source][self.rank]]
        boxes = [held[source if there else self.rank][number].box for source, number in numbers]
        chunks = out.split([box.numel for box in boxes]) if boxes else ()
        return {key: chunk.view(box.sizes) for key, chunk, box in zip(numbers, chunks, boxes, strict=True)}
