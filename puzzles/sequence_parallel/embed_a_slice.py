"""sequence_parallel.embed_a_slice: An embedding that leaves slices.

rankwise check sequence_parallel.embed_a_slice
rankwise hint sequence_parallel.embed_a_slice

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.sequence_parallel.plain import gather, scatter


def embed(tokens: Tensor, table: Tensor, group: ProcessGroup) -> Tensor:
    """An embedding that leaves slices.

    The table of an embedding is split by rows: rank r has the rows of tokens [r
    · V/n, (r + 1) · V/n). For a token of its own a rank can give the row; for
    any other it gives zeros. The sum over ranks is the embedding, and with
    tensor parallelism an all-reduce gives it to all ranks.

    With sequence parallelism, what comes next wants a slice of the tokens on
    each rank. So leave slices, and do not send what no rank asked for.

    Given are `gather(x, group)`, [B, S/n, D] -> [B, S, D], and
    `scatter(x, group)`, [B, S, D] -> [B, S/n, D], which adds up what all ranks
    have made, and gives each its slice. Gradients pass through both: each is
    the backward of the other.

    Args:
        tokens: [B, S] of integers in [0, V), the same on every rank; n divides
            S.
        table: [V/n, D], this rank's rows.
        group: n ranks. Any n.

    Returns: [B, S/n, D], the embedding of this rank's slice of the tokens.
    After its backward, `table.grad` is that of all tokens, of this rank's rows.

    Budget: a slice sent n-1 times, and as much in backward.
    """
    raise NotImplementedError("not solved yet")
