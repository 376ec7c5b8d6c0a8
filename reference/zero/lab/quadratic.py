"""A loss with a gradient of one line, where a puzzle or a picture is about which rank keeps what, not about the model.

Every rank has one sample, a and b, and the loss L(w) = ½ (a·w - b)². The losses of all ranks add up, and so do their
gradients, (a·w - b) a.
"""

from collections.abc import Iterator, Sequence

from torch import Tensor


def gradient(w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Of one rank's loss, (parameters,).

    Args:
        w, a: (parameters,)
        b: a scalar.
    """
    return (a.dot(w) - b) * a


def layer_by_layer(w: Sequence[Tensor], a: Sequence[Tensor], b: Tensor) -> Iterator[tuple[int, Tensor]]:
    """(layer, its gradient), one layer after another, the last first, as a backward pass finds them.

    Args:
        w, a: of each layer, (its parameters,).
        b: a scalar.
    """
    error = sum(own.dot(weights) for own, weights in zip(a, w, strict=True)) - b
    for layer in reversed(range(len(a))):
        yield layer, error * a[layer]
