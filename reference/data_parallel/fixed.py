"""What a form has wrapped is fixed: parameters that change later, and training past the form, are named.

A form decides once, when it is made, which parameter goes into which bucket and has which master. A parameter that is
replaced, added, frozen or thawed later would silently not be trained, or be trained when it should not; an optimizer
over the model's parameters would silently do nothing, where the form's masters are other tensors, and so would what is
loaded or written there. All are errors here, before a step is lost, for as long as the form lives.
"""

import weakref
from collections.abc import Iterable, Sequence
from functools import cache

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from reference.errors import BadInput

Inside = tuple[dict[str, nn.Module], dict[str, tuple]]
INSTEAD = "take [part.master for part in form.parts], and clip by gradient_norm and clip of reference.data_parallel"


class Wrapped:
    """The modules and parameters of a model, as they were when a form wrapped it.

    Args:
        model: what was wrapped, after the form has put its own parameters in place.
        masters: what the optimizer updates: the parameters themselves, or other tensors in their place.
        before: parameters whose place the form's own have taken: an optimizer may still have them.
        in_place: the parameters' memory is part of something larger, and must stay where it is.
        loadable: what is written into the parameters reaches the masters.
    """

    def __init__(
        self,
        model: nn.Module,
        masters: Iterable[nn.Parameter],
        before: Iterable[nn.Parameter] = (),
        in_place: bool = False,
        loadable: bool = True,
    ) -> None:
        self._in_place, self._loadable = in_place, loadable
        with torch._C.DisableTorchFunctionSubclass():
            self._modules = [(name, module, self._inside(module)) for name, module in model.named_modules()]
        own = {id(master) for master in masters}
        stand_ins = [p for p in (*model.parameters(), *before) if p.requires_grad and id(p) not in own]
        self._stand_ins = {id(p): weakref.ref(p) for p in stand_ins}
        self._hidden = [(weakref.ref(p), no_gradient_here(p)) for p in stand_ins if not p.is_meta]
        self._with_other_masters = (
            {} if loadable else {name: p for name, p in model.named_parameters() if self.trains(p)}
        )
        self.note_values()
        _LIVING.add(self)
        refuse_foreign_optimizers()
        if not loadable:
            for module in model.modules():
                module.register_load_state_dict_pre_hook(_refuse_to_load)

    def trains(self, parameter: nn.Parameter) -> bool:
        """Whether the form trains it by another tensor."""
        return id(parameter) in self._stand_ins and self._stand_ins[id(parameter)]() is parameter

    def loses(self, module: nn.Module) -> bool:
        """Whether what is loaded into a module is lost, since something in it learns by another tensor."""
        return not self._loadable and any(map(self.trains, module.parameters()))

    def require_unchanged(self) -> None:
        """Name the first parameter that is not what it was. Modules without parameters may come and go.

        Raises:
            BadInput: that says which one, and what happened to it.
        """
        with torch._C.DisableTorchFunctionSubclass():
            for name, module, before in self._modules:
                now = self._inside(module)
                if now != before and (change := _change(name, before, now)):
                    raise BadInput(
                        f"{change} after the model was wrapped, and the form would not train it: change the model "
                        "first, then wrap it"
                    )
            self._require_unwritten()

    def note_values(self) -> None:
        """The parameters have the values that the form gave them: what others write from now on may be lost."""
        self._noted = self._writes()

    def _require_unwritten(self) -> None:
        for name, before, now in zip(self._with_other_masters, self._noted, self._writes(), strict=True):
            if now != before:
                raise BadInput(
                    f"{name} was written to after the model was wrapped, and that is lost, since its master is "
                    "elsewhere: write before wrapping, or to the masters"
                )

    def _writes(self) -> list[int]:
        """How often each parameter was written to whose master would not know."""
        with torch._C.DisableTorchFunctionSubclass():
            return [parameter._version for parameter in self._with_other_masters.values()]

    def hide_gradients(self) -> None:
        """From now on each parameter's `grad` is one that refuses to be used: the real ones are elsewhere."""
        self._set_gradients([stand_in for _, stand_in in self._hidden])

    def begin_gradients(self) -> None:
        """Let autograd begin with a `grad` of its own."""
        self._set_gradients([None] * len(self._hidden))

    def _set_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        with torch._C.DisableTorchFunctionSubclass():  # for all at once: FSDP's parameters would each be asked
            for (reference, _), gradient in zip(self._hidden, gradients, strict=True):
                if (parameter := reference()) is not None:
                    parameter.grad = gradient

    def _inside(self, module: nn.Module) -> Inside:
        """The module's own children, and what identifies its own parameters."""
        children = {name: child for name, child in module._modules.items() if child is not None}
        parameters = {
            name: (id(p), p.requires_grad, p.dtype, p.data_ptr() if self._in_place else 0)
            for name, p in module._parameters.items()
            if p is not None
        }
        return children, parameters


