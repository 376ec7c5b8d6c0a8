"""Attention as one process computes it, on the tokens of all ranks: what each rank must have of it, there and back.

Letters of shapes: B batch, S sequence, n ranks, H heads of queries, K heads of keys and values, d their width. Cases
say `heads`, `kv_heads` and `local`, which is S / n.
"""

import torch
from torch import Tensor

from puzzles.grading.puzzle import Case, Inputs

DOUBLE = 8  # bytes of an element: everything is compared in float64
BATCH, WIDTH = 2, 2


def tokens_of_a_rank(case: Case, rank: int, local: int) -> dict[str, Tensor]:
    """Queries, keys and values of this rank's tokens, and the gradient of what they get."""
    heads = {"query": case.heads, "key": case.kv_heads, "value": case.kv_heads, "upstream": case.heads}
    return {name: case.normal(rank, BATCH, each, local, WIDTH, name=name) for name, each in heads.items()}


def attention_of_all(case: Case, inputs: Inputs, positions: Tensor) -> list[dict[str, Tensor]]:
    """By rank: the output and the gradients of its tokens, which stand at `positions`, [n, S / n]."""
    query, key, value = (torch.cat([each[x] for each in inputs], 2) for x in ("query", "key", "value"))
    leaves = {name: x.requires_grad_() for name, x in (("query", query), ("key", key), ("value", value))}
    out = by_definition(query, key, value, positions.flatten())
    found = torch.autograd.grad(out, leaves.values(), torch.cat([each["upstream"] for each in inputs], 2))
    whole = {"returns": out.detach(), **{f"{name}.grad": x for name, x in zip(leaves, found, strict=True)}}
    parts = {name: x.chunk(case.n, 2) for name, x in whole.items()}
    return [{name: part[rank] for name, part in parts.items()} for rank in range(case.n)]


def by_definition(query: Tensor, key: Tensor, value: Tensor, positions: Tensor) -> Tensor:
    """Head by head: softmax over the keys that do not stand after the query."""
    later, served = positions > positions[:, None], query.shape[1] // key.shape[1]
    heads = []
    for head in range(query.shape[1]):
        scores = query[:, head] @ key[:, head // served].mT / query.shape[-1] ** 0.5
        heads.append(scores.masked_fill(later, -torch.inf).softmax(-1) @ value[:, head // served])
    return torch.stack(heads, 1)


def bytes_of(case: Case, heads: int, local: int) -> int:
    """Of a rank's tokens, so many heads."""
    return DOUBLE * BATCH * heads * local * WIDTH
