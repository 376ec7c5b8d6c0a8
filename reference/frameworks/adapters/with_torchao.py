"""torchao: optimizers whose moments have 8 or 4 bits, and matrices that are multiplied in float8, under DDP.

Dettmers et al. 2021, arXiv:2110.02861 (8 bits); Micikevicius et al. 2022, arXiv:2209.05433 (float8). Fewer bits are
another training: the bound of each says how far 20 steps may lead away from float32.
"""

from collections.abc import Iterator

import torch.distributed as dist
import torchao.optim
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

from reference.frameworks.plain import Course

OPTIMIZERS = {"adamw8bit": "AdamW8bit", "adamw4bit": "AdamW4bit", "adamwfp8": "AdamWFp8"}


def losses(course: Course, feature: str) -> Iterator[float]:
    """One of `OPTIMIZERS`, or `float8`: AdamW, and linear layers in float8, emulated."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = course.model()
    if feature == "float8":
        model = convert_to_float8_training(model, config=Float8LinearConfig(emulate=True), module_filter_fn=is_linear)
    model = DistributedDataParallel(model)
    optimizer = course.optimizer(model.parameters())
    if feature in OPTIMIZERS:
        options = {key: optimizer.defaults[key] for key in ("lr", "betas", "weight_decay")}
        optimizer = getattr(torchao.optim, OPTIMIZERS[feature])(model.parameters(), **options)
    for step in range(course.steps):
        tokens, targets = course.read(step, rank, ranks)
        loss = course.loss(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def is_linear(module: nn.Module, name: str) -> bool:
    """Which layers are multiplied in float8: those of blocks, not the head."""
    return type(module) is nn.Linear and "blocks" in name
