"""Which tokens each rank holds: four ways to share out a sequence.

    contiguous    0 0 0 0 1 1 1 1 2 2 2 2 3 3 3 3     simple; with causal attention the last rank works most
    zigzag        0 0 1 1 2 2 3 3 3 3 2 2 1 1 0 0     a piece of the head and one of the tail: all work alike
    striped       0 1 2 3 0 1 2 3 0 1 2 3 0 1 2 3     nearly alike, in one run; bad for windows
    documents     0 1 1 0 | 0 0 1 1 1 1 0 0           zigzag within each document: alike, however long those are

All ranks hold equally many tokens, the last of which may be padding: tokens that are none, and that none sees. So
layers that treat each token by itself need not know how a sequence was shared out.

Zigzag: Zhu 2024, "ring-flash-attention", and Llama 3 (Dubey et al. 2024, sec. 3.3.2). Striped: Brandon et al. 2023,
"Striped attention".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from reference.choices import ContextLayout
from reference.errors import BadInput, require_sizes

from .tokens import PADDING, TokenRun, Tokens, joined, length, positions


@dataclass(frozen=True)
class Layout:
    """A sequence on n ranks.

    Attributes:
        sequence: S, its tokens.
        tokens: what each rank holds, all equally many.
    """

    sequence: int
    tokens: tuple[Tokens, ...]

    @property
    def ranks(self) -> int:
        """n."""
        return len(self.tokens)

    @property
    def local(self) -> int:
        """Tokens that each rank holds, with padding."""
        return length(self.tokens[0])

    def positions(self, rank: int) -> Tensor:
        """Where the tokens of a rank stand: [local] of int64; padding stands after the last token."""
        return positions(self.tokens[rank])

    def cut(self, x: Tensor, rank: int, dim: int = 1, padding: float = 0) -> Tensor:
        """What a rank holds of something that is known of all tokens: S of them along `dim` -> local."""
        if x.shape[dim] != self.sequence:
            raise BadInput(f"this layout is of {self.sequence} tokens, and there are {x.shape[dim]}")
        where = self.positions(rank).to(x.device)
        inside = where < self.sequence
        held = x.index_select(dim, where.where(inside, 0))
        shape = [1] * x.dim()
        shape[dim] = -1
        return held if bool(inside.all()) else held.masked_fill(~inside.view(shape), padding)

    def join(self, parts: Sequence[Tensor], dim: int = 1) -> Tensor:
        """The whole of what all ranks hold: the opposite of `cut`."""
        where = torch.cat([self.positions(rank) for rank in range(self.ranks)])
        order = where.argsort()[: self.sequence].to(parts[0].device)
        return torch.cat(list(parts), dim).index_select(dim, order)


def layout(
    kind: ContextLayout, sequence: int, ranks: int, multiple: int = 1, documents: Sequence[int] | None = None
) -> Layout:
    """Share out a sequence.

    Args:
        kind: how.
        sequence: S, its tokens.
        ranks: n.
        multiple: of which the number of tokens on a rank must be one, for others who share them out further.
        documents: the length of each, in order; by default all is one.

    Raises:
        BadInput: if there is nothing to share out, or documents do not make a sequence.
    """
    lengths = tuple(documents) if documents is not None else (sequence,)
    require_sizes(sequence=sequence, ranks=ranks, multiple=multiple)
    if sum(lengths) != sequence or min(lengths) < 1:
        raise BadInput(f"documents of {', '.join(map(str, lengths))} tokens do not make {sequence}")
    match kind:
        case ContextLayout.CONTIGUOUS:
            whole = [[chunk] for chunk in _chunks(0, sequence, ranks)]
        case ContextLayout.ZIGZAG:
            whole = _zigzag((sequence,), ranks)
        case ContextLayout.STRIPED:
            whole = [[TokenRun(rank, len(range(rank, sequence, ranks)), ranks)] for rank in range(ranks)]
        case ContextLayout.DOCUMENTS:
            whole = _zigzag(lengths, ranks)
    begins = list(accumulate(lengths, initial=0))
    held = [joined(part for run in runs for part in _by_borders(run, begins)) for runs in whole]
    most = max(length(tokens) for tokens in held)
    return Layout(sequence, tuple(_padded(held, sequence, -(-most // multiple) * multiple)))


def _chunks(begin: int, size: int, parts: int) -> list[TokenRun]:
    """Tokens [begin, begin + size) in chunks that differ by one token at most."""
    cuts = [begin + size * i // parts for i in range(parts + 1)]
    return [TokenRun(one, other - one) for one, other in pairwise(cuts)]


def _zigzag(lengths: Sequence[int], ranks: int) -> list[list[TokenRun]]:
    """Of each document one chunk from the head and one from the tail; the largest two go to who has fewest tokens."""
    held: list[list[TokenRun]] = [[] for _ in range(ranks)]
    for begin, size in zip(accumulate(lengths, initial=0), lengths, strict=False):
        chunks = _chunks(begin, size, 2 * ranks)
        pairs = zip(chunks[:ranks], reversed(chunks[ranks:]), strict=True)
        for tokens, pair in zip(sorted(held, key=_held), sorted(pairs, key=_held, reverse=True), strict=True):
            tokens += pair
    return held


def _held(runs: Sequence[TokenRun]) -> int:
    return length(tuple(runs))


def _by_borders(run: TokenRun, begins: Sequence[int]) -> list[TokenRun]:
    """A run, cut where documents begin; each part knows its document."""
    parts = []
    for begin, end in pairwise(begins):
        one, other = (min(max(0, -(-(border - run.first) // run.stride)), run.length) for border in (begin, end))
        part = run.part(one, other)
        parts.append(TokenRun(part.first, part.length, part.stride, begin))
    return parts


def _padded(held: Sequence[Tokens], sequence: int, size: int) -> list[Tokens]:
    """All of one size; padding stands at positions behind the last token, each at one of its own."""
    made, beyond = [], sequence
    stride = max(run.stride for tokens in held for run in tokens)
    for tokens in held:
        missing = size - length(tokens)
        made.append((*tokens, TokenRun(beyond, missing, stride, PADDING)) if missing else tokens)
        beyond += missing * stride
    return made
