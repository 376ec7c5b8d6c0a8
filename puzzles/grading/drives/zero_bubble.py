"""Drives of the chapter `zero_bubble`: they stand for the pipeline around a learner's function."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from reference.memory.lab.storages import LiveBytes

from ..overlap import Work
from . import gone_back
from .pipeline_parallel import ORDERS, in_order, written
from .tensor_parallel import by_name

Finish = Callable[[], None]
"""Computes a weight's gradient that was put off."""

PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "addr"}
"""Matrix products of torch; with _ after its name one adds in place."""


class _Observed(LiveBytes):
    """Counts matrix products, too."""

    def __init__(self, outside: Iterable[Tensor]) -> None:
        super().__init__(outside)
        self.products = 0

    @staticmethod
    def watching(file: str) -> bool:
        """Everything counts: the drive's own layers, too."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.products += function.__name__.partition(".")[0].rstrip("_") in PRODUCTS
        return super().__torch_dispatch__(function, types, args, kwargs)


class _Layers:
    """Layers that a learner's function computes, with tanh between, in micro-batches whose backward has two halves."""

    def __init__(self, layer: Callable[..., Tensor], weights: Sequence[Tensor], observed: _Observed) -> None:
        self.layer, self.weights, self.observed = layer, [each.requires_grad_() for each in weights], observed
        self.outputs: dict[int, Tensor] = {}
        self.put_off: dict[int, list[Finish]] = {}
        self.early = 0
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
        self.early += len(finishes)

    def gradient_of_input(self, micro_batch: int, x: Tensor, upstream: Tensor) -> None:
        gone_back(self.outputs.pop(micro_batch), upstream)

    def finish(self, micro_batch: int, x: Tensor, upstream: Tensor) -> None:
        for finish in self.put_off.pop(micro_batch):
            finish()


