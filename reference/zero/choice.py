"""Which modules' parameters FSDP gathers together: the usual choice, and what cannot be chosen."""

import warnings
from collections.abc import Iterable, Iterator, Sequence

from torch import nn

from reference.errors import BadInput


def units_of(model: nn.Module) -> list[list[nn.Module]]:
    """The usual choice: each block of a list of blocks, and each other child; the children after the blocks as one.

    A list of blocks is an `nn.ModuleList`, however deep in the model: a child that has one inside is divided, too, and
    so is a container, which computes nothing itself. Parameters that they hold themselves are left to the model.
    """
    found: list[list[nn.Module]] = []
    behind: list[nn.Module] | None = None
    for child in parts(model):
        if isinstance(child, nn.ModuleList):
            found += [behind] if behind else []
            found += [unit for block in child for unit in ([[block]] if computes(block) else units_of(block))]
            behind = []
        elif behind is None:
            found.append([child])
        else:
            behind.append(child)
    return found + ([behind] if behind else [])


def parts(model: nn.Module) -> Iterator[nn.Module]:
    """Lists of blocks, and children that compute; instead of a child with a list of blocks inside, its parts."""
    for child in model.children():
        if isinstance(child, nn.ModuleList):
            yield child
        elif divisible(child) or not computes(child):
            yield from parts(child)
        else:
            yield child


def divisible(module: nn.Module) -> bool:
    """Whether there is a list of blocks within: modules that are called, and have parameters."""
    return any(
        isinstance(inner, nn.ModuleList) and any(computes(block) and [*block.parameters()] for block in inner)
        for inner in module.modules()
    )


def warn_of_one_unit(model: nn.Module, units: Sequence[Sequence[nn.Module]]) -> None:
    """Say so where the usual choice leaves the whole model in one piece, although it has parts.

    Such a model is whole on every rank whenever it computes: shards save the optimizer's memory, as ZeRO-1 does.
    """
    total = sum(parameter.numel() for parameter in model.parameters())
    largest = max((sum(p.numel() for module in unit for p in module.parameters()) for unit in units), default=total)
    parts = [module for module in model.modules() if any(True for _ in module.parameters(recurse=False))]
    if len(parts) > 1 and largest == total:
        warnings.warn(
            f"all of this {type(model).__name__} is in one unit, so every rank gathers all of it at once: name its "
            "blocks, units=[[block] for block in ...]",
            stacklevel=3,
        )


def lists_of(units: Iterable[Iterable[nn.Module]]) -> list[list[nn.Module]]:
    """Units that may be read more than once, as a generator may not. A module in the place of a unit stays what it is.

    `require_units` refuses it.
    """
    return [unit if isinstance(unit, nn.Module) else list(unit) for unit in units]


def require_units(model: nn.Module, units: Sequence[Sequence[nn.Module]]) -> None:
    """Refuse units that no hook could gather when they are needed.

    Raises:
        BadInput: that says what is wrong with one of them.
    """
    modules = set(model.modules())
    within: set[nn.Module] = set()  # units that came before
    for unit in units:
        if isinstance(unit, nn.Module):
            raise BadInput("a unit is a list of modules that are gathered together: units=[[block] for block in ...]")
        for module in unit:
            kind = type(module).__name__
            if module not in modules:
                raise BadInput(f"a {kind} in units is no module of the model")
            if not computes(module):
                raise BadInput(
                    f"a {kind} computes nothing, so no hook can tell when to gather it: name its blocks, "
                    "units=[[block] for block in ...]"
                )
            if module in within:
                raise BadInput(f"a {kind} lies within a unit before it, which has its parameters: name the inner first")
        within |= {inner for module in unit for inner in module.modules()} - set(unit)


def computes(module: nn.Module) -> bool:
    """False for containers, such as a `ModuleList`: they are not called, so their hooks say nothing."""
    return type(module).forward is not nn.Module.forward
