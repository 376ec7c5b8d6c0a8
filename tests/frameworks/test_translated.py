"""A configuration of DeepSpeed, told to `fully_shard`: the bytes are those of its stage, and so is the curve."""

from collections.abc import Callable

import pytest
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from reference.cluster import Cluster
from reference.frameworks.answers.translated import to_fsdp2
from reference.frameworks.plain import Course, one_process
from reference.trace import Trace
from reference.zero import cost

COURSE, RANKS, MICRO_BATCHES = Course(steps=3), 2, 2
ITEM = 8  # bytes of a float64


def train(settings: tuple, course: Course) -> tuple[list[float], list[int]]:
    """On a rank: the losses, and how many calls were made by the end of each step."""
    from reference.trace.tap import world_recorder

    _, micro_batches, after_forward, after_backward, sync, _ = settings
    model = course.model()
    for unit in (*model.blocks, model):
        fully_shard(unit, reshard_after_forward=after_forward)
    optimizer = course.optimizer(model.parameters())
    losses, marks, parts = [], [], dist.get_world_size() * micro_batches
    for step in range(course.steps):
        total = 0.0
        for k in range(micro_batches):
            last = k == micro_batches - 1
            model.set_reshard_after_backward(after_backward or last)
            model.set_requires_gradient_sync(sync or last)
            tokens, targets = course.read(step, dist.get_rank() * micro_batches + k, parts)
            loss = course.loss(model(tokens), targets) / micro_batches
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
        marks.append(len(world_recorder().calls))
    return losses, marks


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_same_bytes_travel(clusters: Callable[..., Cluster], stage: int) -> None:
    config = {"train_batch_size": COURSE.batch, "gradient_accumulation_steps": MICRO_BATCHES}
    settings = to_fsdp2(config | {"zero_optimization": {"stage": stage}}, RANKS)
    assert settings[:2] == (COURSE.batch // RANKS // MICRO_BATCHES, MICRO_BATCHES)
    found, trace = clusters(RANKS).trace(train, settings, COURSE)
    mean = [sum(each) / RANKS for each in zip(*(losses for losses, _ in found), strict=True)]
    assert mean == pytest.approx(one_process(COURSE), rel=1e-10)
    ended = zip(trace.events, (marks for _, marks in found), strict=True)
    last = Trace(RANKS, tuple(events[marks[-2] : marks[-1]] for events, marks in ended))
    model = COURSE.model()
    blocks = [sum(p.numel() for p in block.parameters()) for block in model.blocks]
    units = [*blocks, COURSE.config.parameters - sum(blocks)]
    wanted = {1: cost.zero_1(units, RANKS), 2: cost.zero_2(units, RANKS, 2), 3: cost.zero_3(units, RANKS, 2)}[stage]
    assert max(last.bytes_sent) == wanted.bytes_sent(ITEM, ITEM)
