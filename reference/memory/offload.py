"""An optimizer whose state lives elsewhere: in the CPU's memory, or in files.

This is `plain.offloaded_adam` with: any optimizer that treats each parameter by itself, files as well as memory, the
update computed where the state is, and transfers that overlap.

Adam keeps 8 bytes for each parameter, and looks at them once in a step. So they need not be where the model computes.
Parameter after parameter,

    value and gradient go to the CPU      4 + 4 bytes for each element, none where they are there already
    the update is computed there          about 12 operations for each element, bound by memory
    the new value goes back               4 bytes

and while one parameter is updated, the next one is in flight to the CPU, on a stream of its own, and the one before it
back. No more than these three are in two places. State that lives in files (see `offload_targets`) is read and written
as its parameter's turn comes.

Ren et al. 2021, "ZeRO-Offload: democratizing billion-scale model training"; Rajbhandari et al. 2021, "ZeRO-Infinity".
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from reference.errors import BadInput

from .offload_targets import DiskStorage, HostMemory, Offload, OffloadTarget, offload_target
from .state_names import state_names

__all__ = [
    "DiskStorage",
    "HostMemory",
    "Offload",
    "OffloadTarget",
    "OffloadedOptimizer",
    "offload_target",
    "offload_values",
]


class OffloadedOptimizer(Optimizer):
    """Any optimizer of `torch.optim` that treats each parameter by itself, with its state at `target`.

    Gives bitwise what the optimizer itself gives on the CPU. Used as any other: `step`, `zero_grad`, `param_groups`
    with their learning rates, `state` by parameter, `state_dict`, schedulers. Room for all state is taken at once: a
    disk that is too small is known before the first step, and not in the middle of one.

    Args:
        optimizer_class: `torch.optim.AdamW`, say.
        parameters: what to update, wherever it lives; or groups of it, as `torch.optim` takes them.
        target: where the state lives.
        options: for the optimizer, such as lr.

    Raises:
        BadInput: if `target` has no room for the state, or the optimizer needs more than a gradient for each parameter.
    """

    def __init__(
        self,
        optimizer_class: Callable[..., Optimizer],
        parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        target: OffloadTarget,
        **options: Any,
    ) -> None:
        self.make = lambda parameter: optimizer_class([parameter], **options)
        self._target = target
        self._of: dict[nn.Parameter, Optimizer] = {}  # an optimizer for each parameter, over a guest in its place
        self._rooms: dict[nn.Parameter, dict[str, Tensor]] = {}  # its state on the host, by name
        self._streams: dict[torch.device, torch.cuda.Stream] = {}  # of copies to the CPU
        example = self.make(_guest(torch.Size([1, 1])))
        self.kind = type(example)  # what it would be if its state lived where the parameters do
        super().__init__(parameters, example.defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        names = {dim: state_names(self.make, group, dim) for dim in {p.dim() for p in group["params"]}}
        for parameter in group["params"]:
            guest = _guest(parameter.shape, parameter.dtype)
            self._of[parameter] = self.make(guest)
            self._rooms[parameter] = {name: self._target.allocate(guest) for name in names[parameter.dim()]}
            guest.data = _nothing(parameter.dtype)
            self._store_state(parameter)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update each parameter that has a gradient, one after the other; `closure` goes backward and says the loss."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        turns = [(p, group) for group in self.param_groups for p in group["params"] if p.grad is not None]
        coming = self._start_copy_to_host(turns[0][0]) if turns else None
        for (parameter, group), following in zip_longest(turns, turns[1:]):
            here, coming = coming, self._start_copy_to_host(following[0]) if following else None
            self._update(parameter, group, here)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy a state of this class, or of the optimizer without offload, to where this one's lives.

        Raises:
            BadInput: if a moment has another shape than its parameter.
        """
        numbers = [*chain.from_iterable(group["params"] for group in state_dict["param_groups"])]
        for number, parameter in zip(numbers, self._of, strict=False):
            for name in self._rooms[parameter].keys() & state_dict["state"].get(number, {}).keys():
                if (shape := state_dict["state"][number][name].shape) != parameter.shape:
                    wanted = f"{tuple(parameter.shape)}, and not {tuple(shape)}: it is of another model"
                    raise BadInput(f"{name} of parameter {number} must have shape {wanted}")
        known = {number: dict(state) for number, state in state_dict["state"].items()}  # it may be this one's own
        super().load_state_dict(state_dict | {"state": {}})
        for number, parameter in zip(numbers, self._of, strict=True):
            state = self._of[parameter].state[self._guest_of(parameter)]
            state.clear()
            for name, value in known.get(number, {}).items():
                stays = name in self._rooms[parameter] or not isinstance(value, Tensor)
                state[name] = value if stays else value.to("cpu", copy=True)
            self._store_state(parameter)

    def _start_copy_to_host(self, parameter: nn.Parameter) -> "OnHost":
        """Begin to copy a parameter's value and gradient to the CPU, unless they are there."""
        value, gradient = parameter.detach(), parameter.grad
        gpu = next((x.device for x in (value, gradient) if x.is_cuda), None)
        if gpu is None:
            return OnHost(value, gradient, nullcontext)
        beside = self._streams.setdefault(gpu, torch.cuda.Stream(gpu))
        beside.wait_stream(torch.cuda.current_stream(gpu))  # on which it was made
        with torch.cuda.stream(beside):
            return OnHost(_to_cpu(value), _to_cpu(gradient), beside.record_event().synchronize)

    def _update(self, parameter: nn.Parameter, group: dict[str, Any], on_host: "OnHost") -> None:
        """The optimizer's own step, of a guest that has the parameter's value and gradient."""
        guest, optimizer = self._guest_of(parameter), self._of[parameter]
        optimizer.param_groups[0].update({name: value for name, value in group.items() if name != "params"})
        on_host.wait()
        guest.data, guest.grad = on_host.value, on_host.gradient
        optimizer.step()
        if parameter.device != guest.device:
            parameter.copy_(guest, non_blocking=True)  # from page-locked memory, which is not used again before
        guest.data, guest.grad = _nothing(parameter.dtype), None
        self._store_state(parameter)

    def _store_state(self, parameter: nn.Parameter) -> None:
        """Move state to its room, unless it is there: it is not after a first step, and after loading."""
        state = self._of[parameter].state[self._guest_of(parameter)]
        for name, room in self._rooms[parameter].items():
            if name in state and state[name] is not room:
                state[name] = room.copy_(state[name])
        if state:
            self.state[parameter] = state

    def _guest_of(self, parameter: nn.Parameter) -> nn.Parameter:
        return self._of[parameter].param_groups[0]["params"][0]


@torch.no_grad()
def offload_values(parameters: Iterable[nn.Parameter], target: OffloadTarget) -> None:
    """Keep the values of masters there, too: nothing but the optimizer and `end_step` reads them.

    The memory where they were is free afterwards, unless other tensors are views of it. From then on their gradients
    are CPU tensors.
    """
    for parameter in parameters:
        parameter.data = target.allocate(parameter).copy_(parameter)


def _guest(shape: torch.Size, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    """A parameter on the CPU that stands where another one cannot."""
    return nn.Parameter(torch.zeros(shape, dtype=dtype))


class OnHost(NamedTuple):
    """A parameter's value and gradient on the CPU, or in flight."""

    value: Tensor
    gradient: Tensor
    wait: Callable[[], Any]  # until both are there


def _to_cpu(x: Tensor) -> Tensor:
    """`x` itself, or a copy of what is on a GPU, in page-locked memory: it is in flight on the current stream."""
    return HostMemory().allocate(x).copy_(x, non_blocking=True) if x.is_cuda else x


def _nothing(dtype: torch.dtype) -> Tensor:
    return torch.empty(0, dtype=dtype)
