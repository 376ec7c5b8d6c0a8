"""Buckets: gradients side by side in flat buffers, handed on while backward still runs.

Backward finishes the last layer first. A hook on each parameter copies its gradient into a bucket as soon as it is
known, and the bucket is launched (all-reduced, reduce-scattered) when it is full, while the layers before it are still
being computed (Li et al. 2020, "PyTorch distributed", sec. 3.2).

Ranks may finish their buckets in different orders, but all must launch them in the same one, since the k-th collective
of one rank meets the k-th of the others. So a bucket waits until those before it have been launched.
"""

import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from reference.memory.fast.fused import GradientAccumulator

from .flat_layout import FlatLayout


class Bucket:
    """Gradients of some parameters in one flat buffer, which exists while there is something in it."""

    def __init__(self, parameters: Sequence[nn.Parameter], dtype: torch.dtype, shards: int = 1) -> None:
        """Args:
        parameters: whose gradients go in here, in this order.
        dtype: in which gradients are added up and travel.
        shards: the buffer's length is a multiple of this.
        """
        self.parameters = tuple(parameters)
        self.layout = FlatLayout.of(self.parameters, shards)
        self.dtype = dtype
        self.flat: Tensor | None = None
        self._places: list[Tensor] = []  # of each gradient within it, as views
        self.filled: set[int] = set()  # which parameters have brought a gradient

    @torch.no_grad()  # a backward that makes a graph, for a gradient penalty, makes none of this
    def add(self, index: int, gradient: Tensor) -> None:
        """Add to the gradient of parameter `index`: a dense one, or the sparse one of an embedding."""
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        if index in self.filled:
            self._place(index).add_(gradient)
        else:
            self._place(index).copy_(gradient)
            self.filled.add(index)

    def add_product(self, index: int, gradient: Tensor, x: Tensor) -> None:
        """Add dyᵀ x to the gradient of parameter `index`."""
        if gradient.dtype != self.dtype:
            self.add(index, gradient.T @ x)
            return
        place = self._place(index)
        torch.addmm(place, gradient.T, x, beta=int(index in self.filled), out=place)
        self.filled.add(index)

    def complete(self) -> Tensor:
        """The whole buffer; zeros for parameters that have brought nothing."""
        for index in range(len(self.parameters)):
            if index not in self.filled:
                self._place(index).zero_()
        return self.flat

    def gradient(self, index: int) -> Tensor:
        """The gradient of parameter `index`, as a view."""
        return self._places[index]

    def release(self) -> None:
        """Give the memory back."""
        self.flat, self._places = None, []
        self.filled.clear()

    def _place(self, index: int) -> Tensor:
        if self.flat is None:
            self.flat = self.parameters[0].new_empty(self.layout.numel, dtype=self.dtype, requires_grad=False)
            self.flat[self.layout.starts[-1] :].zero_()  # padding is added up, too
            self._places = self.layout.views(self.flat)
        return self._places[index]


class Buckets:
    """Moves each gradient into its bucket when it is known, and launches buckets in order.

    Args:
        buckets: in the order in which they are launched: that in which backward fills them.
        launch: starts the reduction of a full bucket.
    """

    def __init__(self, buckets: Sequence[Bucket], launch: Callable[[Bucket], None]) -> None:
        self.buckets = tuple(buckets)
        self._launch = launch
        self._due: list[set[int]] = []  # what each bucket still waits for, in the backward that launches them
        self._launched = 0
        self._closed = False  # no gradient may come: all are in flight
        for number, bucket in enumerate(self.buckets):
            for index, parameter in enumerate(bucket.parameters):
                parameter.grad = None  # from before; it would be added to the first
                parameter.register_post_accumulate_grad_hook(Hook(self, number, index))

    @property
    def filled(self) -> bool:
        """Whether a gradient has come."""
        return any(bucket.filled for bucket in self.buckets)

    def expect(self) -> None:
        """The next backward is the one to launch buckets from."""
        self._due = [set(range(len(bucket.parameters))) for bucket in self.buckets]
        self._launched = 0

    def close(self, buckets: Sequence[Bucket]) -> None:
        """These wait for nothing more in this backward: what is missing was not used."""
        for bucket, due in zip(self.buckets, self._due, strict=False):  # nothing is due outside such a backward
            if bucket in buckets:
                due.clear()
        self._launch_the_full()

    def flush(self, last: bool) -> None:
        """Launch what is left. This backward is over, and if it is the `last`, no gradient may come until `forget`."""
        self.close(self.buckets)
        self._due, self._closed = [], last

    def forget(self) -> None:
        """Drop what has come, and begin a step."""
        self._due, self._closed = [], False
        for bucket in self.buckets:
            bucket.filled.clear()

    def take(self, number: int, index: int, parameter: nn.Parameter) -> None:
        """Move the gradient of a parameter into its place in bucket `number`."""
        self._require_open(number)
        with torch._C.DisableTorchFunctionSubclass():  # a subclass would be asked about its gradient, by way of Python
            gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            raise RuntimeError("another form has taken this gradient: a model has one form of data parallelism")
        self.buckets[number].add(index, gradient)
        self._has_come(number, index)

    def take_product(self, number: int, index: int, gradient: Tensor, x: Tensor) -> None:
        """Add dyᵀ x to the gradient of a parameter, in its place in bucket `number`."""
        self._require_open(number)
        self.buckets[number].add_product(index, gradient, x)
        self._has_come(number, index)

    def _require_open(self, number: int) -> None:
        if self._closed or (self._due and number < self._launched):
            raise RuntimeError(
                "a second backward in the last micro-batch, or one after it: its gradients have already been sent off "
                "(if two checkpoints share a module: use_reentrant=False)"
            )

    def _has_come(self, number: int, index: int) -> None:
        if self._due:
            self._due[number].discard(index)
            self._launch_the_full()

    def _launch_the_full(self) -> None:
        while self._launched < len(self._due) and not self._due[self._launched]:
            self._launched += 1
            self._launch(self.buckets[self._launched - 1])


class Hook(GradientAccumulator):
    """Of a parameter with a place in bucket `number`.

    Weak, since the garbage collector can't look into autograd: model and buckets would live forever.
    """

    def __init__(self, buckets: Buckets, number: int, index: int) -> None:
        self._buckets, self._place = weakref.ref(buckets), (number, index)

    @property
    def accumulates(self) -> bool:
        """As long as there are buckets."""
        return self._buckets() is not None

    def __call__(self, weight: nn.Parameter) -> None:
        """Move the gradient into its place."""
        if self.accumulates:
            self._buckets().take(*self._place, weight)

    def add_product(self, gradient: Tensor, x: Tensor) -> None:
        """Add dyᵀ x there."""
        self._buckets().take_product(*self._place, gradient, x)


def in_order_of_use(parameters: Sequence[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Parameters cut into buckets of about `bucket_bytes`, the last first: backward goes from the last to the first.

    A model registers its parameters in about the order in which forward uses them; that is all that is known before
    the first step, and it is good enough.
    """
    plan: list[list[nn.Parameter]] = []
    filled = 0
    for parameter in reversed(parameters):
        if not plan or filled + parameter.nbytes > bucket_bytes:
            plan.append([])
            filled = 0
        plan[-1].append(parameter)
        filled += parameter.nbytes
    return plan
