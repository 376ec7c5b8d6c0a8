"""Backward in two halves gives what backward gives, and the second half waits until it is asked for."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from reference.errors import BadInput
from reference.memory.fast.fused import LARGE
from reference.memory.saved import saved_tensors, total
from reference.pipeline_parallel.split_backward import DeferredWeightGradients, split_backward


def model() -> nn.Sequential:
    """Linear layers, one with a bias, and a norm."""
    torch.manual_seed(3)
    layers = nn.Linear(4, 6, bias=False), nn.Tanh(), nn.RMSNorm(6), nn.Linear(6, 5), nn.Linear(5, 2, bias=False)
    return nn.Sequential(*layers).double()


def inputs(number: int) -> Tensor:
    """A micro-batch."""
    generator = torch.Generator().manual_seed(number)
    return torch.randn(3, 7, 4, dtype=torch.float64, generator=generator).requires_grad_()


def splitting(net: nn.Module) -> DeferredWeightGradients:
    """Where the weight gradients of a model wait from now on."""
    split_backward(net, deferred := DeferredWeightGradients())
    return deferred


def halves(net: nn.Module, deferred: DeferredWeightGradients, numbers: tuple[int, ...]) -> list[Tensor]:
    """First halves of some micro-batches, then all second halves. Returns the gradients of inputs."""
    xs = [inputs(number) for number in numbers]
    for number, x in zip(numbers, xs, strict=True):
        with deferred.defer(number):
            net(x).square().sum().backward()
    for number in numbers:
        deferred.compute(number)
    return [x.grad for x in xs]


def test_both_halves_are_backward() -> None:
    whole, split = model(), model()
    xs = [inputs(number) for number in (0, 1)]
    for x in xs:
        whole(x).square().sum().backward()
    found = halves(split, splitting(split), (0, 1))
    for x, gradient in zip(xs, found, strict=True):
        torch.testing.assert_close(gradient, x.grad, rtol=1e-13, atol=0)
    for (name, expected), parameter in zip(whole.named_parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-12, atol=1e-14, msg=name)


def test_weights_wait_and_everything_else_does_not() -> None:
    net = model()
    deferred, x = splitting(net), inputs(0)
    with deferred.defer(0):
        net(x).sum().backward()
    waiting = [name for name, parameter in net.named_parameters() if parameter.grad is None]
    assert waiting == ["0.weight", "3.weight", "4.weight"] and x.grad is not None
    deferred.compute(0)
    assert all(parameter.grad is not None for parameter in net.parameters())


class Doubled(nn.Linear):
    """A linear layer with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        """Twice the product."""
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Doubled(4, 2, bias=False),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 2, bias=False)),
        lambda: nn.utils.spectral_norm(nn.Linear(4, 2, bias=False)),
    ],
    ids=["a subclass", "a weight that is computed", "a weight that a hook computes"],
)
def test_linear_layers_of_another_kind_do_not_wait(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(3)
    whole = nn.Sequential(make()).double()
    split = deepcopy(whole)
    expected = whole(inputs(0))
    expected.square().sum().backward()
    deferred = splitting(split)
    with deferred.defer(0):
        found = split(inputs(0))
        found.square().sum().backward()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    for one, other in zip(whole.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-13, atol=0)


def test_nothing_is_kept_under_a_key_that_is_taken() -> None:
    net = model()
    deferred = splitting(net)
    with deferred.defer(0):
        net(inputs(0)).sum().backward()
    with (
        pytest.raises(BadInput, match=r"weight gradients of 0 are waiting already: compute\(0\) first"),
        deferred.defer(0),
    ):
        net(inputs(1)).sum().backward()
    deferred.forget()
    with deferred.defer(0):
        net(inputs(1)).sum().backward()
    deferred.compute(0)


def test_hooks_hear_of_weights_when_they_are_done() -> None:
    net, heard = model(), []
    deferred = splitting(net)
    net[0].weight.register_post_accumulate_grad_hook(lambda parameter: heard.append(parameter.grad.shape))
    with deferred.defer(0):
        net(inputs(0)).sum().backward()
    assert heard == []
    deferred.compute(0)
    assert heard == [torch.Size([6, 4])]


def test_backward_that_is_not_split_is_as_ever() -> None:
    whole, split = model(), model()
    splitting(split)
    for net in (whole, split):
        net(inputs(0)).square().sum().backward()
    for one, other in zip(whole.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-13, atol=1e-15)


def wide() -> nn.Sequential:
    """A layer that is large, between two that are not."""
    torch.manual_seed(3)
    layers = [
        nn.Linear(inside, outside, bias=False) for inside, outside in ((4, LARGE // 64), (LARGE // 64, 64), (64, 2))
    ]
    return nn.Sequential(*layers).double()


def test_gradients_of_large_weights_add_up_where_they_are() -> None:
    whole, split = wide(), wide()
    splitting(split).splits = False
    places = set()
    for number in range(3):
        for net in (whole, split):
            net(inputs(number)).square().sum().backward()
        places.add(split[1].weight.grad.data_ptr())
    for one, other in zip(whole.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-12, atol=1e-14)
    assert len(places) == 1


def test_a_large_weight_that_is_frozen_makes_nothing_learn() -> None:
    net = wide()
    splitting(net).splits = False
    net.requires_grad_(False)
    assert not net(inputs(0).detach()).requires_grad


def test_autocast_is_left_to_torch() -> None:
    net = wide().float()
    splitting(net).splits = False
    with torch.autocast("cpu", torch.bfloat16):
        y = net(inputs(0).float())
    y.float().sum().backward()
    assert y.dtype is torch.bfloat16 and net[1].weight.grad.dtype is torch.float32


@pytest.mark.parametrize("make", [model, wide])
def test_it_keeps_no_more_for_backward_than_torch(make: Callable[[], nn.Module]) -> None:
    whole, split = make(), make()
    splitting(split)
    x = inputs(0)
    kept = [total(saved_tensors(lambda net=net: net(x), but=[x, *net.parameters()])) for net in (whole, split)]
    assert kept[0] == kept[1]


def test_a_frozen_weight_has_nothing_to_wait_for() -> None:
    net = model()
    net[0].weight.requires_grad = False
    halves(net, splitting(net), (0,))
    assert net[0].weight.grad is None and net[4].weight.grad is not None


def test_what_was_not_begun_cannot_be_finished() -> None:
    with pytest.raises(KeyError):
        DeferredWeightGradients().compute(0)