def in_two_halves(function: Callable[..., Tensor], arguments: dict[str, Any]) -> dict[str, Any]:
    """Let it compute the layers of the argument `weights`, in as many micro-batches as `batches` has, in `order`.

    The argument `order` has pairs of "F", "I" or "W" and a micro-batch, all W after all I. `first` says that x comes
    from the data and needs no gradient. Compare the gradients of x, those of the weights before the first W, and after
    the last. Reported beside that: "products" of F, I and W, by micro-batch; the number of functions "handed over in
    F"; "held" bytes before the first W; whether autograd has "recorded" any of the weights' gradients.
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
                found["held"] = observed.live
            layers.run(kind, micro_batch, batches[micro_batch], upstreams[micro_batch])
    found |= {f"gradient of x {i}": x.grad for i, x in enumerate(batches)}
    found |= {f"gradient of weight {i}": weight.grad for i, weight in enumerate(weights)}
    found |= {f"products of {kind}": counts for kind, counts in layers.products.items()}
    recorded = any(weight.grad is not None and weight.grad.requires_grad for weight in weights)
    return found | {"handed over in F": layers.early, "recorded": recorded}


def all_orders_at_once(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """As `in_order`, of a function that returns the orders of all ranks in one list.

    Reported beside that: its argument "lines", as it is afterwards.
    """
    pipe, (given, *_) = arguments["pipe"], arguments["every"]
    orders = function(**given)
    if not isinstance(orders, list | tuple) or len(orders) != pipe.ranks:
        return {ORDERS: written(orders)}
    every = [{"rank": rank} for rank in range(pipe.ranks)]
    found = in_order(lambda rank: orders[rank], {"pipe": pipe, "every": every})
    return {**found, "lines": [written(line) for line in given["lines"]]}


class _Stage:
    """A linear stage, whose weight comes from a learner's function. What it makes is there before, so it costs nothing.

    Args:
        batches, targets: by micro-batch, [B, D] and [B, F]; the loss of one is the mean of its squared errors.
        samples: over which the mean is taken.
        first: the weight that the function begins with.
    """

    def __init__(self, batches: Sequence[Tensor], targets: Sequence[Tensor], samples: int, first: Tensor) -> None:
        self.batches, self.targets, self.factor, self.first = batches, targets, 2 / samples, first
        self.outputs = [torch.full_like(y, torch.nan) for y in targets]  # NaN: never computed
        self.upstreams = [torch.full_like(y, torch.nan) for y in targets]
        self.gradients = [torch.full_like(x, torch.nan) for x in batches]
        self.handed: list[weakref.ref[Tensor]] = []
        self.in_flight: set[int] = set()
        self.versions = 0

    def forward(self, micro_batch: int, weight: Tensor) -> None:
        self.in_flight.add(micro_batch)
        self._meet(weight)
        torch.mm(self.batches[micro_batch], weight.T, out=self.outputs[micro_batch])

    def backward(self, micro_batch: int, weight: Tensor) -> Tensor:
        if micro_batch not in self.in_flight:
            raise ValueError(f"backward of micro-batch {micro_batch} comes before its forward, or for a second time")
        self.in_flight.remove(micro_batch)
        self._meet(weight)
        self.versions = max(self.versions, sum(each() is not None for each in self.handed))
        upstream = self.upstreams[micro_batch]
        torch.sub(self.outputs[micro_batch], self.targets[micro_batch], out=upstream).mul_(self.factor)
        torch.mm(upstream, weight, out=self.gradients[micro_batch])
        return upstream.T @ self.batches[micro_batch]

    def _meet(self, weight: Tensor) -> None:
        """Remember a version without keeping it."""
        if weight is not self.first and not any(each() is weight for each in self.handed):
            self.handed.append(weakref.ref(weight))


def through_a_stage(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Give it `forward(micro_batch, weight)` and `backward(micro_batch, weight)` of a linear stage.

    The arguments `batches`, `targets` and `samples` are those of `_Stage`. Compare what is passed on to the next stage,
    what goes back to the one before, and the weight that it returns. Reported beside that, as "versions": how many of
    the weights that it has handed over were alive at a backward, at most, the first one not counted.
    """
    batches, targets, samples = (arguments.pop(name) for name in ("batches", "targets", "samples"))
    stage = _Stage(batches, targets, samples, arguments["weight"])
    returned = function(**arguments, forward=stage.forward, backward=stage.backward)
    found = {f"forward of micro-batch {k}": y for k, y in enumerate(stage.outputs)}
    found |= {f"backward of micro-batch {k}": gradient for k, gradient in enumerate(stage.gradients)}
    return {**arguments, **found, "returns": returned, "versions": stage.versions}


def through_its_stages(names: Sequence[str], function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Give it `load`, of a stage out of the argument `weights`, and `multiply`, which takes `seconds` on the model.

    Compare, as "stages", the numbers of those that it has loaded, and what it returns under `names`.
    """
    weights, seconds, work, loaded = arguments.pop("weights"), arguments.pop("seconds"), Work(), set()

    def load(stage: int) -> Tensor:
        if not 0 <= stage < len(weights):
            raise IndexError(f"there is no stage {stage}: they are 0 to {len(weights) - 1}")
        loaded.add(stage)
        return weights[stage].clone()

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        work(seconds)
        return a @ b

    returned = function(**arguments, load=load, multiply=multiply)
    return {"stages": sorted(loaded), **by_name(names, returned), **work.notes}


def in_pieces(names: Sequence[str], function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Give it two lists of functions: `forward`, of as many elements as the argument of that name, and `backward`.

    An element (factor, summand, seconds) stands for x * factor + summand, which takes so long on the model. Compare
    what it returns under `names`.
    """
    work = Work()

    def piece(factor: float, summand: float, seconds: float) -> Callable[[Tensor], Tensor]:
        def compute(x: Tensor) -> Tensor:
            work(seconds)
            return x * factor + summand

        return compute

    pieces = {kind: [piece(*each) for each in arguments.pop(kind)] for kind in ("forward", "backward")}
    return {**by_name(names, function(**arguments, **pieces)), **work.notes}
