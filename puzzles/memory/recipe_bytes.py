"""memory.recipe_bytes: Bytes of a recipe.

rankwise check memory.recipe_bytes
rankwise hint memory.recipe_bytes

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""

import torch


def recipe_bytes(
    trained: int,
    frozen: int,
    compute: torch.dtype,
    gradients: torch.dtype,
    master: torch.dtype,
    moments: int,
) -> int:
    """Bytes of a recipe.

    How many bytes does a training state have? It is everything that is there
    from one step to the next:

    - parameters, in the dtype in which the model computes;
    - a gradient for each that is trained;
    - a master copy of each that is trained, in the optimizer's dtype; but where
      that is the dtype in which the model computes, the optimizer updates the
      model's own parameters, and there is no copy;
    - the moments: as many numbers for each that is trained as the optimizer
      remembers, in its dtype.

    A frozen parameter is only computed with: that is why fine-tuning a small
    adapter takes so little.

    Args:
        trained: how many parameters are trained.
        frozen: how many more are frozen.
        compute: dtype in which the model computes.
        gradients: dtype of gradients.
        master: dtype of the optimizer.
        moments: numbers that it remembers for each parameter: 2 for Adam, 1 for
            momentum, 0 for plain SGD.

    Returns: bytes, an int. `dtype.itemsize` has those of one number.

    Budget: a formula.
    """
    raise NotImplementedError("not solved yet")
