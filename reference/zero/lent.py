"""Parameters that have values only while their unit is whole, and say so.

Each operation on such a parameter comes by here, by torch's own protocol for subclasses (`__torch_function__`), and
that is where FSDP learns what the hooks around modules cannot tell:

    a module uses a parameter of another unit          gathered on the spot, and from then on with the module's own
    backward comes to the operation by another way     a hook on the operation itself gathers again: its output may be
    than through its module's output                   in a dataclass, or the loss may be of something inside
    a parameter is read between two steps              an error that says how to get the whole value
    it is written to                                   an error: the shard would not know

It costs some microseconds for each operation that takes a parameter, none for all others.
"""

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from reference.errors import BadInput

T = TypeVar("T")
Prehook = Callable[[Any], None]
not_compiled = torch._disable_dynamo  # torch.compiler.disable would load the compiler where nothing is compiled
INSTEAD = "gather_full(form) gives values to read, full_state_dict(form, model) what torch.save takes"


class Lender(Protocol):
    """What parameters are lent by: a unit."""

    ready: bool  # all values are there
    full: Tensor  # which the parameters are views of

    def lend(self, name: str) -> Prehook | None:
        """Make values be there; return what must happen before backward comes to this use of them, if anything.

        Raises:
            BadInput: where nothing computes, so that other ranks would not gather.
        """


class Lent(Tensor):
    """A tensor whose memory is a unit's: a view of a parameter."""

    lender: weakref.ref
    full_name: str

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        with torch._C.DisableTorchFunctionSubclass():
            if function in ASKS_NO_VALUE:
                return function(*arguments, **(options or {}))
            # not always by the first: to go around dynamo takes as long as the use itself
            use = _use_not_compiled if torch.compiler.is_dynamo_compiling() else _use
            return use(function, arguments, options or {})

    def __repr__(self, **_: object) -> str:
        with torch._C.DisableTorchFunctionSubclass():
            if (unit := self.lender()) is not None and unit.ready:
                return super().__repr__()
            return f"{self.full_name}: {list(self.shape)} in {self.dtype}, sharded (each rank holds a part)"

    def __format__(self, specification: str) -> str:
        return repr(self) if not specification else super().__format__(specification)

    def __deepcopy__(self, memo: dict) -> Tensor:
        copy = _plain_copy(self)
        memo[id(self)] = copy
        return copy

    def __reduce_ex__(self, protocol: int) -> tuple:
        return _plain_copy(self).__reduce_ex__(protocol)


class LentParameter(Lent, nn.Parameter):
    """A parameter of a unit."""

    @classmethod
    def of(cls, view: Tensor, requires_grad: bool, lender: Lender, name: str) -> "LentParameter":
        """Args:
        view: of `lender.full`, with a version counter of its own.
        requires_grad: whether it learns.
        lender: the unit.
        name: within the model.
        """
        parameter = nn.Parameter(view, requires_grad)
        parameter.__class__ = cls
        parameter.lender, parameter.full_name = weakref.ref(lender), name
        return parameter


def _names_of_questions() -> Iterator[Any]:
    getters = (
        "shape dtype device layout requires_grad is_leaf grad grad_fn ndim name is_cuda is_cpu is_meta is_sparse "
        "is_sparse_csr is_quantized is_mkldnn is_mps is_nested itemsize nbytes output_nr retains_grad _base _version "
        "_backward_hooks _post_accumulate_grad_hooks"
    )
    setters = "requires_grad grad _backward_hooks"
    methods = (
        "size dim numel nelement stride is_contiguous element_size is_floating_point is_complex is_signed ndimension "
        "requires_grad_ register_hook register_post_accumulate_grad_hook retain_grad get_device storage_offset "
        "_is_view is_pinned untyped_storage data_ptr __len__ new_empty new_zeros new_ones new_full new_tensor"
    )
    yield from (getattr(Tensor, name).__get__ for name in getters.split())
    yield from (getattr(Tensor, name).__set__ for name in setters.split())
    yield from (getattr(Tensor, name) for name in methods.split())
    yield from (torch.is_floating_point, torch.is_complex, torch.numel)
    yield from (torch.empty_like, torch.zeros_like, torch.ones_like, torch.full_like, torch.rand_like, torch.randn_like)


ASKS_NO_VALUE = frozenset(_names_of_questions())
"""Functions that need no memory behind a tensor."""


def _use(function: Callable[..., Any], arguments: tuple, options: dict[str, Any]) -> Any:
    """`function(*arguments, **options)`, of lent tensors among others."""
    lent = _those(Lent, (*arguments, *options.values()))
    lenders = {x.lender(): x.full_name for x in lent}
    before = [hook for unit, name in lenders.items() if unit and (hook := unit.lend(name))]
    versions = [x._version for x in lent]
    result = function(*arguments, **options)
    for x, version in zip(lent, versions, strict=True):
        if x._version != version:
            raise BadInput(
                f"{x.full_name} was written to, and its shard does not know: write to the masters, "
                "[part.master for part in form.parts]"
            )
    for x in _those(Tensor, (result,)):
        _mark(x, lent[0], before)
    return result


_use_not_compiled = not_compiled(_use)


def _mark(result: Tensor, lent: Lent, before: list[Prehook]) -> None:
    """Let a view be lent, too; have `before` called before backward comes to anything else."""
    unit = lent.lender()
    if unit is not None and type(result) is Tensor and result.layout is torch.strided and _same_memory(result, unit):
        result.__class__ = Lent
        result.lender, result.full_name = lent.lender, lent.full_name
    elif result.grad_fn is not None:
        for prehook in before:
            result.grad_fn.register_prehook(prehook)


def _same_memory(x: Tensor, unit: Lender) -> bool:
    return x.untyped_storage()._cdata == unit.full.untyped_storage()._cdata


def _those(kind: type[T], values: list | tuple) -> list[T]:
    """Those of a kind among values, and in lists and tuples of them."""
    found = []
    for value in values:
        if isinstance(value, kind):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _those(kind, value)
    return found


def _plain_copy(lent: Lent) -> Tensor:
    """What a copy or a file gets: the values, where they are there.

    Raises:
        BadInput: where they are not.
    """
    unit = lent.lender()
    if unit is None or not unit.ready:
        raise BadInput(f"{lent.full_name} is sharded, and there is nothing whole to copy: {INSTEAD}")
    with torch._C.DisableTorchFunctionSubclass():
        copy = lent.detach().clone()
        return nn.Parameter(copy, lent.requires_grad) if isinstance(lent, nn.Parameter) else copy
