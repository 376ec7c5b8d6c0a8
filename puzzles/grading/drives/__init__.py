"""How a solution's function is called on a rank, and what of it is compared.

A drive gets the function, its arguments by name (`group` among them where the function takes one) and returns what
there is to compare, by name: "returns" for what came back, arguments by their own names. It runs next to the learner's
code, so it knows nothing that would give the answer away.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.trace import Op

_DEEPEST = 20  # levels that are looked at: a list may be in itself


def plain(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Call it. Compare what it returns, and every argument as it is afterwards."""
    returned = function(**arguments)
    return {**arguments, **tensors_of(arguments), "returns": returned}


def tensors_of(arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    """All tensors that are in arguments, by their places: "x", "shards[0]", "tensors[head.bias]"."""
    found: dict[str, Tensor] = {}
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            found[name] = value
        elif holds_tensors(value):
            inside = value.items() if isinstance(value, dict) else enumerate(value)
            found |= tensors_of({f"{name}[{key}]": each for key, each in inside})
    return found


def holds_tensors(value: Any) -> bool:
    """Whether a tensor is in it: in a list, tuple or dict, or in one of these in it. Named tuples are not looked into.

    What is in them has no place that `tensors_of` could name.
    """
    return any(_of_tensors(level) for level in _levels(value, lambda kind: kind in (list, tuple)))


def all_tensors(value: Any) -> list[Tensor]:
    """All tensors in it: in a list, tuple, dict or queue, or in one of these in it."""
    levels = _levels(value, lambda kind: issubclass(kind, (list, tuple, deque)))
    return [each for level in levels if _of_tensors(level) for each in level if isinstance(each, Tensor)]


def _levels(value: Any, opened: Callable[[type], bool]) -> Iterator[list[Any]]:
    """What is in it, level by level: a trace of a step has 100,000 numbers, and most of them lie equally deep.

    Args:
        opened: of which kinds one looks at what is in them, besides dicts.
    """
    level = [value]
    for _ in range(_DEEPEST):
        if not level:
            return
        yield level
        open_ones = {kind for kind in set(map(type, level)) if issubclass(kind, dict) or opened(kind)}
        inside = (each.values() if isinstance(each, dict) else each for each in level if type(each) in open_ones)
        level = list(chain.from_iterable(inside))


def _of_tensors(level: list[Any]) -> bool:
    return any(issubclass(kind, Tensor) for kind in set(map(type, level)))


def there_and_back(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Go backward from what it returns, with the argument `upstream`, to every argument that is a tensor of floats.

    The function does not see `upstream`. Compare the output as "returns", and each gradient by the name of its
    argument: "weight.grad". Where there is an argument `times`, it is called so often before anything goes backward, as
    layers one after another are, and the outputs are added up.
    """
    upstream, times = arguments.pop("upstream"), arguments.pop("times", 1)
    reals = {name: x for name, x in arguments.items() if isinstance(x, Tensor) and x.is_floating_point()}
    leaves = {name: x.requires_grad_() for name, x in reals.items()}
    outputs = [function(**arguments) for _ in range(times)]
    output = gone_back(sum(outputs[1:], outputs[0]), upstream)
    return {"returns": output, **{f"{name}.grad": leaf.grad for name, leaf in leaves.items()}}


def gone_back(output: Any, upstream: Tensor) -> Any:
    """Go backward from an output that has a history and the shape of `upstream`. Returns it without its history."""
    if not isinstance(output, Tensor):
        return output
    if output.requires_grad and output.shape == upstream.shape:
        (output * upstream).sum().backward()  # output.backward(upstream) makes torch import sympy, for half a second
    return output.detach()


def taking_turns(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Give the function a `speak` to call. Compare, as "spoke", after how many ticks of this rank it did so."""
    recorder, spoke = dist.group.WORLD.recorder, []

    def speak() -> None:
        spoke.append(recorder.tick)

    return {"returns": function(speak=speak, **arguments), "spoke": spoke}


def on_a_model_clock(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Give the function a `clock` that shows the time on a link of the arguments `alpha` and `beta`, not the real one.

    The clock follows from this rank's calls alone, so the same program reads the same times in every run. A receive
    takes α + b/β, and as long again for whatever was sent before it: a send by itself returns at once. The first
    message opens the connection, and one receive in five meets a crowded link: see `_surcharge`.
    """
    alpha, beta = arguments.pop("alpha"), arguments.pop("beta")
    recorder = dist.group.WORLD.recorder
    first = len(recorder.calls)

    def clock() -> float:
        calls = recorder.calls[first:]
        received = [call for call in calls if call.op is Op.RECV and call.completed is not None]
        last = max((call.completed for call in received), default=-1)
        sent = [call for call in calls if call.op is Op.SEND]
        arrived = received + [call for call in sent if call.posted < last]
        seconds = sum(alpha + call.elements * call.item_size / beta for call in arrived)
        return seconds + alpha * (_TO_SEND * len(sent) + sum(map(_surcharge, range(len(received)))))

    return {"returns": function(clock=clock, **arguments)}


_TO_SEND = 1e-3  # latencies that it takes to hand a message over


def _surcharge(received: int) -> float:
    """Latencies that a receive takes longer than the model says."""
    return 100.0 if received == 0 else 30.0 if received % 5 == 2 else 0.0


def two_levels(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Call it with two groups: `intra`, the ranks of this rank's node, and `inter`, those of its number on each node.

    The argument `ranks_per_node` says how ranks fill nodes; the function does not see it. Compare as `plain` does.
    """
    size, rank = arguments.pop("ranks_per_node"), dist.get_rank()
    node, number = divmod(rank, size)
    intra = group_of(range(node * size, (node + 1) * size))
    inter = group_of(range(number, dist.get_world_size(), size))
    returned = function(**arguments, intra=intra, inter=inter)
    return {**arguments, "returns": returned}


def group_of(ranks: Sequence[int]) -> ProcessGroup:
    """The group of these ranks, of which this is one. There is one of all ranks already; another takes its time."""
    if len(ranks) == dist.get_world_size():
        return dist.group.WORLD
    return dist.new_group(list(ranks), use_local_synchronization=True)
