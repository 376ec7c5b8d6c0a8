"""Activations of the GPT of this course: which tensors wait for backward, and their bytes, exactly.

With RMSNorm, rotary positions, grouped queries, SwiGLU and flash attention (`reference.models.gpt`) a block keeps, in
numbers for each token, A = H · head_dim the width of all queries, A = D unless a model says otherwise:

| for backward of       | tensors                                | numbers                |
|-----------------------|----------------------------------------|------------------------|
| each of the two norms | input, 1/rms                           | D + 1                  |
| query, key, value     | output of the norm                     | D                      |
| attention             | query, key, value, result, log-sum-exp | (2 + 2 K/H) A + H      |
| its output projection | result, heads side by side             | A                      |
| gate and up           | output of the norm                     | D                      |
| SwiGLU                | gate, silu(gate), up                   | 3 F                    |
| down                  | silu(gate) · up                        | F                      |

Together 4 D + (3 + 2 K/H) A + 4 F, and a little: with as many keys as queries and F = 8/3 D about 20 D numbers for each
token. A feed-forward without a gate keeps up and silu(up) alone, 2 F; biases keep nothing. Where a model has dropout, a
block keeps two masks besides, each of D bytes for each token. No term grows with the square of the sequence: flash
attention (Dao et al. 2022) makes the S x S matrix again, tile by tile, in backward, and keeps one number for each query
and head.

The formulas equal what autograd saves, byte by byte.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from reference.dtypes import accumulator
from reference.memory.recompute import Recompute
from reference.memory.saved import Saved, total
from reference.models import GPTConfig, require_gpt


def norm(name: str, tokens: int, width: int, dtype: torch.dtype) -> tuple[Saved, ...]:
    """What RMSNorm keeps of `tokens` tokens of `width` numbers; its output is accounted to its consumer."""
    return (
        Saved(f"{name}: input", tokens * width * dtype.itemsize),
        Saved(f"{name}: 1 / rms", tokens * accumulator(dtype).itemsize),
    )


def attention(config: GPTConfig, batch: int, sequence: int, dtype: torch.dtype) -> tuple[Saved, ...]:
    """What grouped-query attention keeps, from the output of the norm to the input of the output projection."""
    require_gpt(config)
    tokens, size = batch * sequence, dtype.itemsize
    keys, queries = tokens * config.kv_heads * config.head_dim * size, tokens * config.attended * size
    saved = [Saved("attention: output of the norm", tokens * config.width * size)]
    if dtype != torch.float64:  # in which the model has them anyway
        cos_sin = sequence * config.head_dim * size
        saved += [Saved("attention: cos, sin for queries", cos_sin), Saved("attention: cos, sin for keys", cos_sin)]
    saved += [
        Saved("attention: queries, turned", queries),
        Saved("attention: keys, turned", keys),
        Saved("attention: values", keys),
        Saved("attention: result", queries),
        Saved("attention: log-sum-exp", tokens * config.heads * accumulator(dtype).itemsize),
    ]
    if config.heads > 1 and sequence > 1:  # else it lies so already
        saved.append(Saved("attention: result, token by token", queries))
    return tuple(saved)


def feed_forward(config: GPTConfig, batch: int, sequence: int, dtype: torch.dtype) -> tuple[Saved, ...]:
    """What the feed-forward keeps, from the output of the norm on."""
    require_gpt(config)
    hidden = batch * sequence * config.hidden * dtype.itemsize
    normed = Saved("feed forward: output of the norm", batch * sequence * config.width * dtype.itemsize)
    if not config.gated:
        return normed, Saved("feed forward: up", hidden), Saved("feed forward: silu(up)", hidden)
    return (
        normed,
        Saved("feed forward: gate", hidden),
        Saved("feed forward: silu(gate)", hidden),
        Saved("feed forward: up", hidden),
        Saved("feed forward: silu(gate) · up", hidden),
    )


def masks(config: GPTConfig, batch: int, sequence: int) -> tuple[Saved, ...]:
    """What the two dropouts of a block keep in training: which elements were dropped, a byte for each."""
    require_gpt(config)
    if config.dropout == 0:
        return ()
    elements = batch * sequence * config.width
    return Saved("attention: dropped", elements), Saved("feed forward: dropped", elements)


def block(config: GPTConfig, batch: int, sequence: int, dtype: torch.dtype) -> tuple[Saved, ...]:
    """What one block keeps of a micro-batch for backward, its input included, parameters not.

    Args:
        config: of the model.
        batch: B, windows in the micro-batch.
        sequence: S, tokens in a window.
        dtype: of activations and parameters.
    """
    tokens = batch * sequence
    return (
        *norm("attention norm", tokens, config.width, dtype),
        *attention(config, batch, sequence, dtype),
        *norm("feed-forward norm", tokens, config.width, dtype),
        *feed_forward(config, batch, sequence, dtype),
        *masks(config, batch, sequence),
    )


def block_selective(config: GPTConfig, batch: int, sequence: int, dtype: torch.dtype) -> tuple[Saved, ...]:
    """What one block keeps with selective recomputation: what matrix products made. Arguments as for `block`.

    Norms, attention's core and the product inside the SwiGLU are made again; what they are made from is kept, and what
    comes of them is not, although matrix products need it (`reference.memory.recompute`).
    """
    require_gpt(config)
    tokens, size = batch * sequence, dtype.itemsize
    keys = tokens * config.kv_heads * config.head_dim * size
    return (
        Saved("attention norm: input", tokens * config.width * size),
        Saved("attention: queries", tokens * config.attended * size),
        Saved("attention: keys", keys),
        Saved("attention: values", keys),
        Saved("feed-forward norm: input", tokens * config.width * size),
        *([Saved("feed forward: gate", tokens * config.hidden * size)] if config.gated else ()),
        Saved("feed forward: up", tokens * config.hidden * size),
        *masks(config, batch, sequence),
    )


def block_input(config: GPTConfig, batch: int, sequence: int, dtype: torch.dtype) -> tuple[Saved, ...]:
    """What one block keeps with full recomputation: its input. Arguments as for `block`."""
    require_gpt(config)
    return (Saved("input of the block", batch * sequence * config.width * dtype.itemsize),)


KEPT: Mapping[Recompute, Callable[..., tuple[Saved, ...]]] = MappingProxyType(
    {Recompute.NONE: block, Recompute.SELECTIVE: block_selective, Recompute.FULL: block_input}
)
"""What one block keeps, by what is made again in backward."""


def cos_sin(config: GPTConfig, sequence: int, dtype: torch.dtype, recompute: Recompute) -> tuple[Saved, ...]:
    """Cosines and sines that all blocks share: in float64, as they came, where something is made again from them."""
    require_gpt(config)
    if recompute is Recompute.NONE and dtype != torch.float64:
        return ()
    return (Saved("rotary cos, sin", 8 * sequence * config.head_dim),)


def ends(config: GPTConfig, batch: int, sequence: int, dtype: torch.dtype) -> tuple[Saved, ...]:
    """What the model keeps outside its blocks: of the last norm, the projection to the vocabulary, and the loss.

    Tokens and targets were there before; the embedding keeps nothing but them. Logits are kept as log-probabilities, in
    float32 at least.
    """
    require_gpt(config)
    tokens, wide = batch * sequence, accumulator(dtype).itemsize
    return (
        *norm("last norm", tokens, config.width, dtype),
        Saved("head: output of the norm", tokens * config.width * dtype.itemsize),
        Saved("loss: log-probabilities", tokens * config.vocabulary * wide),
        Saved("loss: how many tokens counted", wide),
    )


def model(
    config: GPTConfig,
    batch: int,
    sequence: int,
    dtype: torch.dtype,
    recompute: Recompute = Recompute.NONE,
) -> tuple[Saved, ...]:
    """What a forward pass of the whole model and its loss keep for backward. Arguments as for `block`."""
    every = total(KEPT[recompute](config, batch, sequence, dtype))
    return (
        *cos_sin(config, sequence, dtype, recompute),
        Saved(f"{config.layers} blocks", config.layers * every),
        *ends(config, batch, sequence, dtype),
    )
