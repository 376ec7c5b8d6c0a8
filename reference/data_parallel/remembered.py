"""What a form of data parallelism remembers from step to step, beside masters: what a rank did not send of a gradient.

It is a part of a run's state, as an optimizer's moments are, and goes where these go: into checkpoints, by the name of
the parameter.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor, nn

from .gradient_sync import GradientSync, ParameterShard


class About(Enum):
    """What values are about, which says where they fit."""

    ELEMENTS = auto()  # of a parameter, one for each: on any layout, values of several holders add up
    BLOCK = auto()  # of a parameter, as a whole: for any other block they mean nothing
    PARAMETER = auto()  # as a whole, wherever it is


@dataclass(frozen=True, eq=False)
class Remembered:
    """Values of one kind, of one parameter.

    Attributes:
        kind: "residual", say.
        part: where the elements are that they are about; its master are the values.
        about: what.
        holder: which of several ranks that have values of their own, about the same, this rank is; None where all that
            have any have the same.
        holders: how many such ranks there are.
    """

    kind: str
    part: ParameterShard
    about: About = About.ELEMENTS
    holder: int | None = None
    holders: int = 1

    @classmethod
    def of(
        cls, kind: str, name: str, values: Tensor, shape: torch.Size | None = None, begin: int = 0, **options: Any
    ) -> "Remembered":
        """Values of the parameter called `name`.

        Args:
            kind: of values.
            name: of the parameter.
            values: which are changed in place later, too.
            shape: of the whole parameter, where they are about its elements.
            begin: the first of these.
            options: the other fields.
        """
        held = nn.Parameter(values, requires_grad=False)
        part = ParameterShard(name, values.shape if shape is None else shape, begin, begin + values.numel(), held)
        return cls(kind, part, **options)

    @property
    def values(self) -> Tensor:
        """The tensor itself, to read from and to write to."""
        return self.part.master.detach()

    @property
    def key(self) -> str:
        """What it is called in a checkpoint."""
        return self._key_of(self.holder)

    def sources(self, known: Collection[str]) -> Iterator[str]:
        """The keys of a checkpoint whose values, added up, this rank takes over: several where there were more holders.

        Every holder's values come to one rank, so no sum over ranks changes.
        """
        if self.about is not About.ELEMENTS or self.holder is None:
            yield from [self.key] if self.key in known else []
            return
        holder = self.holder
        while (key := self._key_of(holder)) in known:
            yield key
            holder += self.holders

    def _key_of(self, holder: int | None) -> str:
        block = self.part.block
        where = f" at {list(block.begins)}" if block is not None and self.about is About.BLOCK else ""
        return f"{self.kind}{where}{'' if holder is None else f' {holder}'}.{self.part.name}"

    def placed(self, part: ParameterShard, holder: int, holders: int) -> "Remembered":
        """The same on a mesh.

        Args:
            part: the parameter there.
            holder, holders: among ranks that hold the same block and see other work with it, beside data parallelism.
        """
        if self.about is About.ELEMENTS:
            here = replace(self.part, shape=part.shape, block=part.block)
        else:
            here = replace(self.part, block=part.block)
        if holders == 1 or self.about is About.PARAMETER:
            return replace(self, part=here)
        mine = (self.holder or 0) * holders + holder
        return replace(self, part=here, holder=mine, holders=self.holders * holders)

    def as_saved(self) -> ParameterShard:
        """A part that is called as it is in a checkpoint."""
        return self._saved_as(self.key)

    def as_loaded(self, known: Collection[str]) -> dict[str, ParameterShard]:
        """The parts that are to be loaded for it, by key."""
        return {key: self._saved_as(key) for key in self.sources(known)}

    def _saved_as(self, key: str) -> ParameterShard:
        block = self.part.block if self.about is About.ELEMENTS else None
        return replace(self.part, name=key, block=block)


@contextmanager
def nothing_remembered(form: GradientSync) -> Iterator[None]:
    """Around steps that do not count: afterwards all is remembered as before."""
    before = [(each.values, each.values.clone()) for each in form.remembered]
    yield
    for values, copy in before:
        values.copy_(copy)
