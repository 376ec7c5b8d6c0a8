"""expert_parallel.keep_the_routing: The way it went.

rankwise check expert_parallel.keep_the_routing
rankwise hint expert_parallel.keep_the_routing

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.memory.recompute import recomputed


def recomputed_layer(
    x: Tensor,
    scores_of: Callable[[Tensor], Tensor],
    compute: Callable[[Tensor, Tensor, Tensor], Tensor],
    k: int,
    load: Tensor,
    group: ProcessGroup,
) -> Tensor:
    """The way it went.

    A layer with experts keeps nothing but its input for backward, and is
    computed again then. This is what is known of it:

        a. outputs are those of one process, on any number of ranks
        b. without recomputation, so are all gradients
        c. with it, most gradients are right; those of tokens that two experts
           suit nearly equally are wrong
        d. the next step's bias, which is set by how busy experts were, moves as
           if there were twice the tokens

    A kernel may add up in another order the next time it runs, and sums differ
    in their last bits. The router's do here, from call to call. Mend the layer:
    it must go the same way the second time, and count once. Micro-batches may
    go forward one after another before the first of them goes backward. The
    layer must still be computed again, and the router must learn.

    Given is `recomputed(function, *inputs)`: `function(*inputs)`, of which
    nothing but the inputs is kept; in backward it runs again. It is right.

    Args:
        x: [T, D], of this rank; T may be 0.
        scores_of: the router: `scores_of(x)` is [T, E], above 0, with
            parameters in it.
        compute: what experts make: `compute(x, chosen, weights)`, of [T, D],
            experts [T, k] and weights [T, k], is [T, D]. Tokens travel to other
            ranks in it: each rank calls it as often as all others.
        k: experts of a token: those with the best scores, as they come out the
            first time.
        load: [E] of int64, how many choices each expert got on this rank so
            far. To be added to, in place.
        group: n ranks. Any n.

    Returns: [T, D], what the experts make, weighed by their scores.

    Budget: from forward to backward, nothing of the layer's own but its output
    and k numbers for each token.
    """
    def run(x):
        scores = scores_of(x)
        chosen = scores.topk(k).indices
        load.add_(torch.bincount(chosen.flatten(), minlength=len(load)))
        weights = scores.gather(1, chosen)
        return compute(x, chosen, weights)

    return recomputed(run, x)
