"""Compressed sums over ranks and in one process, over the same gradients: what tests of compressors share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from types import MappingProxyType

import torch
import torch.distributed as dist
from torch import Tensor

from reference.collectives.default import over
from reference.compression import plain_memory
from reference.compression.low_rank import PowerSGD
from reference.compression.memory import Compressor, HalfPrecision, Known, MakeCompressor, generator_of
from reference.compression.signs import MajorityVote, OneBit, chunk_length
from reference.compression.sparse import RandomK, TopK

SHAPES = MappingProxyType({"norm": (7,), "weight": (12, 9), "bias": (3,), "wide": (5, 40), "experts": (3, 8, 10)})
RANK, SHARE = 2, 0.1
MAKERS: Mapping[str, MakeCompressor] = MappingProxyType(
    {
        "one-bit": OneBit,
        "top-k": partial(TopK, share=SHARE),
        "random-k": partial(RandomK, share=SHARE, seed=3),
        "powersgd": partial(PowerSGD, rank=RANK, seed=3),
        "vote": MajorityVote,
        "bf16": partial(HalfPrecision, dtype=torch.bfloat16),
    }
)
Cuts = Sequence[Sequence[str]]
"""Which gradients come together."""

AT_ONCE: Cuts = (tuple(SHAPES),)
IN_BUCKETS: Cuts = (("experts",), ("bias", "wide"), ("weight", "norm"))


def gradient(name: str, rank: int, step: int) -> Tensor:
    """Whole numbers in float64, so that sums are exact."""
    values = torch.randint(-64, 65, SHAPES[name], generator=generator_of(name, rank, step))
    return values.to(torch.float64)


@dataclass(frozen=True)
class Sums:
    """What some steps gave on a rank, by name."""

    sums: list[dict[str, Tensor]]  # of each step
    residuals: dict[str, Tensor]  # after the last, of this rank alone; of servers those of its chunk


def compressor_of(group: dist.ProcessGroup, name: str, cuts: Cuts) -> Compressor:
    compressor = MAKERS[name](over(group))
    device, dtype = torch.device("cpu"), torch.float64
    compressor.begin([[Known(each, torch.Size(SHAPES[each]), dtype, device) for each in call] for call in cuts])
    return compressor


def on_ranks(n: int, name: str, cuts: Cuts, steps: int) -> Sums | None:
    """To be run on every rank; None on those that are not among the first n."""
    group = dist.new_group(range(n))
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return None
    compressor, found = compressor_of(group, name, cuts), []
    for step in range(steps):
        found.append({})
        for number, call in enumerate(cuts):
            gradients = [gradient(each, group.rank(), step) for each in call]
            compressor.sum(number, gradients)
            found[-1].update(zip(call, gradients, strict=True))
    residuals = {f"{each.kind} of {each.part.name}": each.values for each in compressor.remembered()}
    return Sums(found, {name: values.clone() for name, values in residuals.items() if name.startswith("residual")})


def in_one_process(n: int, name: str, steps: int) -> list[dict[str, Tensor]]:
    """The sums of each step, by the plain algorithm."""
    twins = {each: TWINS[name](n, each) for each in SHAPES}
    return [
        {each: twins[each]([gradient(each, rank, step) for rank in range(n)], step) for each in SHAPES}
        for step in range(steps)
    ]


Twin = Callable[[Sequence[Tensor], int], Tensor]
"""From the gradients of all ranks, and the step, to their sum."""


def votes(n: int, name: str) -> Twin:
    return lambda gradients, step: plain_memory.majority_vote(gradients)


def rounded(n: int, name: str) -> Twin:
    return lambda gradients, step: torch.stack(list(gradients)).sum(0)  # of whole numbers up to 256: bf16 has them


def one_bit(n: int, name: str) -> Twin:
    size = torch.Size(SHAPES[name]).numel()
    length = chunk_length(size, n)
    residuals = [torch.zeros(size, dtype=torch.float64) for _ in range(n)]
    servers = [residuals[0][i * length : (i + 1) * length].clone() for i in range(n)]

    def summed(gradients: Sequence[Tensor], step: int) -> Tensor:
        flat = [each.flatten() for each in gradients]
        return plain_memory.two_stages(flat, residuals, servers, length).view(SHAPES[name])

    return summed


def few(n: int, name: str, compressed: Callable[[Tensor, int], Tensor]) -> Twin:
    residuals = [torch.zeros(SHAPES[name], dtype=torch.float64) for _ in range(n)]
    return lambda gradients, step: plain_memory.sum_with_feedback(
        gradients, residuals, lambda wanted: compressed(wanted, step)
    )


def top_k(n: int, name: str) -> Twin:
    return few(n, name, lambda wanted, _: plain_memory.top_k(wanted, max(1, round(SHARE * wanted.numel()))))


def random_k(n: int, name: str) -> Twin:
    def chosen(wanted: Tensor, step: int) -> Tensor:
        places = torch.randperm(wanted.numel(), generator=generator_of(3, step, name))
        kept = torch.zeros_like(wanted)
        places = places[: max(1, round(SHARE * wanted.numel()))]
        kept.view(-1)[places] = wanted.flatten()[places]
        return kept

    return few(n, name, chosen)


def power_sgd(n: int, name: str) -> Twin:
    """One process has the sum of all gradients, and one residual."""
    shape = SHAPES[name]
    matrices, (a, b) = prod(shape[:-2]), shape[-2:] if len(shape) > 1 else (0, 0)
    if RANK * (a + b) >= a * b:
        return lambda gradients, step: torch.stack(list(gradients)).sum(0)
    q = torch.randn(matrices, b, RANK, generator=generator_of(3, name), dtype=torch.float64)
    residual = torch.zeros(shape, dtype=torch.float64)

    def summed(gradients: Sequence[Tensor], step: int) -> Tensor:
        wanted = (torch.stack(list(gradients)).sum(0) + residual).view(matrices, a, b)
        found, following = plain_memory.power_step(wanted, q)
        q.copy_(following)
        residual.copy_((wanted - found).view(shape))
        return found.view(shape)

    return summed


TWINS: Mapping[str, Callable[[int, str], Twin]] = MappingProxyType(
    {"one-bit": one_bit, "top-k": top_k, "random-k": random_k, "powersgd": power_sgd, "vote": votes, "bf16": rounded}
)
