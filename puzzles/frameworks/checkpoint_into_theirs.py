"""frameworks.checkpoint_into_theirs: Our checkpoint into theirs.

rankwise check frameworks.checkpoint_into_theirs
rankwise hint frameworks.checkpoint_into_theirs

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
from torch import Tensor


def into_theirs(name: str, tensor: Tensor, head_dim: int) -> tuple[str, Tensor]:
    """Our checkpoint into theirs.

    Our GPT is a Llama, so it should run in Meta's own program, from Meta's own
    files. Parameters have other names there:

        embedding, norm, head                      tok_embeddings, norm, output
        blocks.3.attention_norm                    layers.3.attention_norm
        blocks.3.attention.query, .key, .value
        layers.3.attention.wq, .wk, .wv
        blocks.3.attention.output                  layers.3.attention.wo
        blocks.3.feed_forward_norm                 layers.3.ffn_norm
        blocks.3.feed_forward.gate, .down, .up
        layers.3.feed_forward.w1, .w2, .w3

    each with .weight at the end. And one thing has another order. Rotary
    positions turn pairs of numbers of a head against each other, by angles that
    fall from pair to pair. In ours, as at Hugging Face, the i-th pair are the
    numbers i and i + d/2 of a head of d; in Meta's they are 2i and 2i + 1. What
    a head computes must stay the same.

    Args:
        name: of ours, such as "blocks.3.attention.query.weight".
        tensor: its values. Queries and keys are [heads · d, D]: the first d
            rows make the first head.
        head_dim: d, an even number.

    Returns: (their name, a tensor of the same shape).

    Budget: no more memory than one copy of the tensor, and none where nothing
    changes places.
    """
    raise NotImplementedError("not solved yet")
