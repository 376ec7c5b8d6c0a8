"""Steps of a form, right and wrong, one action after the other; and what a form says of what it refuses."""

import contextlib
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from reference.data_parallel.gradient_sync import DataParallel
from reference.errors import BadInput
from reference.memory.precision import PRECISIONS

from .training import Make


def complaint(group: ProcessGroup, train: Callable[..., object], *arguments: object) -> str:
    """What an error said that training had to end with."""
    try:
        train(group, *arguments)
    except RuntimeError as error:
        return str(error)
    return ""


def begun(model: nn.Module, form: DataParallel) -> None:
    with form.micro_batch(last=False):
        model(torch.ones(1, 3)).sum().backward()


def ended(model: nn.Module, form: DataParallel) -> None:
    with form.micro_batch(last=True):
        model(torch.ones(1, 3)).sum().backward()


def collected(model: nn.Module, form: DataParallel) -> None:
    ended(model, form)
    form.reduce_gradients()


def failed(model: nn.Module, form: DataParallel) -> None:
    """Half of backward has run."""
    with contextlib.suppress(ZeroDivisionError), form.micro_batch(last=True):
        hook = model[0].register_full_backward_hook(lambda *_: 1 / 0)
        model(torch.ones(1, 3).requires_grad_()).sum().backward()
    hook.remove()


def publish(model: nn.Module, form: DataParallel) -> None:
    form.end_step()


def collect(model: nn.Module, form: DataParallel) -> None:
    form.reduce_gradients()


def alone(model: nn.Module, form: DataParallel) -> None:
    model(torch.ones(1, 3)).sum().backward()


def through(group: ProcessGroup, make: Make, actions: Sequence[Callable]) -> list[float]:
    """Some actions, one after the other, and what gradient the first master has then."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    model(torch.ones(1, 3)).sum().backward()  # a gradient that is there before
    form = make(model, group)
    for action in actions:
        action(model, form)
    return form.parts[0].master.grad.flatten().tolist()


NO_STEPS = (
    ((collect,), "no micro-batch of this step was the last"),
    ((alone, collect), "no micro-batch of this step was the last"),
    ((begun, collect), "no micro-batch of this step was the last"),
    ((alone, begun), "gradients came before the first micro-batch of this step"),
    ((alone, ended), "gradients came before the first micro-batch of this step"),
    ((collected, publish, alone, ended), "gradients came before the first micro-batch of this step"),
    ((ended, ended), "the last micro-batch of this step is over"),
    ((ended, begun), "the last micro-batch of this step is over"),
    ((ended, alone), "or one after it: its gradients have already been sent off"),
    ((collected, alone), "or one after it: its gradients have already been sent off"),
    ((collected, collect), r"end_step\(\) ends a step"),
    ((collected, ended), r"end_step\(\) ends a step"),
    ((failed, ended), "a micro-batch is open, or has failed"),
    ((failed, collect), "a micro-batch is open, or has failed"),
)


class Phases(nn.Module):
    """A complex parameter, and one of integers, which cannot learn."""

    def __init__(self, learns: bool) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64), requires_grad=learns)
        self.codes = nn.Parameter(torch.tensor([257, -3]), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.phase[self.codes % 2] * x


def refusal(group: ProcessGroup, make: Make) -> str:
    """Of a form that is to train complex numbers."""
    with pytest.raises(BadInput) as error:
        make(Phases(learns=True), group, precision=PRECISIONS["bf16"])
    return str(error.value)


def frozen(group: ProcessGroup, make: Make) -> list[torch.dtype]:
    """In which dtypes a form leaves what it may not round."""
    model = Phases(learns=False)
    make(model, group, precision=PRECISIONS["bf16"])
    assert model.codes.tolist() == [257, -3]
    return [parameter.dtype for parameter in model.parameters()]
