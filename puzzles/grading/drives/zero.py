"""Drives of the chapter `zero`: they stand for the model whose state the ranks share."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch.distributed as dist
from torch import Tensor

from reference.zero.lab import quadratic

from ..overlap import Work
from . import two_levels


def with_backward(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Give the function `backward`, from parameters w to the gradient of ½ (a·w - b)², of the arguments `a` and `b`."""
    a, b = arguments.pop("a"), arguments.pop("b")

    def backward(parameters: Tensor) -> Tensor:
        return quadratic.gradient(parameters, a, b)

    return {**arguments, "returns": function(**arguments, backward=backward)}


def with_backward_on_two_levels(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Both `with_backward` and `two_levels`."""
    return with_backward(lambda **given: two_levels(function, given)["returns"], arguments)


def layer_by_layer(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Give the function `backward`, which yields the gradients of one layer after another, in every micro-batch.

    They are of ½ (a·w - b)². The argument `w` has the parameters of each layer, `samples` an (a, b) for each
    micro-batch, where `a` has a tensor for each layer.
    """
    w, samples = arguments.pop("w"), arguments.pop("samples")
    backward = chain.from_iterable(quadratic.layer_by_layer(w, a, b) for a, b in samples)  # it holds no gradient
    return {**arguments, "returns": function(**arguments, backward=backward)}


def with_layers_that_take_time(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Give the function `layer` to call with an input and a weight: on the model's clock it takes `seconds`."""
    seconds, work = arguments.pop("seconds"), Work()

    def layer(x: Tensor, weight: Tensor) -> Tensor:
        work(seconds)
        return x @ weight.T

    return {"returns": function(**arguments, layer=layer), **work.notes}


def without_padding(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Call it. Compare of the argument `shards` only what lies within the `lengths` of their tensors."""
    rank, lengths = dist.get_rank(arguments["group"]), arguments["lengths"]
    returned = function(**arguments)
    within = [max(0, length - rank * shard.numel()) for shard, length in zip(arguments["shards"], lengths, strict=True)]
    shards = [shard[:own] for shard, own in zip(arguments["shards"], within, strict=True)]
    return {"shards": shards, "returns": returned}


def with_files(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Give the function `read(rank, begin, end)` in place of the argument `files`, one flat tensor of each rank.

    Compare, as "read", how many elements it has read, and as "times", how often.
    """
    files, read = arguments.pop("files"), []

    def read_file(rank: int, begin: int, end: int) -> Tensor:
        if not (0 <= rank < len(files) and 0 <= begin <= end <= files[rank].numel()):
            kept = f"{len(files)} ranks saved {files[0].numel()} elements each"
            raise IndexError(f"read({rank}, {begin}, {end}): {kept}")
        read.append(end - begin)
        return files[rank][begin:end].clone()

    return {"returns": function(**arguments, read=read_file), "read": sum(read), "times": len(read)}
