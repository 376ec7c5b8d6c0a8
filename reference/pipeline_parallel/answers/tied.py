"""A step of a tied table that lives at both ends of a pipeline.

The embedding is on the first rank, the head on the last, and both are one table. Each end has a copy, and finds a part
of its gradient: the first for the rows it looked up, the last for the logits. Three things keep the two copies one:

    gradient    both ends sum, over their replicas and with each other; no rank between them has a table
    norm        every stage counts, and the table once
    update      each end makes the same of the same numbers, so the copies stay equal to the last bit, and never travel

Sent for the table: its size by each end, and what data parallelism sends of any parameter. Megatron-LM calls the two
ranks an embedding group.

Press & Wolf 2017, "Using the output embedding to improve language models"; Narayanan et al. 2021, "Efficient
large-scale language model training on GPU clusters using Megatron-LM".
"""

from collections.abc import Mapping

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

TABLE = "table"


def tied_step(
    parameters: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    rate: float,
    limit: float,
    data: ProcessGroup,
    pipeline: ProcessGroup,
    ends: ProcessGroup | None,
) -> Tensor:
    """Clip the gradient of the whole model to `limit`, and subtract `rate` times what is left.

    Args:
        parameters: of this rank, by name; on the first and the last rank of the pipeline one is "table". Updated in
            place, so none requires a gradient.
        gradients: of this rank's part of the batch, by the same names. Overwritten.
        rate: of learning.
        limit: the longest that the gradient may be.
        data: the replicas of this rank.
        pipeline: the ranks of this rank's pipeline, in order of stages.
        ends: the first and the last of these, or the only one, alone in its group. None on ranks between them.

    Returns:
        The norm of the whole model's gradient before it was clipped, a scalar, the same on every rank.
    """
    for gradient in gradients.values():
        dist.all_reduce(gradient, group=data)
    if ends is not None:
        dist.all_reduce(gradients[TABLE], group=ends)
    is_copy = ends is not None and dist.get_rank(ends) > 0
    squares = sum(gradient.square().sum() for name, gradient in gradients.items() if not (is_copy and name == TABLE))
    dist.all_reduce(squares, group=pipeline)
    norm = squares.sqrt()
    for name, parameter in parameters.items():
        parameter -= rate * min(1.0, limit / norm) * gradients[name]
    return norm
