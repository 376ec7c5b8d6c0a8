"""An optimizer that treats each element by itself, in two lines."""

from torch import Tensor


def momentum_step(weight: Tensor, momentum: Tensor, gradient: Tensor, rate: float) -> None:
    """A step of gradient descent with momentum, in place.

    Args:
        weight, momentum: of one shape.
        gradient: of the same shape.
        rate: of learning.
    """
    momentum.mul_(0.9).add_(gradient)
    weight.sub_(rate * momentum)
