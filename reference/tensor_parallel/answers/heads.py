"""Attention, shared by the ranks of a tensor axis: each rank has some heads, from query to output.

Heads do not know of each other until their outputs are added up, so that is where a region of attention ends: query,
key and value are split by columns, the output by rows (Shoeybi et al. 2019, "Megatron-LM", sec. 3, fig. 3b).

With grouped queries (Ainslie et al. 2023) K heads of keys and values serve H heads of queries. Where there are more
ranks than that, n / K neighbours have a copy of the same head each:

    8 ranks, 2 key-value heads      ranks 0 1 2 3: head 0       ranks 4 5 6 7: head 1

Each of them compares it with other queries, so each has a part of its gradient.
"""

from collections.abc import Callable

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.errors import BadInput
from reference.tensor_parallel.plain import enter, leave


def attention(
    x: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, heads: int, group: ProcessGroup
) -> Tensor:
    """Causal attention, of which this rank has H / n heads.

    Args:
        x: [B, S, D], the same on every rank.
        query, key, value: [H / n · d, D], this rank's heads, one after the other, d features each.
        output: [D, H / n · d], the columns of this rank's heads.
        heads: H, of all ranks.
        group: n ranks.

    Returns:
        [B, S, D], the same on every rank.

    Raises:
        BadInput: if the heads do not divide.
    """
    n = dist.get_world_size(group)
    if heads % n:
        raise BadInput(f"{heads} heads do not divide among {n} ranks; a multiple of {n} would do")
    own = heads // n
    x = enter(x, group)
    q, k, v = ((x @ weight.T).unflatten(-1, (own, -1)).transpose(1, 2) for weight in (query, key, value))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return leave(mixed.transpose(1, 2).flatten(2) @ output.T, group)


def grouped_queries(
    x: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    output: Tensor,
    kv_heads: int,
    neighbours: Callable[[int], ProcessGroup],
    group: ProcessGroup,
) -> Tensor:
    """Causal attention with grouped queries, where ranks may outnumber the heads of keys and values.

    Args:
        x: [B, S, D], the same on every rank.
        query: [H / n · d, D], this rank's heads.
        keys, values: [K · d, D], all heads, the same on every rank; this rank uses its own.
        output: [D, H / n · d], the columns of this rank's heads.
        kv_heads: K; it divides n, or n divides it.
        neighbours: of a number of ranks, the group of so many neighbours that this rank is in.
        group: n ranks.

    Returns:
        [B, S, D], the same on every rank.
    """
    rank, n, head_dim = dist.get_rank(group), dist.get_world_size(group), len(keys) // kv_heads
    copies, own = max(1, n // kv_heads), max(1, kv_heads // n)
    first, sharers = rank // copies * own, neighbours(copies)
    rows = slice(first * head_dim, (first + own) * head_dim)
    key, value = enter(keys[rows], sharers), enter(values[rows], sharers)

    x = enter(x, group)
    q, k, v = ((x @ weight.T).unflatten(-1, (-1, head_dim)).transpose(1, 2) for weight in (query, key, value))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return leave(mixed.transpose(1, 2).flatten(2) @ output.T, group)
