"""The checks of models that are split over a tensor axis: each returns what it found wrong, as those in `family.py`.

On GPUs sums travel while weights' gradients are computed, and all collectives are NCCL's; on gloo neither is so.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from family import CLOSE, EXACT, config_for, difference_of
from torch.distributed import ProcessGroup

from reference.memory.precision import PRECISIONS
from reference.memory.recompute import Recompute
from reference.models import GPTConfig
from reference.oracle import on_ranks, one_process, relative_difference
from reference.parallelize import DataParallelism, Plan
from reference.sequence_parallel import SequenceRegion
from reference.tensor_parallel import Region, vocabulary
from reference.tensor_parallel.layout import placement

MODEL = GPTConfig(layers=2, width=48, heads=24, kv_heads=24, hidden=48)  # 24 heads divide by 2, 3, 4, 6 and 8
SHARING = replace(MODEL, kv_heads=1, tied=True)  # all ranks of an axis have the one head of keys and values
SEQUENCE = 24


def plans(group: ProcessGroup, forms: Iterable[DataParallelism], odd: int) -> Iterator[Plan]:
    """Forms on the other axis, on tensor axes of every size but 1; not in every way, since each makes groups of NCCL.

    Args:
        group: all ranks.
        forms: of data parallelism.
        odd: 0 or 1: both together give every form with and without sequence parallelism.
    """
    n = group.size()
    for t in (t for t in range(2, n + 1) if n % t == 0 and MODEL.heads % t == 0):
        for i, form in enumerate(forms):
            if form is not DataParallelism.HSDP or n // t % 2 == 0:
                yield Plan(form, 1 + i % 2, tuple(Recompute)[i % 3], tensor_parallel=t, sequence_parallel=i % 2 == odd)


def split(group: ProcessGroup, device: str) -> list[str]:
    """Every form on two axes equals one process in float64: losses, norms, gradients, parameters."""
    found = []
    for odd, model in enumerate((MODEL, SHARING)):
        config = replace(config_for(group, "fp64"), model=model, sequence=SEQUENCE)
        expected = one_process(config)
        for plan in plans(group, DataParallelism, odd):
            difference = difference_of(config, group, device, plan, expected)
            found += [f"{plan}: {difference}"] if max(difference.values()) > EXACT else []
    return found


def split_mixed(group: ProcessGroup, device: str) -> list[str]:
    """In bf16 and fp16 they learn what one process learns in float64."""
    found = []
    for name, bound in CLOSE.items():
        config = replace(config_for(group, name), model=MODEL, sequence=SEQUENCE)
        expected = one_process(replace(config, precision=PRECISIONS["fp64"])).losses
        for plan in plans(group, (DataParallelism.DDP, DataParallelism.FSDP), odd=1):
            far = relative_difference(on_ranks(config, group, device, plan).losses, expected)
            found += [f"{plan} in {name}: losses differ by {far:.2g}"] if far > bound else []
    return found


def split_loss(group: ProcessGroup, device: str) -> list[str]:
    """The loss of logits in parts is torch's of whole logits, where some ranks have padding alone, too."""
    found = []
    for tokens in (1, 10, 8 * group.size()):
        whole = torch.randn(12, tokens, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        targets = torch.arange(12) % tokens
        targets[3] = vocabulary.IGNORED
        expected = torch.nn.functional.cross_entropy(whole, targets, reduction="none", label_smoothing=0.1)
        where = placement("head.weight", whole.T.shape, MODEL, group.rank(), group.size())
        part = where.cut(whole.T.contiguous()).T.contiguous().to(device)
        mine = vocabulary.cross_entropy(part, targets.to(device), group, tokens, smoothing=0.1)
        far = relative_difference(mine.cpu(), expected) if tokens > 1 else float(mine.abs().max())
        found += [f"losses over {tokens} tokens differ by {far:.2g}"] if far > EXACT else []
    return found


def hidden_sums(group: ProcessGroup, device: str) -> list[str]:
    """Nothing depends on whether gradients of inputs travel while those of weights are computed."""
    found = []
    for regions in (Region, SequenceRegion):
        results = [_through(regions(group, overlap), device) for overlap in (False, True)]
        names = ("output", "gradient of the input", "of columns", "of rows")
        for name, plain, hidden in zip(names, *results, strict=True):
            far = relative_difference(hidden, plain)
            found += [f"{name} differs by {far:.2g} with {regions.__name__}"] if far > EXACT else []
    return found


def _through(region: Region, device: str) -> tuple[torch.Tensor, ...]:
    """Into a region and out of it, and back."""
    generator, t = torch.Generator().manual_seed(0), region.ranks

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device)

    x, up, down = random(2, 4 * t, 6), random(3 * t, 6), random(6, 3 * t)
    own = region.local_tokens(x).clone().requires_grad_()
    rows = up.chunk(t)[region.rank].clone().requires_grad_()
    columns = down.chunk(t, 1)[region.rank].clone().requires_grad_()
    (inside,) = region.column_linear(own, rows)
    y = region.row_linear(inside.tanh(), columns)
    y.square().sum().backward()
    return tuple(z.detach().cpu() for z in (y, own.grad, rows.grad, columns.grad))
