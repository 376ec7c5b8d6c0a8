"""A unit of FSDP: parameters that are gathered and freed together, and of which each rank keeps a shard.

*How can autograd save a weight that is freed?* What it saves is a view of the unit's flat tensor. Freeing takes away
the memory behind the view (`untyped_storage().resize_(0)`), gathering gives it memory again, with the same values.

*Why gather between nodes twice what has not changed?* With a `node`, what the first gather of a step has brought stays
in the node: each of its s ranks keeps an s-th of it, in the dtype that is computed in, and all later gathers of the
step are among them (hpZ; Wang et al. 2023, "ZeRO++", arXiv 2306.10209, sec. 3.2).
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from reference.collectives.communicator import Communicator, Finish
from reference.collectives.default import over
from reference.data_parallel.flat_layout import FlatLayout
from reference.errors import BadInput
from reference.memory.precision import Precision

from .lent import LentParameter, Prehook

Value = Callable[[str, torch.Size], Tensor]
"""The whole value of a parameter, from its name and shape."""


class Rounded(Protocol):
    """How parameters travel that are rounded before a product in any case: see `reference.compression.gathered`."""

    def takes(self, name: str, shape: torch.Size) -> bool:
        """Whether a parameter is one of them."""

    def agree(self, units: Sequence["FlatParameters"]) -> None:
        """Shards have changed, of these units of such parameters. All ranks call this together."""

    def start_gather(self, unit: "FlatParameters") -> Finish:
        """Begin to make a unit's parameters whole, from the ranks' shards."""


class FlatParameters:
    """Parameters within a flat tensor that has memory only while it is needed.

    Args:
        named: the parameters by name, all of them trainable or all of them frozen.
        value: where their values come from; asked only for parameters of which this rank holds a piece.
        group: the n ranks that share them, or a communicator of them.
        precision: gathered in `precision.compute`, kept in `precision.master`.
        device: where the shard is kept and the parameters are gathered.
        rounded: how they travel, where that is not as they are.
        node: ranks of this one's node, as many as divide n, which gather again what one gather of a step has brought.
    """

    def __init__(
        self,
        named: dict[str, nn.Parameter],
        value: Value,
        group: ProcessGroup | Communicator,
        precision: Precision,
        device: torch.device,
        rounded: Rounded | None = None,
        node: ProcessGroup | Communicator | None = None,
    ) -> None:
        self.rounded = rounded
        self.communicator, self.names = over(group), list(named)
        self.node = None if node is None else over(node)
        self.second_copy: Tensor | None = None  # this rank's part of the node's copy
        self.layout = FlatLayout.of(list(named.values()), group.size())
        self.shard = self._cut(value, torch.zeros(self.layout.shard, dtype=precision.master, device=device))
        self.full = torch.empty(self.layout.numel, dtype=precision.compute, device=device)
        self.parameters = [
            LentParameter.of(view.data, parameter.requires_grad, self, name)  # .data: a version counter of its own
            for view, (name, parameter) in zip(self.layout.views(self.full), named.items(), strict=True)
        ]
        self.used: Callable[[FlatParameters, str], Prehook | None]  # called when an operation takes one of them
        self._under_way: Finish | None = None  # a gather
        self.whole = True
        self.reshard()

    @property
    def trainable(self) -> bool:
        """False where the parameters are frozen."""
        return self.parameters[0].requires_grad

    @property
    def ready(self) -> bool:
        """Whether all values are there."""
        return self.whole and self._under_way is None

    def lend(self, name: str) -> Prehook | None:
        """See `Lender`."""
        return self.used(self, name)

    def unshard(self) -> None:
        """Begin to make the parameters whole, unless they are."""
        if not self.whole:
            self.full.untyped_storage().resize_(self.full.nbytes)
            with torch.no_grad():
                if self.rounded:
                    self._under_way = self.rounded.start_gather(self)
                elif self.second_copy is None:
                    own = self.shard.to(self.full.dtype)
                    self._under_way = self.communicator.start_all_gather(own, self.full)
                else:
                    self._under_way = self.node.start_all_gather(self.second_copy, self.full)
            self.whole = True

    def wait_for_unshard(self) -> None:
        """Return when they are whole."""
        if self._under_way:
            with torch.no_grad():
                self._under_way()
            self._under_way = None
            if self.node and self.second_copy is None and not self.rounded:
                self.second_copy = self.full.tensor_split(self.node.size())[self.node.rank()].clone()

    def reshard(self) -> None:
        """Keep nothing but the shard."""
        if self.whole:
            self.wait_for_unshard()
            self.full.untyped_storage().resize_(0)
            self.whole = False

    def forget(self) -> None:
        """Drop the node's copy: the shard has changed, or will."""
        self.second_copy = None

    def _cut(self, value: Value, shard: Tensor) -> Tensor:
        """Fill this rank's shard from whole values, one parameter at a time; the padding stays as it is."""
        for piece in self.layout.pieces(self.communicator.rank()):
            whole = value(self.names[piece.index], self.layout.shapes[piece.index]).detach().flatten()
            piece.within(shard).copy_(whole[piece.begin : piece.end])
        return shard


