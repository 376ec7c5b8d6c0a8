"""All orders; and a small GPT in a pipeline, and in one process."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.mesh import Mesh
from reference.models import GPT, GPTConfig, create, token_loss
from reference.oracle import alone
from reference.pipeline_parallel.channels import channels_of
from reference.pipeline_parallel.orders import breadth_first, gpipe, interleaved, interleaved_even, naive, one_f_one_b
from reference.pipeline_parallel.run import Pipeline
from reference.pipeline_parallel.schedule import Schedule
from reference.pipeline_parallel.split_backward import DeferredWeightGradients, split_backward
from reference.pipeline_parallel.stages import stages_of
from reference.zero_bubble.building_blocks import one_f_one_b_v, v_half, v_min
from reference.zero_bubble.orders import dual_pipe, dual_pipe_v, zb_h1, zb_h2, zb_v

Make = Callable[[int, int], Schedule]


class Order(NamedTuple):
    """An order, and how many stages of the model there are for each rank."""

    make: Make
    chunks: int = 1


STRAIGHT = {"naive": Order(naive), "GPipe": Order(gpipe), "1F1B": Order(one_f_one_b)}
LOOPED = {
    f"{name} {v}": Order(partial(make, v=v), v)
    for name, make in {
        "interleaved": interleaved,
        "interleaved-even": interleaved_even,
        "breadth-first": breadth_first,
    }.items()
    for v in (1, 2, 3, 4)
}
SPLIT = {
    "zb_h1": Order(zb_h1),
    "zb_h2": Order(zb_h2),
    "zb_v": Order(zb_v, 2),
    "1f1b_v": Order(one_f_one_b_v, 2),
    "v_half": Order(v_half, 2),
    "v_min": Order(v_min, 2),
    "dual_pipe_v": Order(dual_pipe_v, 2),
    "dual_pipe": Order(dual_pipe),  # each of them twice
}
"""Those that split backward, or fold a pipeline back into a V."""

ALL = STRAIGHT | LOOPED | SPLIT
CONFIG = GPTConfig(layers=8, width=8, heads=2, kv_heads=1, hidden=12, vocabulary=17)
STEPS = 2  # the second knows the shapes already

Gradients = dict[str, Tensor]


def batch(m: int, step: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets of m micro-batches: [m, 2, 5] each."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(CONFIG.vocabulary, (m, 2, 6), generator=generator)
    return tokens[..., :-1], tokens[..., 1:]


def one_process(m: int) -> tuple[float, Gradients]:
    """Loss and gradients of the last step's batch."""
    model = create(GPT, CONFIG, dtype=torch.float64)

    def loss(step: int) -> Tensor:
        tokens, targets = batch(m, step)
        return token_loss(model(tokens.flatten(0, 1)), targets.flatten(0, 1), targets.numel())

    *_, last = alone(model, None, loss, STEPS)
    return last.loss.item(), last.gradients


def pipelined(make: Make, ranks: int, m: int, with_channels: bool = False) -> tuple[float, Gradients] | None:
    """This rank's part of the same, on the first `ranks` ranks; with a group for each channel, these must be all."""
    group = dist.new_group(list(range(ranks)))
    if dist.get_rank() >= ranks:
        return None
    schedule = make(ranks, m)
    by_number = stages_of(CONFIG, schedule, dist.get_rank(), dtype=torch.float64)
    stages = nn.ModuleList(by_number.values())
    device = torch.device("cpu")
    channels = channels_of(group, Mesh({"pp": ranks}), schedule, device) if with_channels else None
    split_backward(stages, deferred := DeferredWeightGradients())
    pipeline = Pipeline(schedule, by_number, group, device, deferred=deferred, channels=channels)
    for step in range(STEPS):
        stages.zero_grad()
        tokens, targets = batch(m, step)
        loss = pipeline.step(
            lambda k, tokens=tokens: (tokens[k],),
            lambda logits, k, targets=targets: token_loss(logits, targets[k], targets.numel()),
        )
    found = [pair for stage in stages for pair in stage.named_parameters()]
    return 0.0 if loss is None else loss.item(), {name: p.grad for name, p in found if p.grad is not None}


def together(parts: list[tuple[float, Gradients] | None]) -> tuple[float, Gradients]:
    """Loss and gradients of all ranks. What two ranks have copies of adds up."""
    known = [part for part in parts if part is not None]
    gradients: Gradients = {}
    for _, found in known:
        for name, gradient in found.items():
            gradients[name] = gradients[name] + gradient if name in gradients else gradient
    return sum(loss for loss, _ in known), gradients
