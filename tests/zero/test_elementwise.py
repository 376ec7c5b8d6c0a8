"""An optimizer may be given shards if it treats each element by itself, and an experiment tells."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import Optimizer

from reference.errors import BadInput
from reference.zero.lab.elementwise import elementwise, require_elementwise


class PerTensor(Optimizer):
    """SGD whose step depends on the whole tensor, by a rule."""

    def __init__(self, parameters: list[nn.Parameter], lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad * self.trust(parameter), alpha=group["lr"])

    def trust(self, parameter: nn.Parameter) -> Any:
        raise NotImplementedError


class Lars(PerTensor):
    """You et al. 2017: as long a step as the weight is long."""

    def trust(self, parameter: nn.Parameter) -> Any:
        return parameter.norm() / parameter.grad.norm()


class Clipped(PerTensor):
    """Clips each tensor's gradient; small ones it leaves alone."""

    def trust(self, parameter: nn.Parameter) -> Any:
        return (20 / parameter.grad.norm()).clamp(max=1.0)


class NoDecayOfVectors(PerTensor):
    """Shrinks matrices only, as many training scripts do: a shard is a vector."""

    def trust(self, parameter: nn.Parameter) -> Any:
        return 1 + 0.1 * (parameter.dim() > 1)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (optim.SGD, {"lr": 0.1}),
        (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        (optim.Adam, {}),
        (optim.Adam, {"capturable": True}),
        (optim.AdamW, {"amsgrad": True, "weight_decay": 0.5}),
        (optim.AdamW, {"fused": True}),
        (optim.AdamW, {"foreach": True}),
        (optim.NAdam, {}),
        (optim.RAdam, {}),
        (optim.Adamax, {}),
        (optim.Adadelta, {}),
        (optim.Adagrad, {}),
        (optim.RMSprop, {"centered": True, "momentum": 0.5}),
        (optim.Rprop, {}),
        (optim.ASGD, {}),
        (partial(optim.AdamW, lr=0.1), {}),
    ],
    ids=str,
)
def test_most_optimizers_of_torch_are_elementwise(optimizer: type[Optimizer], options: dict[str, Any]) -> None:
    assert elementwise(optimizer, **options)
    require_elementwise(optimizer, **options)


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        (optim.Adafactor, "another update"),
        (optim.Muon, "2D"),
        (optim.SparseAdam, "dense gradients"),
        (optim.LBFGS, "closure"),
        (Lars, "another update"),
        (Clipped, "another update"),
        (NoDecayOfVectors, "another update"),
    ],
)
def test_an_optimizer_that_looks_at_the_tensor_is_refused(optimizer: type[Optimizer], reason: str) -> None:
    assert not elementwise(optimizer)
    with pytest.raises(BadInput, match=rf"^{optimizer.__name__} cannot update shards: .*{reason}.*AdamW") as refusal:
        require_elementwise(optimizer)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("options", [{"lr": -1.0}, {"momentum": 0.9}])
def test_options_that_do_not_work_are_an_error_of_their_own(options: dict[str, float]) -> None:
    with pytest.raises(BadInput, match=r"AdamW cannot be made with these options: .*(-1\.0|momentum)"):
        require_elementwise(optim.AdamW, **options)


def test_the_experiment_is_a_few_steps_and_leaves_no_trace() -> None:
    made, taken = [], []

    class Counted(optim.AdamW):
        def __init__(self, parameters: list[nn.Parameter]) -> None:
            super().__init__(parameters)
            made.append(sum(parameter.numel() for parameter in parameters))

        def step(self) -> None:
            super().step()
            taken.append(self)

    torch.manual_seed(1)
    state = torch.get_rng_state()
    assert elementwise(Counted)
    assert made == [24, 24, 7, 17]  # the first one shows whether the options work
    assert len(taken) == 3 * 3
    assert torch.equal(torch.get_rng_state(), state)
