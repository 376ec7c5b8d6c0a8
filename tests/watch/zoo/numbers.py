"""Numbers that are no numbers, and gradients that never arrive: rows 44 and 45 of the bug zoo."""

import torch
import torch.distributed as dist
from torch import nn

from tests.watch.cases import Outcome, mistake


@mistake(
    row=44,
    ranks=2,
    error="NumericsError",
    blames=(1,),
    says=["(?i)nan", "all_reduce"],
    plain=Outcome.PASSES,
)
def mean_over_no_samples():
    """Zero divided by zero on the rank that drew nothing, NaN on every rank a moment later."""
    losses = torch.ones(4 if dist.get_rank() == 0 else 0)
    mean = losses.mean()
    dist.all_reduce(mean)  # <- here


@mistake(
    row=44,
    ranks=3,
    error="NumericsError",
    blames=(2,),
    says=["(?i)nan", "rank 2", "reduce"],
    plain=Outcome.PASSES,
)
def nan_in_the_gradient_of_one_rank():
    weight = torch.ones(4, requires_grad=True)
    x = torch.full((4,), 0.0 if dist.get_rank() == 2 else 1.0)
    (weight * x).norm().sqrt().backward()
    dist.all_reduce(weight.grad)  # <- here


@mistake(
    row=44,
    ranks=2,
    error="NumericsError",
    blames=(0,),
    says=["(?i)nan", "send"],
    plain=Outcome.PASSES,
)
def nan_in_a_message():
    activation = torch.tensor([-1.0, 4.0])
    if dist.get_rank() == 0:
        dist.send(activation.sqrt(), dst=1)  # <- here
    else:
        dist.recv(activation, src=0)


@mistake(
    row=44,
    ranks=2,
    error="NumericsError",
    blames=(0, 1),
    says=["(?i)inf", "all_reduce", "float16"],
    plain=Outcome.PASSES,
)
def sum_overflows_in_half_precision():
    """40,000 on each of two ranks; the largest float16 is 65,504."""
    gradient = torch.full((4,), 40_000.0, dtype=torch.float16)
    dist.all_reduce(gradient)  # <- here


@mistake(
    row=44,
    ranks=2,
    error="NumericsError",
    blames=(1,),
    says=["(?i)inf", "all_reduce"],
    plain=Outcome.PASSES,
)
def infinity_in_a_sum():
    probability = torch.tensor([0.5 if dist.get_rank() == 0 else 0.0])
    loss = -probability.log()
    dist.all_reduce(loss)  # <- here


@mistake(
    row=44,
    ranks=2,
    error="NumericsError",
    blames=(0,),
    says=["(?i)nan", "broadcast"],
    plain=Outcome.PASSES,
)
def broadcasts_weights_that_have_diverged():
    weights = torch.tensor([1.0, float("nan")]) if dist.get_rank() == 0 else torch.zeros(2)
    dist.broadcast(weights, src=0)  # <- here


@mistake(
    row=44,
    ranks=2,
    error="NumericsError",
    blames=(1,),
    says=["(?i)nan", "all_gather"],
    plain=Outcome.PASSES,
)
def uninitialised_memory_is_gathered():
    mine = torch.ones(4) if dist.get_rank() == 0 else torch.full((4,), float("nan"))
    everybodys = [torch.empty(4), torch.empty(4)]
    dist.all_gather(everybodys, mine)  # <- here


@mistake(
    row=45,
    ranks=2,
    error="GradientError",
    blames=(0, 1),
    says=["(?i)gradient", r"encoder\.weight|encoder|weight", "all_gather"],
    plain=Outcome.PASSES,
)
def contrastive_loss_over_gathered_features():
    """`all_gather` hands out copies without history, so that the encoder learns nothing."""
    torch.manual_seed(0)
    encoder, temperature = nn.Linear(4, 4, bias=False), nn.Parameter(torch.ones(()))
    features = encoder(torch.randn(2, 4))
    everybodys = [torch.zeros(2, 4) for _ in range(dist.get_world_size())]
    dist.all_gather(everybodys, features)  # <- here
    logits = temperature * torch.cat(everybodys)
    logits.logsumexp(dim=0).sum().backward()  # <- here
    torch.optim.SGD([*encoder.parameters(), temperature], lr=0.1).step()


@mistake(
    row=45,
    ranks=2,
    error="GradientError",
    blames=(0, 1),
    says=["(?i)gradient", "embedding", "all_to_all"],
    plain=Outcome.PASSES,
)
def tokens_dispatched_to_experts_without_autograd():
    embedding, expert = nn.Embedding(8, 4), nn.Linear(4, 4)
    tokens = embedding(torch.arange(4))
    mine = torch.empty(4, 4)
    dist.all_to_all_single(mine, tokens.contiguous())  # <- here
    expert(mine).sum().backward()  # <- here


@mistake(
    row=45,
    ranks=2,
    error="GradientError",
    blames=(0, 1),
    says=["(?i)gradient", r"layer\.weight|layer|weight", "reduce_scatter"],
    plain=Outcome.PASSES,
)
def partial_outputs_scattered_along_the_sequence():
    """What follows the reduce-scatter learns, what comes before it does not."""
    layer, head = nn.Linear(4, 4, bias=False), nn.Linear(4, 1)
    partial = layer(torch.ones(2, 4))
    mine = torch.empty(1, 4)
    dist.reduce_scatter(mine, list(partial.split(1)))  # <- here
    head(mine).sum().backward()  # <- here
