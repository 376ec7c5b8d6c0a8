"""Drives of the chapter `zero_bubble`: they stand for the pipeline around a learner's function."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, UntypedStorage

from reference.memory.storages import Storages

from .pipeline_parallel import ORDERS, in_order, written

Finish = Callable[[], None]
"""Computes a weight's gradient that was put off."""


class _Observed(Storages):
    """Counts matrix products, and the bytes of what is made while it looks and still held, whoever made it."""

    def __init__(self, outside: Iterable[Tensor]) -> None:
        super().__init__()
        self.products = self.held = 0
        self._sizes: dict[int, int] = {}
        self.before(outside)

    def before(self, arguments: Iterable[Tensor]) -> None:
        for tensor in arguments:
            self.see(tensor.untyped_storage())

    def born(self, key: int, storage: UntypedStorage) -> None:
        self._sizes[key] = storage.nbytes()
        self.held += storage.nbytes()

    def died(self, key: int) -> None:
        self.held -= self._sizes.pop(key, 0)

    def watching(self, file: str) -> bool:
        """Everything counts: the drive's own layers, too."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.products += function.__name__.partition(".")[0] in ("mm", "addmm", "bmm", "baddbmm", "mv", "dot")
        return super().__torch_dispatch__(function, types, args, kwargs)


class _Layers:
    """Layers that a learner's function computes, with tanh between, in micro-batches whose backward has two halves."""

    def __init__(self, layer: Callable[..., Tensor], weights: Sequence[Tensor], observed: _Observed) -> None:
        self.layer, self.weights, self.observed = layer, [each.requires_grad_() for each in weights], observed
        self.outputs: dict[int, Tensor] = {}
        self.put_off: dict[int, list[Finish]] = {}
        self.products: dict[str, list[int]] = {"F": [], "I": [], "W": []}

    def run(self, kind: str, micro_batch: int, x: Tensor, upstream: Tensor) -> None:
        """One action, and how many products it takes."""
        before = self.observed.products
        {"F": self.forward, "I": self.gradient_of_input, "W": self.finish}[kind](micro_batch, x, upstream)
        self.products[kind].append(self.observed.products - before)

    def forward(self, micro_batch: int, x: Tensor, upstream: Tensor) -> None:
        finishes = self.put_off[micro_batch] = []
        for number, weight in enumerate(self.weights):
            x = self.layer(x=x.tanh() if number else x, weight=weight, later=finishes.append)
        self.outputs[micro_batch] = x

    def gradient_of_input(self, micro_batch: int, x: Tensor, upstream: Tensor) -> None:
        output = self.outputs.pop(micro_batch)
        if isinstance(output, Tensor) and output.shape == upstream.shape and output.requires_grad:
            (output * upstream).sum().backward()  # output.backward(upstream) makes torch import sympy

    def finish(self, micro_batch: int, x: Tensor, upstream: Tensor) -> None:
        for finish in self.put_off.pop(micro_batch):
            finish()


def in_two_halves(function: Callable[..., Tensor], arguments: dict[str, Any]) -> dict[str, Any]:
    """Let it compute the layers of the argument `weights`, in as many micro-batches as `batches` has, in `order`.

    The argument `order` has pairs of "F", "I" or "W" and a micro-batch, all W behind all I. `first` says that x comes
    from the data and needs no gradient. Compare the gradients of x, those of the weights before the first W, and after
    the last. Reported beside that: "products" of F, I and W, by micro-batch; "held" bytes before the first W.
    """
    weights, batches, upstreams = (arguments[name] for name in ("weights", "batches", "upstreams"))
    for x in batches:
        x.requires_grad_(not arguments["first"])
    found: dict[str, Any] = {}
    with _Observed([*weights, *batches, *upstreams]) as observed:
        layers = _Layers(function, weights, observed)
        for kind, micro_batch in arguments["order"]:
            if kind == "W" and "held" not in found:
                found |= {f"gradient of weight {i} before W": weight.grad for i, weight in enumerate(weights)}
                found["held"] = observed.held
            layers.run(kind, micro_batch, batches[micro_batch], upstreams[micro_batch])
    found |= {f"gradient of x {i}": x.grad for i, x in enumerate(batches)}
    found |= {f"gradient of weight {i}": weight.grad for i, weight in enumerate(weights)}
    return found | {f"products of {kind}": counts for kind, counts in layers.products.items()}


def all_orders_at_once(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """As `in_order`, of a function that returns the orders of all ranks in one list."""
    pipe, (given, *_) = arguments["pipe"], arguments["every"]
    orders = function(**given)
    if not isinstance(orders, list | tuple) or len(orders) != pipe.ranks:
        return {ORDERS: written(orders)}
    every = [{"rank": rank} for rank in range(pipe.ranks)]
    return in_order(lambda rank: orders[rank], {"pipe": pipe, "every": every})
