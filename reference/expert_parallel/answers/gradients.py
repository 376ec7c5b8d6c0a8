"""Over which ranks a gradient is summed, and by what it is divided, where experts lie apart from all else.

A router is on all n ranks, and each of them saw other tokens: it is a replica like any other. An expert is on n / ep
ranks, and in backward tokens of all ep ranks of its group have come to it: so what is there is a sum over ep ranks
already. Both kinds are of one loss, a mean over n ranks. So both sums are divided by n, however many ranks have an
expert. To divide by these instead, as a form of data parallelism does by itself, makes the gradients of experts ep
times as large, and Adam hides it: only the clipped norm, and weight decay, tell (DeepSpeed PR 5259;
pytorch/pytorch#160285, where it was a factor of two).

Rajbhandari et al. 2022, "DeepSpeed-MoE", sec. 5.2; Liu et al. 2025, "MoE parallel folding", for the two meshes.
"""

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def sum_gradients(router: Tensor, experts: Tensor, ep: ProcessGroup, edp: ProcessGroup, group: ProcessGroup) -> None:
    """Make gradients those of the mean loss of all ranks, in place.

    Args:
        router: gradient of a router, the replica of this rank.
        experts: gradient of this rank's experts.
        ep: ranks that have all experts together, each other ones.
        edp: ranks that have the same experts.
        group: n ranks, each with as many tokens, and a loss that is their mean.
    """
    n = dist.get_world_size(group)
    for gradient, replicas in ((router, group), (experts, edp)):
        dist.all_reduce(gradient, group=replicas)
        gradient /= n
