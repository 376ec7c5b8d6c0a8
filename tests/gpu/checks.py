"""What is checked on GPUs, by name: each check is given a group and a device, and returns what it found wrong."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "collectives")]

import as_on_cpu  # noqa: E402
import axes  # noqa: E402
import conformance  # noqa: E402
import family  # noqa: E402
import mixtures  # noqa: E402
import pipelines  # noqa: E402
import training  # noqa: E402
import windows  # noqa: E402

from reference.collectives import backend, barrier  # noqa: E402
from reference.data_parallel.uneven import joined  # noqa: E402
from reference.memory import LossScaler  # noqa: E402
from reference.memory.plain import scaled_step  # noqa: E402
from reference.zero.answers.on_shards import clip_by_global_norm  # noqa: E402

Check = Callable[[dist.ProcessGroup, str], list[str]]


def connected(group: dist.ProcessGroup, device: str) -> list[str]:
    """A native all-reduce: does the machine play along at all?"""
    x = torch.ones(3, device=device)
    dist.all_reduce(x, group=group)
    return [] if x.tolist() == [dist.get_world_size(group)] * 3 else [f"native all-reduce gives {x.tolist()}"]


def lengths(group: dist.ProcessGroup, device: str) -> list[str]:
    """Every algorithm, several lengths and roots."""
    return conformance.mismatches(conformance.lengths((0, 3, 37), dist.get_world_size(group)), group, device)


def large(group: dist.ProcessGroup, device: str) -> list[str]:
    """All-reduces that travel in pieces."""
    cases = conformance.lengths((1_500_001,), dist.get_world_size(group))
    return conformance.mismatches([case for case in cases if case.collective == "all_reduce"], group, device)


def dtypes(group: dist.ProcessGroup, device: str) -> list[str]:
    """Every algorithm, dtype and reduction."""
    return conformance.mismatches(conformance.dtypes(7), group, device)


def barriers(group: dist.ProcessGroup, device: str) -> list[str]:
    """A barrier comes back."""
    barrier.dissemination(group)
    return []


def small_numbers(group: dist.ProcessGroup, device: str) -> list[str]:
    """What ranks tell each other beside gradients travels where the backend can send it."""
    n, ones = dist.get_world_size(group), torch.ones(4, device=device)
    scaled = scaled_step([ones.clone()], [ones.half()], 2.0, 0, 1, 0.1, group)
    norm = clip_by_global_norm([ones.clone()], [4 * n], 1.0, group).item()
    steps = [count for _, count in joined([ones], group)]
    finite = LossScaler().unscale([ones.clone()], [group])
    said = (scaled, round(norm**2), steps, finite)
    return [] if said == ((4.0, 0), 4 * n, [4 * n], True) else [f"small numbers: {said}"]


def subgroup(group: dist.ProcessGroup, device: str) -> list[str]:
    """All ranks but the first, so that group ranks are no global ranks."""
    others = dist.new_group(list(range(1, dist.get_world_size(group))))
    if others is dist.GroupMember.NON_GROUP_MEMBER:
        return []
    return connected(others, device) + lengths(others, device)


def trained(name: str, group: dist.ProcessGroup, device: str) -> list[str]:
    """PyTorch's own training has the same losses on the hand-made backend."""
    backend.register()
    train = training.TRAININGS[name]
    native, ours = train(group, device), train(dist.new_group(backend=backend.NAME), device)
    same = torch.allclose(torch.tensor(ours), torch.tensor(native), rtol=1e-10, atol=0)
    return [] if same else [f"{name}: {ours} on the hand-made backend, {native} natively"]


def named(*checks: Check) -> dict[str, Check]:
    """Functions by their own names."""
    return {check.__name__: check for check in checks}


ALONE = (
    named(connected, lengths, large, dtypes, barriers, small_numbers)
    | {name: partial(trained, name) for name in training.TRAININGS if name != "1F1B"}
    | named(family.exact, family.mixed, family.lighter, family.resumed, family.state, family.gauged)
    | named(windows.attention_kernels)
)
TOGETHER = (  # need two ranks
    {"subgroup": subgroup, "1F1B": partial(trained, "1F1B")}
    | named(axes.hidden_sums, axes.split_loss, axes.split, axes.split_mixed)
    | named(pipelines.piped, pipelines.piped_mixed, pipelines.piped_resumed)
    | named(windows.windows, windows.windows_mixed)
    | named(mixtures.experts, mixtures.experts_mixed)
)
BOTH_KINDS = named(  # need groups for CPUs beside those for GPUs
    as_on_cpu.optimizers,
    as_on_cpu.compressed,
    as_on_cpu.low_bits,
    as_on_cpu.islands,
    as_on_cpu.saved,
    as_on_cpu.gone_back,
)
CHECKS = ALONE | TOGETHER | BOTH_KINDS


def names_for(ranks: int, start: str) -> list[str]:
    """What so many ranks can check that are started so: "eager" or "lazy", as for `launcher.launch`."""
    here = CHECKS if ranks > 1 else ALONE | {name: BOTH_KINDS[name] for name in BOTH_KINDS if name != "islands"}
    return [name for name in here if start == "lazy" or name not in BOTH_KINDS]
