"""FairScale, where sharded training in PyTorch began: OSS (ZeRO-1), ShardedDataParallel (ZeRO-2), Pipe (GPipe).

ShardedDataParallel keeps gradients as views of its buckets. `zero_grad()` sets gradients to None since torch 2.0, and
then new ones come to be outside of the buckets, which are summed all the same: `sharded` runs without a word, and is
wrong from the second step on. `sharded-zeros` lets `zero_grad` write zeros, as it did when FairScale was made;
`sharded-unbucketed` has no buckets. Pipe starts threads that never end: its process must be ended.
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.nn.pipe import Pipe
from fairscale.optim.oss import OSS
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from reference.frameworks.plain import Course
from reference.models import create
from reference.pipeline_parallel.stages import pieces_of, stage_of


def losses(course: Course, feature: str) -> Iterator[float]:
    """`oss`, `sharded`, `sharded-zeros`, `sharded-unbucketed`; `pipe`, in one process."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if feature == "pipe":
        model = Pipe(stages(course, 2), balance=[1, 1], devices=["cpu", "cpu"], chunks=4, checkpoint="never")
        optimizer = course.optimizer(model.parameters())
    else:
        whole = course.model()
        defaults = course.optimizer(whole.parameters()).defaults
        options = {key: defaults[key] for key in ("lr", "betas", "weight_decay")}
        optimizer = OSS(whole.parameters(), optim=torch.optim.AdamW, **options)
        if feature == "oss":
            model = DistributedDataParallel(whole)
        else:
            size = 0 if feature == "sharded-unbucketed" else 2**23
            model = ShardedDataParallel(whole, optimizer, reduce_buffer_size=size)
    for step in range(course.steps):
        tokens, targets = course.read(step, rank, ranks)
        loss = course.loss(model(tokens), targets)
        optimizer.zero_grad(set_to_none=feature != "sharded-zeros")
        loss.backward()
        optimizer.step()
        yield loss.item()


def stages(course: Course, count: int) -> nn.Sequential:
    """The model as a sequence of stages."""
    pieces = pieces_of(course.config, count)
    parts = [partial(stage_of, blocks=piece) for piece in pieces]
    return nn.Sequential(*(create(part, course.config, course.seed, dtype=course.dtype) for part in parts))
