"""Attention of some queries to some keys, with what is needed to merge it with others: one kernel for each device.

torch's `scaled_dot_product_attention` drops the logsumexp of each query. The operations behind it return it, and their
backward takes one: with the *final* output and logsumexp of a query it computes what one block of keys adds to the
gradients (Dao et al. 2022, "FlashAttention", app. B.4).

| device | kernel                                                                            |
|--------|-----------------------------------------------------------------------------------|
| CPU    | flash attention, in float64, float32 and bfloat16; fewer heads of keys are fine   |
| CUDA   | the memory-efficient one (float32 and 16 bits): heads equally many, sizes aligned |
| meta   | the shapes of the flash one that GPUs have: to count what it multiplies           |
| other  | by hand, as `plain`: with a number for every pair of tokens                       |
"""

import torch
from torch import Tensor

from . import plain

aten = torch.ops.aten
Gradients = tuple[Tensor, Tensor, Tensor]


def forward(query: Tensor, key: Tensor, value: Tensor, causal: bool, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attention of these queries to these keys alone.

    Args:
        query: [B, H, Q, head_dim], Q > 0.
        key, value: [B, K, S, head_dim]; each of the K heads serves H / K of queries.
        causal: query a sees keys 0 to a.
        mask: [Q, S] of bool, in place of `causal`: True where a query sees a key.

    Returns:
        [B, H, Q, head_dim], and the logsumexp of scores [B, H, Q]; -inf for a query that sees no key.
    """
    if _is_efficient(query):
        key, value, bias = plain.heads_for(key, query), plain.heads_for(value, query), _expanded(mask, query, key)
        out, lse, *_ = aten._scaled_dot_product_efficient_attention(
            *map(_aligned, (query, key, value)), bias, True, 0.0, causal, scale=query.shape[3] ** -0.5
        )
        out, lse = out[..., : query.shape[3]], lse[..., : query.shape[2]]  # both are padded
    elif query.device.type == "cpu":
        bias = _bias(mask, query)
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal, attn_mask=bias)
    elif query.is_meta:
        key, value = plain.heads_for(key, query), plain.heads_for(value, query)
        out, lse, *_ = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal)
    else:
        return plain.attend(query, key, value, _seen(causal, mask, query, key))
    return out, lse if mask is None else lse.masked_fill(~mask.any(dim=1).to(lse.device), -torch.inf)


def backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    mask: Tensor | None,
) -> Gradients:
    """What these keys add to the gradients of queries, and their own.

    Args:
        gradient: of the output, [B, H, Q, head_dim].
        query, key, value, causal, mask: as for `forward`.
        out, lse: of the queries, over all keys that there are; a finite number for a query that sees none.
    """
    if not (_is_efficient(query) or query.is_meta):
        if query.device.type == "cpu":
            return aten._scaled_dot_product_flash_attention_for_cpu_backward(
                gradient, query, key, value, out, lse, 0.0, causal, attn_mask=_bias(mask, query)
            )
        return plain.attend_backward(gradient, query, key, value, out, lse, _seen(causal, mask, query, key))
    shared = key.shape[1]
    key, value = plain.heads_for(key, query), plain.heads_for(value, query)
    if query.is_meta:
        lengths = None, None, query.shape[2], key.shape[2]
        random = torch.empty(2, dtype=torch.uint64, device="meta")
        of_query, *of_both = aten._scaled_dot_product_flash_attention_backward(
            gradient, query, key, value, out, lse, *lengths, 0.0, causal, random, random
        )
        return of_query, *(x.unflatten(1, (shared, -1)).sum(dim=2) for x in of_both)
    bias = _expanded(mask, query, key)
    lse = torch.nn.functional.pad(lse, (0, -lse.shape[-1] % 32)).contiguous()  # a slice of it would be misread
    seed = torch.zeros((), dtype=torch.int64, device=query.device)  # of dropout, of which there is none
    gradient, *inputs, out = map(_aligned, (gradient, query, key, value, out))
    wanted = [True, True, True, False]  # not of the bias
    *parts, _ = aten._scaled_dot_product_efficient_attention_backward(
        gradient, *inputs, bias, out, lse, seed, seed, 0.0, wanted, causal, scale=query.shape[3] ** -0.5
    )
    of_query, *of_both = (x[..., : query.shape[3]] for x in parts)
    return of_query, *(x.unflatten(1, (shared, -1)).sum(dim=2) for x in of_both)


def _is_efficient(query: Tensor) -> bool:
    return query.is_cuda and query.dtype is not torch.float64


def _aligned(x: Tensor) -> Tensor:
    """[..., head_dim] with zeros behind, up to 16 bytes, which that kernel reads at once: they change no product."""
    return torch.nn.functional.pad(x, (0, -x.shape[-1] % (16 // x.element_size())))


def _bias(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """What is added to scores: 0 where a query sees a key, -inf elsewhere."""
    if mask is None:
        return None
    return torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill_(
        ~mask.to(query.device), -torch.inf
    )


def _expanded(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """The bias for every sequence and head, in rows whose length is a multiple of 16, as that kernel wants them."""
    if mask is None:
        return None
    bias = torch.nn.functional.pad(_bias(mask, query), (0, -key.shape[2] % 16))[:, : key.shape[2]]
    return bias.expand(*query.shape[:2], *mask.shape)


def _seen(causal: bool, mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """The mask of bools; None where each query sees each key."""
    if not causal:
        return mask if mask is None else mask.to(query.device)
    return torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
