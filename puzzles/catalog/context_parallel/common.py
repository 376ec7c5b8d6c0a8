"""What several puzzles of this chapter share.

Letters of shapes: B batch, H heads of queries, K heads of keys and values, S tokens in all, Q tokens of a rank, d
numbers of a head, n ranks.
"""

import torch
from torch import Tensor

from puzzles.grading.puzzle import Case

DOUBLE = 8  # bytes of an element: everything is compared in float64

ATTENTION = (
    "MultiheadAttention", "Transformer", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder",
    "TransformerEncoderLayer", "multi_head_attention_forward", "scaled_dot_product_attention",
)  # fmt: skip
"""What torch has for attention as a whole: `Puzzle.without` of puzzles that ask for attention itself."""


def by_definition(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Attention to all keys at once, [B, H, Q, d], and the logsumexps of scores, [B, H, Q]. Where nothing is seen: 0.

    Args:
        query: [B, H, Q, d].
        key, value: [B, K, S, d]; heads of queries share them in turn, H / K neighbours each.
        seen: [Q, S] of bool.
    """
    own = torch.arange(query.shape[1]) * key.shape[1] // query.shape[1]
    scores = torch.einsum("bhqd,bhsd->bhqs", query, key[:, own]) / query.shape[-1] ** 0.5
    some = seen.any(-1)
    softmax = scores.where(seen | ~some.unsqueeze(-1), -torch.inf).softmax(-1) * some.unsqueeze(-1)
    lse = scores.detach().where(seen, -torch.inf).logsumexp(-1)
    return torch.einsum("bhqs,bhsd->bhqd", softmax, value[:, own]), lse


def positions(layout: str, rank: int, n: int, local: int) -> Tensor:
    """Where the tokens of a rank stand, [local], in order: contiguous, zigzag or striped."""
    head = local // 2
    tail = local - head
    match layout:
        case "contiguous":
            return rank * local + torch.arange(local)
        case "striped":
            return rank + n * torch.arange(local)
        case "zigzag":
            begin = n * head + (n - 1 - rank) * tail
            return torch.cat([rank * head + torch.arange(head), begin + torch.arange(tail)])
    raise ValueError(layout)


def sees(case: Case, rank: int) -> Tensor:
    """Causal attention in a case's layout: [n, local, local], which queries of a rank see which keys of each rank.

    The last `case.padding` positions are padding, which sees nothing and is seen by nothing.
    """
    held = torch.stack([positions(case.layout, each, case.n, case.local) for each in range(case.n)])
    real = held < case.n * case.local - case.padding
    return (held[rank].unsqueeze(1) >= held.unsqueeze(1)) & real.unsqueeze(1) & real[rank].unsqueeze(1)


def tokens_of(case: Case, rank: int) -> dict[str, Tensor]:
    """A rank's queries [B, H, local, d], and its keys and values [B, K, local, d]."""
    shapes = {"query": case.heads, "key": case.kv_heads, "value": case.kv_heads}
    sizes = case.local, case.head_dim
    return {name: case.normal(rank, case.batch, heads, *sizes, name=name) for name, heads in shapes.items()}


def whole_attention(case: Case) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """All ranks' tokens in one process, one rank's after another's: these, their out and their lse, with autograd."""
    each = [tokens_of(case, rank) for rank in range(case.n)]
    whole = {name: torch.cat([tokens[name] for tokens in each], 2).requires_grad_() for name in each[0]}
    seen = torch.cat([torch.cat(list(sees(case, rank)), 1) for rank in range(case.n)])
    return whole, *by_definition(**whole, seen=seen)


def block_bytes(case: Case) -> int:
    """Bytes of a rank's keys and values."""
    return 2 * case.batch * case.kv_heads * case.local * case.head_dim * DOUBLE
