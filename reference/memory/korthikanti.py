"""Activations of the classic transformer layer: s b h (34 + 5 a s / h) bytes, term by term.

Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4 and table 2. The
layer is that of GPT-2 and GPT-3: LayerNorm, a head of keys for each of queries, GELU, dropout; its attention writes
its s x s matrices into memory. Activations have 2 bytes, masks of dropout 1.

| form                              | bytes of a layer              |
|-----------------------------------|-------------------------------|
| everything kept                   | s b h (34 + 5 a s / h)        |
| tensor parallel                   | s b h (10 + 24/t + 5 a s /ht) |
| tensor and sequence parallel      | s b h (34/t + 5 a s / ht)     |
| tensor parallel, selective        | s b h (10 + 24/t)             |
| tensor, sequence, selective       | s b h 34/t                    |
| full recomputation                | s b h 2                       |

All of them are sums over one table of terms: which layouts split a term, and which make it again in backward.

Letters: s sequence, b batch, h width, a heads, t tensor-parallel ranks.
"""

from collections.abc import Callable
from dataclasses import astuple, dataclass
from enum import Enum
from fractions import Fraction

from reference.errors import BadInput


class LayerSplit(Enum):
    """What splits a tensor among t ranks."""

    TENSOR_PARALLEL = "it lies inside attention or the MLP: by heads or by columns"
    SEQUENCE_PARALLEL = "it lies between them: by tokens, if sequence parallelism is on, else every rank has all of it"


@dataclass(frozen=True)
class Term:
    """A tensor that backward needs."""

    tensor: str
    per_token: int  # bytes for each of the s b h numbers that go through the layer
    per_pair: int  # bytes for each of the a s^2 b pairs of tokens that see each other
    split: LayerSplit


_INSIDE, _BETWEEN = LayerSplit.TENSOR_PARALLEL, LayerSplit.SEQUENCE_PARALLEL

TERMS: tuple[Term, ...] = (
    Term("input of the first LayerNorm", 2, 0, _BETWEEN),
    Term("input of the query, key and value projections", 2, 0, _BETWEEN),
    Term("queries and keys", 4, 0, _INSIDE),
    Term("output of softmax", 0, 2, _INSIDE),
    Term("mask of softmax's dropout", 0, 1, _INSIDE),
    Term("output of softmax's dropout", 0, 2, _INSIDE),
    Term("values", 2, 0, _INSIDE),
    Term("input of the output projection", 2, 0, _INSIDE),
    Term("mask of attention's dropout", 1, 0, _BETWEEN),
    Term("input of the second LayerNorm", 2, 0, _BETWEEN),
    Term("input of the MLP", 2, 0, _BETWEEN),
    Term("input of GELU", 8, 0, _INSIDE),
    Term("output of GELU", 8, 0, _INSIDE),
    Term("mask of the MLP's dropout", 1, 0, _BETWEEN),
)


@dataclass(frozen=True)
class LayerShape:
    """A layer, and among how many ranks it is split.

    Each form is a method: bytes on one rank, exact; a fraction where the ranks do not divide it.

    Raises:
        BadInput: if a number is below 1.
    """

    sequence: int  # s
    batch: int  # b
    width: int  # h
    heads: int  # a
    tensor_parallel: int = 1  # t

    def __post_init__(self) -> None:
        if min(astuple(self)) < 1:
            raise BadInput(f"s, b, h, a and t of a layer are at least 1, not {astuple(self)}")

    def everything(self) -> Fraction:
        """On one rank of one: no parallelism, nothing made again."""
        return self._sum(TERMS, lambda term: 1)

    def tensor(self) -> Fraction:
        """Split by tensor parallelism alone."""
        return self._sum(TERMS, self._inside)

    def tensor_sequence(self) -> Fraction:
        """Split by tensor and sequence parallelism: everything is."""
        return self._sum(TERMS, lambda term: self.tensor_parallel)

    def tensor_selective(self) -> Fraction:
        """Tensor parallelism, and the pairs of tokens are made again in backward."""
        return self._sum([term for term in TERMS if not term.per_pair], self._inside)

    def tensor_sequence_selective(self) -> Fraction:
        """Tensor and sequence parallelism, and the pairs of tokens are made again in backward."""
        return self._sum([term for term in TERMS if not term.per_pair], lambda term: self.tensor_parallel)

    def full(self) -> Fraction:
        """The layer's input alone: everything is made again."""
        return Fraction(2 * self.sequence * self.batch * self.width)

    def _inside(self, term: Term) -> int:
        return self.tensor_parallel if term.split is LayerSplit.TENSOR_PARALLEL else 1

    def _sum(self, terms: list[Term] | tuple[Term, ...], ranks: Callable[[Term], int]) -> Fraction:
        tokens = self.sequence * self.batch * self.width
        pairs = self.heads * self.sequence**2 * self.batch
        each = (Fraction(term.per_token * tokens + term.per_pair * pairs, ranks(term)) for term in terms)
        return sum(each, Fraction())


def layers_in_flight(layers: int, stages: int, chunks: int = 1) -> Fraction:
    """How many layers' activations the first stage of a pipeline holds with 1F1B (equation 5 and section 4.2.3).

    L: `stages` micro-batches are under way, and L / stages layers are its own. Interleaving v chunks on each stage
    makes it L (1 + (p-1)/(p v)).
    """
    if chunks == 1:
        return Fraction(layers)
    return layers * (1 + Fraction(stages - 1, stages * chunks))
