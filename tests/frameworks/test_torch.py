"""torch's own parallelism and FairScale's on the course's run: the curve of one process, the bytes of our plans."""

from collections.abc import Callable
from functools import cache
from importlib import import_module

import pytest
from torch.distributed.tensor import Partial

from reference.cluster import Cluster
from reference.frameworks.catalogue import FAIRSCALE, OURS, TORCH, Feature
from reference.frameworks.lab.runs import formula
from reference.frameworks.plain import Course, one_process
from reference.oracle import relative_difference
from reference.trace import Trace

SHORT = Course(steps=3)
HERE = {
    **{("rankwise", name): feature for name, feature in OURS.features.items()},
    **{("torch", name): feature for name, feature in TORCH.features.items() if feature.adapter != "checkpoint"},
    **{("fairscale", name): feature for name, feature in FAIRSCALE.features.items() if feature.plan},
}
SOME = [key for key in HERE if key[0] != "rankwise"] + [("rankwise", "fsdp"), ("rankwise", "sp"), ("rankwise", "1f1b")]


@cache
def right() -> list[float]:
    return one_process(SHORT)


def steps(adapter: str, feature: str, course: Course) -> tuple[list[float | None], list[int]]:
    """On a rank: losses, and how many calls were made by the end of each step."""
    from reference.trace.tap import world_recorder

    losses, marks = [], [0]
    for loss in import_module(f"reference.frameworks.adapters.{adapter}").losses(course, feature):
        losses.append(loss)
        marks.append(len(world_recorder().calls))
    return losses, marks


def taken(clusters: Callable[..., Cluster], feature: Feature, name: str) -> tuple[float, Trace]:
    """How far a run is from one process, and the trace of its last step."""
    found, trace = clusters(feature.ranks).trace(steps, feature.adapter, name, SHORT)
    curves = [losses for losses, _ in found if losses[-1] is not None]
    mean = [sum(each) / len(each) for each in zip(*curves, strict=True)]
    ended = zip(trace.events, (marks for _, marks in found), strict=True)
    last = tuple(events[marks[-2] : marks[-1]] for events, marks in ended)
    return relative_difference(mean, right()), Trace(feature.ranks, last)


@pytest.mark.turns(4)
@pytest.mark.parametrize("key", SOME, ids="-".join)
def test_a_feature_learns_and_sends_what_the_catalogue_says(
    clusters: Callable[..., Cluster], key: tuple[str, str]
) -> None:
    feature = HERE[key]
    apart, step = taken(clusters, feature, key[1])
    assert (apart <= feature.bound) == (not feature.wrong), apart
    assert (max(step.bytes_sent) == formula(feature, SHORT)) == (not feature.differs), step


def calls(trace: Trace) -> dict[str, int]:
    return {str(op): sum(event.op is op for event in trace.events[0]) for op in trace.counted_as}


def test_dtensor_sums_the_gradient_of_each_layers_input_by_itself(clusters: Callable[..., Cluster]) -> None:
    """Forward: the embedding and two sums in a layer. Backward: five in a layer, where regions begin, and the head."""
    layers = SHORT.config.layers
    _, step = taken(clusters, TORCH.features["tp"], "tp")
    assert calls(step) == {"all_reduce": 1 + 2 * layers + 5 * layers + 1, "all_gather": 1}


def placements_of_norms(course: Course) -> tuple[list[bool], int]:
    """On a rank: whether gradients of norms are partial sums after backward; all-reduces that AdamW makes of one."""
    from torch.distributed.device_mesh import init_device_mesh

    from reference.frameworks.adapters.tensor import split
    from reference.trace.tap import world_recorder

    model = split(course.model(), init_device_mesh("cpu", (2,)), slices=True)
    tokens, targets = course.read(0)
    course.loss(model(tokens), targets).backward()
    norms = [parameter for name, parameter in model.named_parameters() if "norm" in name]
    optimizer, before = course.optimizer(norms[:1]), len(world_recorder().calls)
    optimizer.step()
    return [isinstance(each.grad.placements[0], Partial) for each in norms], len(world_recorder().calls) - before


def test_adamw_sums_the_partial_gradient_of_a_norm_three_times(clusters: Callable[..., Cluster]) -> None:
    ((partial, sums), *_), _ = clusters(2).trace(placements_of_norms, SHORT)
    assert all(partial)
    assert sums == 3


def test_zero_redundancy_broadcasts_each_parameter(clusters: Callable[..., Cluster]) -> None:
    _, step = taken(clusters, TORCH.features["zero1"], "zero1")
    assert calls(step) == {"all_reduce": 1, "broadcast": len(list(SHORT.model().parameters()))}


def test_the_outermost_unit_of_fsdp1_stays_gathered(clusters: Callable[..., Cluster]) -> None:
    units = SHORT.config.layers + 1
    _, step = taken(clusters, TORCH.features["fsdp1"], "fsdp1")
    assert calls(step) == {"all_gather": 2 * units - 1, "reduce_scatter": units}


def test_the_ring_of_torch_is_exact_once_it_keeps_the_dtype(clusters: Callable[..., Cluster]) -> None:
    in_float32, _ = taken(clusters, TORCH.features["ring"], "ring")
    in_float64, _ = taken(clusters, TORCH.features["ring-f64"], "ring-f64")
    assert in_float64 < 1e-13 < 1e-12 < in_float32


def test_a_checkpoint_of_one_layout_goes_on_in_another(clusters: Callable[..., Cluster], tmp_path) -> None:
    course = Course(steps=4, folder=str(tmp_path))
    found = clusters(2).run(steps, "checkpoint", "dcp", course)
    mean = [sum(each) / len(each) for each in zip(*(losses for losses, _ in found), strict=True)]
    assert relative_difference(mean, one_process(course)) < 1e-10
