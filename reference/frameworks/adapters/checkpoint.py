"""torch.distributed.checkpoint and torchrun's restarts: a run that is cut in two, and continues as if it were not.

`dcp` trains half of the steps with `fully_shard` and saves; then it loads into a model whose matrices DTensor shares
out, which is another layout, and trains the rest. `elastic` loses a rank in the middle: torchrun ends the others and
starts all again (`--max-restarts`), and they load what was saved.
"""

import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh

from reference.frameworks.plain import Course

from .fsdp import sharded
from .tensor import split


def losses(course: Course, feature: str) -> Iterator[float]:
    """`dcp` or `elastic`. The course says in which folder to save."""
    half = course.steps // 2
    if feature == "elastic":
        yield from with_restart(course, half)
        return
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = sharded(course.model(), "fsdp2")
    optimizer = course.optimizer(model.parameters())
    for step in range(half):
        yield train_step(course, model, optimizer, step, rank, ranks)
    save(course.folder, model, optimizer)
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
    model = split(course.model(), mesh, slices=False)
    optimizer = course.optimizer(model.parameters())
    load(course.folder, model, optimizer)
    for step in range(half, course.steps):
        yield train_step(course, model, optimizer, step, 0, 1)


def with_restart(course: Course, half: int) -> Iterator[float]:
    """Saved once, at half of the way; there the last rank dies, once."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = sharded(course.model(), "fsdp2")
    optimizer = course.optimizer(model.parameters())
    kept, is_second_life = os.path.join(course.folder, f"{rank}.pt"), os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
    done: list[float] = []
    if is_second_life:
        load(course.folder, model, optimizer)
        done = torch.load(kept)
        yield from done
    for step in range(len(done), course.steps):
        if step == half and rank == ranks - 1 and not is_second_life:
            os._exit(1)  # as a machine that loses power
        done.append(train_step(course, model, optimizer, step, rank, ranks))
        if step == half - 1:
            save(course.folder, model, optimizer)
            torch.save(done, kept)
            dist.barrier()  # all have saved before one dies
        yield done[-1]


def train_step(
    course: Course, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, part: int, parts: int
) -> float:
    """Forward, backward, update."""
    tokens, targets = course.read(step, part, parts)
    loss = course.loss(model(tokens), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def save(folder: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Each rank writes its own parts."""
    of_model, of_optimizer = get_state_dict(model, optimizer)
    dcp.save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=folder)


def load(folder: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Each rank reads what its own layout asks for."""
    of_model, of_optimizer = get_state_dict(model, optimizer)
    state = {"model": of_model, "optimizer": of_optimizer}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
