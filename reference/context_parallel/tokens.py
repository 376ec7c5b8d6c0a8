"""Which tokens a rank holds, and which of them look at which: as arithmetic, and never as a matrix of S x S.

A rank's tokens are a few runs, such as positions 0 to 7 and 56 to 63. Between two runs a mask is a band: with queries
at q + s a and keys at k + s b, causal attention lets a see b where b - a <= (q - k) / s. So a pair of runs is nothing,
or a rectangle without a mask, or a triangle, or both: each an `AttentionPiece`, which the kernels of attention know how
to compute. Only a window that ends within a pair of runs takes a mask of its own.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from reference.errors import BadInput

PADDING = -1  # the document of tokens that are none


@dataclass(frozen=True)
class TokenRun:
    """Tokens at positions `first`, `first` + `stride`, ...; they belong to one document.

    Attributes:
        first: position of the first one, in the whole sequence.
        length: how many.
        stride: from one to the next.
        document: the position at which their document begins, which tells documents apart; or `PADDING`.
    """

    first: int
    length: int
    stride: int = 1
    document: int = 0

    @property
    def last(self) -> int:
        """Position of the last one."""
        return self.first + (self.length - 1) * self.stride

    def part(self, begin: int, end: int) -> "TokenRun":
        """Its tokens [begin, end), counted within the run."""
        return replace(self, first=self.first + begin * self.stride, length=end - begin)

    def continues(self, before: "TokenRun") -> bool:
        """Whether both together are one run."""
        return (self.document, self.stride) == (before.document, before.stride) and (
            self.document == PADDING or self.first == before.last + before.stride
        )


Tokens = tuple[TokenRun, ...]
"""What a rank holds, in its order."""


def length(tokens: Tokens) -> int:
    """How many tokens these are, with padding."""
    return sum(run.length for run in tokens)


def positions(tokens: Tokens) -> Tensor:
    """Where each stands in the whole sequence: int64."""
    return torch.cat([run.first + run.stride * torch.arange(run.length) for run in tokens])


def joined(runs: Iterable[TokenRun]) -> Tokens:
    """The same tokens in as few runs as can be."""
    made: list[TokenRun] = []
    for run in runs:
        if not run.length:
            continue
        if made and run.continues(made[-1]):
            made[-1] = replace(made[-1], length=made[-1].length + run.length)
        else:
            made.append(run)
    return tuple(made)


@lru_cache(maxsize=256)
def in_order(tokens: Tokens) -> tuple[Tokens, Tensor, Tensor]:
    """Runs sorted by their first token, which makes runs that continue each other one.

    Returns:
        The sorted runs; where each of their tokens was; where each of the given tokens is now.
    """
    starts = [sum(run.length for run in tokens[:i]) for i in range(len(tokens))]
    order = sorted(range(len(tokens)), key=lambda i: (tokens[i].document == PADDING, tokens[i].first))
    there = torch.cat([torch.arange(starts[i], starts[i] + tokens[i].length) for i in order])
    return joined(tokens[i] for i in order), there, there.argsort()


@dataclass(frozen=True)
class Mask:
    """Which tokens of a document a token sees. Those of other documents none does, and padding sees none.

    Attributes:
        causal: those after it are hidden.
        window: of those before it, it sees itself and the window - 1 nearest; None for all. Takes `causal`.
        sinks: the first so many tokens of a document are seen all the same (Xiao et al. 2023, "Efficient streaming
            language models with attention sinks").

    Raises:
        BadInput: if the numbers make no sense.
    """

    causal: bool = True
    window: int | None = None
    sinks: int = 0

    def __post_init__(self) -> None:
        if self.window is not None and not self.causal:
            raise BadInput("a window looks back from a token: it takes causal attention")
        if self.window is not None and self.window < 1:
            raise BadInput(f"a token sees at least itself: a window of {self.window} is none")
        if self.sinks < 0 or (self.sinks and self.window is None):
            raise BadInput(
                "attention sinks are the first tokens that a window would hide: take sinks >= 0 and a window"
            )

    def allows(self, queries: Tokens, keys: Tokens) -> Tensor:
        """Which queries see which keys, as a whole matrix: [queries, keys] of bool. For tests and small pictures."""
        q, k = positions(queries)[:, None], positions(keys)[None]
        q_document, k_document = _documents(queries)[:, None], _documents(keys)[None]
        seen = (q_document == k_document) & (q_document != PADDING)
        if self.causal:
            seen = seen & (k <= q)
        if self.window is not None:
            seen = seen & ((k > q - self.window) | (k < k_document + self.sinks))
        return seen


CAUSAL = Mask()


@dataclass(frozen=True)
class AttentionPiece:
    """Some queries and some keys, all in a row: what one call of a kernel computes.

    Attributes:
        queries, keys: [begin, end) of each.
        lower, upper: query a sees key b, both counted from the piece's first, where lower <= b - a <= upper. None is no
            bound; `upper` = 0 alone is the causal mask that every kernel knows.
    """

    queries: tuple[int, int]
    keys: tuple[int, int]
    lower: int | None = None
    upper: int | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """How many queries and keys."""
        return self.queries[1] - self.queries[0], self.keys[1] - self.keys[0]

    @property
    def causal(self) -> bool:
        """Whether query a sees keys 0 to a, and that is all that there is to say."""
        return self.lower is None and self.upper == 0

    @property
    def full(self) -> bool:
        """Whether each query sees each key."""
        return self.lower is None and self.upper is None

    @property
    def pairs(self) -> int:
        """How many pairs there are of a query and a key that it sees."""
        rows, columns = self.shape
        upper = columns - 1 if self.upper is None else self.upper
        hidden = 0 if self.lower is None else _cells_under(rows, columns, self.lower - 1)
        return _cells_under(rows, columns, upper) - hidden

    def mask(self) -> Tensor:
        """Which see which: [queries, keys] of bool."""
        seen = torch.ones(self.shape, dtype=torch.bool)
        seen = seen if self.upper is None else seen.tril(self.upper)
        return seen if self.lower is None else seen.triu(self.lower)

    def moved(self, queries: int, keys: int) -> "AttentionPiece":
        """The same, so many queries and keys further on."""
        (q, q_end), (k, k_end) = self.queries, self.keys
        return replace(self, queries=(q + queries, q_end + queries), keys=(k + keys, k_end + keys))


@lru_cache(maxsize=4096)
def pieces(queries: Tokens, keys: Tokens, mask: Mask) -> tuple[AttentionPiece, ...]:
    """What has to be computed between the tokens of two ranks, in as few pieces as their runs allow.

    Raises:
        BadInput: if runs have different strides.
    """
    if len({run.stride for run in (*queries, *keys) if run.length > 1}) > 1:
        raise BadInput("tokens of one layout have one stride, and these have several")
    if queries == keys and _is_triangle(queries, mask):
        return (AttentionPiece((0, length(queries)), (0, length(keys)), upper=0),)
    found: list[AttentionPiece] = []
    for q, of_queries in _with_begins(queries):
        for k, of_keys in _with_begins(keys):
            found += [piece.moved(q, k) for piece in _pieces_of_runs(of_queries, of_keys, mask)]
    return tuple(_merged(_merged(found, "queries", "keys"), "keys", "queries"))


def work(queries: Tokens, keys: Tokens, mask: Mask) -> int:
    """How many pairs of a query and a key that it sees: what attention between them costs."""
    return sum(piece.pairs for piece in pieces(queries, keys, mask))


def _is_triangle(tokens: Tokens, mask: Mask) -> bool:
    """Whether tokens in their order are a causal mask among themselves: those of one document, in order."""
    alike = len({run.document for run in tokens}) == 1 and tokens[0].document != PADDING
    in_order = all(one.last < other.first for one, other in pairwise(tokens))
    return mask.causal and mask.window is None and alike and in_order


def _with_begins(tokens: Tokens) -> Iterator[tuple[int, TokenRun]]:
    """Each run, and how many tokens are before it."""
    begin = 0
    for run in tokens:
        yield begin, run
        begin += run.length


def _pieces_of_runs(queries: TokenRun, keys: TokenRun, mask: Mask) -> Iterator[AttentionPiece]:
    """Between two runs, whose first tokens count as 0."""
    if PADDING in (queries.document, keys.document) or queries.document != keys.document:
        return
    if not mask.causal:
        yield AttentionPiece((0, queries.length), (0, keys.length))
        return
    if mask.window is None:
        yield from _triangle(queries, keys)
        return
    pinned = min(max(0, -(-(keys.document + mask.sinks - keys.first) // keys.stride)), keys.length)
    if pinned:
        yield from _triangle(queries, keys.part(0, pinned))
    yield from (piece.moved(0, pinned) for piece in _band(queries, keys.part(pinned, keys.length), mask.window))


def _triangle(queries: TokenRun, keys: TokenRun) -> Iterator[AttentionPiece]:
    """Causal: keys that all queries see, then those of which each sees one more than the one before it."""
    first = _last_seen(queries, keys)  # of the first query
    if first >= keys.length - 1:
        yield AttentionPiece((0, queries.length), (0, keys.length))
        return
    begin, seen = max(0, -first), max(0, first)
    if seen:
        yield AttentionPiece((0, queries.length), (0, seen))
    if begin < queries.length:
        yield AttentionPiece((begin, queries.length), (seen, min(keys.length, seen + queries.length - begin)), upper=0)


def _band(queries: TokenRun, keys: TokenRun, window: int) -> Iterator[AttentionPiece]:
    """A window: so many queries at a time as it is wide, with the keys that any of them sees."""
    last = _last_seen(queries, keys)
    first = (queries.first - keys.first - window) // _stride(queries, keys) + 1
    if first > last:  # a window that is narrower than the stride falls between two keys
        return
    for begin in range(0, queries.length, window):
        end = min(begin + window, queries.length)
        seen = max(0, first + begin), min(keys.length, last + end)
        if seen[0] < seen[1]:
            lower, upper = first + begin - seen[0], last + begin - seen[0]
            yield AttentionPiece(
                (begin, end),
                seen,
                lower=lower if lower > begin - end + 1 else None,
                upper=upper if upper < seen[1] - seen[0] - 1 else None,
            )


def _last_seen(queries: TokenRun, keys: TokenRun) -> int:
    """The last key that the first query sees, counted from the first key; one more for each query after it."""
    return (queries.first - keys.first) // _stride(queries, keys)


def _stride(queries: TokenRun, keys: TokenRun) -> int:
    return queries.stride if queries.length > 1 else keys.stride


def _merged(pieces: list[AttentionPiece], along: str, across: str) -> list[AttentionPiece]:
    """Pieces without a mask that have the same `along`, and lie next to each other `across`: as one."""
    made: list[AttentionPiece] = []
    for piece in sorted(pieces, key=lambda piece: (getattr(piece, along), getattr(piece, across))):
        before = made[-1] if made else None
        fits = before and before.full and piece.full and getattr(before, along) == getattr(piece, along)
        if fits and getattr(before, across)[1] == getattr(piece, across)[0]:
            made[-1] = replace(before, **{across: (getattr(before, across)[0], getattr(piece, across)[1])})
        else:
            made.append(piece)
    return made


def _cells_under(rows: int, columns: int, diagonal: int) -> int:
    """How many cells (a, b) of a matrix have b - a <= diagonal."""

    def triangle(side: int) -> int:
        return side * (side + 1) // 2 if side > 0 else 0

    to, beyond = diagonal, diagonal - columns
    return triangle(rows + to) - triangle(to) - triangle(rows + beyond) + triangle(beyond)


def _documents(tokens: Tokens) -> Tensor:
    """The document of each token."""
    return torch.cat([torch.full((run.length,), run.document) for run in tokens])
