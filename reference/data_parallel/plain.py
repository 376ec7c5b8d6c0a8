"""Distributed data parallelism in its smallest forms: from a hook on each parameter to buckets.

Autograd calls a hook when it has added a parameter's gradient to `.grad`: the last layer's first, while those before it
are still to come. That is where communication can begin.

| form              | sends                                      | messages                | waits      |
|-------------------|--------------------------------------------|-------------------------|------------|
| reduce_when_ready | each gradient as soon as it is known       | one for each parameter  | at the end |
| reduce_in_buckets | several, when the last of them is known    | one for each bucket     | at the end |

Every parameter learns, and gets one gradient in each backward; and gradients come in the same order on every rank,
since the k-th message of one meets the k-th of the others. `replicated.DistributedDataParallel` needs neither.

Li et al. 2020, "PyTorch distributed: experiences on accelerating data parallel training".
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup, Work

from .buckets import in_order_of_use


def reduce_when_ready(model: nn.Module, group: ProcessGroup) -> Callable[[], None]:
    """Let every backward of `model` sum its gradients over `group`, each as soon as it is known.

    Args:
        model: the same on every rank.
        group: n ranks.

    Returns:
        `finish`, to be called after each backward: afterwards every `.grad` is the sum.
    """
    works: list[Work] = []

    def launch(parameter: nn.Parameter) -> None:
        works.append(dist.all_reduce(parameter.grad, group=group, async_op=True))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(launch)

    def finish() -> None:
        for work in works:
            work.wait()
        works.clear()

    return finish


def reduce_in_buckets(model: nn.Module, group: ProcessGroup, bucket_bytes: int) -> Callable[[], None]:
    """Let every backward of `model` sum its gradients over `group`, a bucket as soon as all of it is known.

    Args:
        model: the same on every rank.
        group: n ranks.
        bucket_bytes: parameters are put into buckets from the last to the first, as long as they fit; one that is
            larger has a bucket of its own.

    Returns:
        `finish`, to be called after each backward: afterwards every `.grad` is the sum.
    """
    on_their_way: list[tuple[Work, Tensor, list[nn.Parameter]]] = []

    def attach(bucket: list[nn.Parameter]) -> None:
        missing = set(bucket)

        def arrived(parameter: nn.Parameter) -> None:
            missing.discard(parameter)
            if not missing:
                flat = torch.cat([each.grad.flatten() for each in bucket])
                on_their_way.append((dist.all_reduce(flat, group=group, async_op=True), flat, bucket))
                missing.update(bucket)

        for parameter in bucket:
            parameter.register_post_accumulate_grad_hook(arrived)

    for bucket in in_order_of_use(list(model.parameters()), bucket_bytes):
        attach(bucket)

    def finish() -> None:
        for work, flat, bucket in on_their_way:
            work.wait()
            for parameter, summed in zip(bucket, flat.split([each.numel() for each in bucket]), strict=True):
                parameter.grad.copy_(summed.view_as(parameter))
        on_their_way.clear()

    return finish