def require_values(named: dict[str, nn.Parameter], value: Value | None, device: torch.device) -> None:
    """Refuse parameters of which a shard's content is not defined, and those that it would round.

    Raises:
        BadInput: that says why, and where it could come from.
    """
    for name, parameter in named.items():
        if not parameter.is_floating_point():
            raise BadInput(f"{name} is {parameter.dtype}, and a unit holds floating point: make it a buffer")
        if parameter.is_meta and value is None and device.type != "meta":
            raise BadInput(f"{name} is on the meta device, so a shard on {device} needs a value: say value=...")
        if parameter.untyped_storage().nbytes() < parameter.nbytes:
            raise BadInput(f"{name} has no memory: the model is FullySharded already")


def make_units(
    model: nn.Module,
    named: dict[str, nn.Parameter],
    modules: Sequence[Sequence[nn.Module]],
    make: Callable[[dict[str, nn.Parameter]], FlatParameters],
    apart: Callable[[str, torch.Size], bool] = lambda name, shape: False,
) -> list[FlatParameters]:
    """A unit for each group of modules, and before them one for what they leave; the first with a parameter owns it.

    Their parameters take the place of those in `model`, which are `named`. Those that travel in another way, for which
    `apart` is true, have units of their own.
    """
    left, units = dict(named), []
    for group in [*modules, [model]]:
        made = []
        for own in split(left, group, apart):
            made.append(make(own))
            replace(model, dict(zip(own.values(), made[-1].parameters, strict=True)))
            left = {name: parameter for name, parameter in left.items() if name not in own}
        units = made + units if group == [model] else units + made
    return units


def replace(model: nn.Module, new: dict[nn.Parameter, nn.Parameter]) -> None:
    """Put other parameters in the place of these, wherever in `model` they are used, with their gradients' hooks."""
    for old, fresh in new.items():
        for hook in (old._backward_hooks or {}).values():
            fresh.register_hook(hook)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if parameter in new:
                setattr(module, name, new[parameter])


def split(
    named: dict[str, nn.Parameter],
    modules: Sequence[nn.Module],
    apart: Callable[[str, torch.Size], bool] = lambda name, shape: False,
) -> list[dict[str, nn.Parameter]]:
    """The parameters of `modules` among `named`: trainable and frozen, `apart` and not, where there are any."""
    inside = {parameter for module in modules for parameter in module.parameters()}
    kinds: dict[tuple[bool, bool], dict[str, nn.Parameter]] = {}
    for kind in ((True, False), (True, True), (False, False), (False, True)):
        kinds[kind] = {}
    for name, parameter in named.items():
        if parameter in inside:
            kinds[parameter.requires_grad, apart(name, parameter.shape)][name] = parameter
    return [kind for kind in kinds.values() if kind]
