"""torch's ring attention of DTensors on CPUs: its dispatcher takes over operations of GPUs, and here the CPU's, too."""

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental._context_parallel import _attention

from reference.frameworks.adapters.context import flash, flash_backward, of_cpu


def take_over() -> None:
    """To be called before torch's dispatcher for context parallelism is enabled."""
    _attention.custom_ops |= {flash.default: forward, flash_backward.default: backward}


def forward(_: Any, given: tuple[Any, ...], __: dict[str, Any]) -> tuple[DTensor, ...]:
    """Queries, keys and values [B, H, S, d] whose S is sharded; how many are dropped, and whether it is causal."""
    group, parts = parts_of(given[:3])
    return like(given[0], _attention._templated_ring_attention(group, 2, flash, *parts, is_causal=given[4]))


def backward(_: Any, given: tuple[Any, ...], __: dict[str, Any]) -> tuple[DTensor, ...]:
    """The gradient of what `forward` made, what it was given, and what it made."""
    group, (gradient, *parts) = parts_of(given[:6])
    ring = _attention._templated_ring_attention_backward
    return like(given[0], ring(group, 2, of_cpu, gradient.contiguous(), "grad_out", *parts, given[7]))


def parts_of(tensors: tuple[DTensor, ...]) -> tuple[Any, list[Tensor]]:
    """The group that has them, and what this rank has of them."""
    return tensors[0].device_mesh.get_group(), [x.to_local() for x in tensors]


def like(whole: DTensor, parts: tuple[Tensor, ...]) -> tuple[DTensor, ...]:
    """Parts along S as DTensors on the same mesh."""
    return tuple(DTensor.from_local(x, whole.device_mesh, [Shard(2)], run_check=False) for x in parts)