class NoGradientHere(Tensor):
    """A gradient without elements in the place of one that is elsewhere: whatever asks for its values is told so.

    It is sparse and empty. So it takes no memory, and what autograd adds to it is all that there is.
    """

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        if function in _HARMLESS:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*arguments, **(options or {}))
        raise BadInput(f"gradients of a wrapped model are not in parameter.grad: {INSTEAD}")

    def __repr__(self, **_: object) -> str:
        return "NoGradientHere()"


_HARMLESS = frozenset(
    getattr(Tensor, name).__get__
    for name in ("layout", "requires_grad", "grad_fn", "is_leaf", "_version", "_backward_hooks")
)


def no_gradient_here(parameter: Tensor) -> NoGradientHere:
    """One in the shape of a parameter."""
    gradient = torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device, layout=torch.sparse_coo)
    gradient.__class__ = NoGradientHere
    return gradient


@cache
def refuse_foreign_optimizers() -> None:
    """From now on an optimizer step over parameters that a form trains by other masters is an error, in this process.

    Torch has no such hook for one optimizer that is not known yet.
    """
    register_optimizer_step_pre_hook(_refuse_stand_ins)


_LIVING: weakref.WeakSet[Wrapped] = weakref.WeakSet()
"""Of this process: models and parameters carry no mark of a form, which copies and files of them would carry, too."""


def _refuse_stand_ins(optimizer: Optimizer, arguments: Sequence, options: dict) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if any(wrapped.trains(parameter) for wrapped in _LIVING for parameter in parameters):
        raise BadInput(f"a {type(optimizer).__name__} over the model's parameters would do nothing: {INSTEAD}")


def _refuse_to_load(module: nn.Module, *_: object) -> None:
    if any(wrapped.loses(module) for wrapped in _LIVING):
        raise BadInput(
            "what is loaded into a wrapped model is lost, since its masters are elsewhere: load before wrapping, or "
            "load a checkpoint by reference.zero.checkpoint"
        )


def _change(module: str, before: Inside, now: Inside) -> str | None:
    """What became of a module's parameters, or of children that have some, in a few words; None if nothing did."""
    for then, since in ((_with_parameters(before[0]), _with_parameters(now[0])), (before[1], now[1])):
        for name in then.keys() | since.keys():
            path = _path(module, name)
            if name not in then:
                return f"{path} was added"
            if name not in since:
                return f"{path} was taken away"
            if then[name] != since[name]:
                return f"{path} was {_kind_of_change(then[name], since[name])}"
    return None


def _path(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name


def _with_parameters(children: dict[str, nn.Module]) -> dict[str, nn.Module]:
    return {name: child for name, child in children.items() if any(True for _ in child.parameters())}


def _kind_of_change(then: object, since: object) -> str:
    if isinstance(then, nn.Module) or then[0] != since[0]:
        return "replaced"
    if then[1] != since[1]:
        return "thawed" if since[1] else "frozen"
    return "converted or moved"
