"""Situations in which a solution must be right: those that a puzzle names, and those that each check draws anew."""

import itertools
import random
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from . import exact

_APART = 1_000_003  # between the seeds of two checks, so that no case of one has the seed of another case of the other


@dataclass(frozen=True)
class Case:
    """One situation in which a solution must be right. Its parameters read as attributes: `case.length`.

    Attributes:
        world_size: ranks that run.
        seed: what its random tensors follow from.
        members: global ranks of the group, ascending; None for the group of all.
    """

    world_size: int
    seed: int = 0
    members: tuple[int, ...] | None = None
    parameters: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if hidden := [key for key, _ in self.parameters if hasattr(Case, key)]:
            raise ValueError(f"a case has {hidden[0]!r} of its own: name the parameter otherwise")
        if self.members is not None and list(self.members) != sorted(set(self.members)):
            raise ValueError(f"torch sorts the members of a group: {self.members} must be in order")

    def __getattr__(self, name: str) -> Any:
        for key, value in object.__getattribute__(self, "parameters"):
            if key == name:
                return value
        raise AttributeError(f"this case has no parameter {name!r}, only {[key for key, _ in self.parameters]}")

    def get(self, name: str, usual: Any) -> Any:
        """A parameter; `usual` where this case does not have it."""
        return dict(self.parameters).get(name, usual)

    @property
    def n(self) -> int:
        """Ranks in the group."""
        return self.world_size if self.members is None else len(self.members)

    @property
    def global_ranks(self) -> tuple[int, ...]:
        """Global ranks of the group, in group order."""
        return tuple(range(self.world_size)) if self.members is None else self.members

    def tensor(self, rank: int, *shape: int, dtype: torch.dtype | None = None, name: str = "x") -> Tensor:
        """Numbers whose sums are exact, other ones for each rank, seed and name; the same whenever it is asked again.

        In the case's `dtype`, where it has one, else in float32. With signs, fractions, zeros: see `exact`.
        """
        dtype = dtype or dict(self.parameters).get("dtype", torch.float32)
        return exact.summands(shape, dtype, self._seed(name), self._seed(rank, name))

    def factors(self, rank: int, *shape: int, name: str = "x") -> Tensor:
        """Numbers in float64 of which sums of products are exact, seeded like `tensor`."""
        return exact.factors(shape, self._seed(name), self._seed(rank, name))

    def normal(self, rank: int, *shape: int, dtype: torch.dtype = torch.float64, name: str = "x") -> Tensor:
        """Normally distributed numbers, seeded like `tensor`; for derivatives and averages. Large ones repeat."""
        generator = torch.Generator().manual_seed(self._seed(rank, name))
        return exact.tiled(shape, lambda few: torch.randn(tuple(few), generator=generator, dtype=dtype))

    def _seed(self, *of: Any) -> int:
        return zlib.crc32(" ".join(map(str, (self.seed, *of))).encode())

    def __str__(self) -> str:
        ranks = f"{self.world_size} rank{'s' if self.world_size > 1 else ''}"
        group = f"a group of ranks {list(self.members)} of {self.world_size}" if self.members is not None else ranks
        return ", ".join([group, *(f"{key}={short(value)}" for key, value in self.parameters)])


def short(value: Any) -> str:
    """A parameter, for people."""
    if isinstance(value, tuple) and len(value) > 9 and len(set(value)) == 1:
        return f"{len(value)} times {short(value[0])}"
    name = getattr(value, "name", None)  # of an enum, such as dist.ReduceOp.SUM
    return f"{value:g}" if isinstance(value, float) else name or str(value).removeprefix("torch.")


def cases(
    *, worlds: Sequence[int], members: tuple[int, ...] | None = None, **parameters: Sequence | Callable[[int], Sequence]
) -> tuple[Case, ...]:
    """Every world size with every combination of parameters, each case with a seed of its own.

    Args:
        worlds: world sizes.
        members: global ranks of the group, where not all ranks are in it.
        parameters: values to try; a function of the group's size where they depend on it, such as
            `root=lambda n: {0, n - 1}`.
    """
    found: list[Case] = []
    for world_size in worlds:
        n = len(members) if members else world_size
        values = [list(choice(n)) if callable(choice) else list(choice) for choice in parameters.values()]
        for combination in itertools.product(*values):
            seed = 1000 * world_size + len(found)
            found.append(Case(world_size, seed, members, tuple(zip(parameters, combination, strict=True))))
    return tuple(found)


def case(world_size: int, **parameters: Any) -> Case:
    """One case, of these parameters."""
    return Case(world_size, parameters=tuple(parameters.items()))


@dataclass(frozen=True)
class Drawn:
    """A case of which each check draws one anew, so that no table of known cases is right.

    Attributes:
        worlds: world sizes to draw from; one that stands there twice is drawn twice as often.
        parameters: what to draw each parameter from, in order: a sequence, or a function of what is drawn so far:
            `root=lambda so_far: range(so_far.n)`.
    """

    worlds: Sequence[int]
    parameters: tuple[tuple[str, Sequence | Callable[[SimpleNamespace], Sequence]], ...]

    def draw(self, chance: random.Random) -> Case:
        """One case."""
        world_size = chance.choice(self.worlds)
        so_far, values = SimpleNamespace(n=world_size), []
        for name, choice in self.parameters:
            value = chance.choice(list(choice(so_far) if callable(choice) else choice))
            setattr(so_far, name, value)
            values.append((name, value))
        return Case(world_size, chance.randrange(1 << 30), None, tuple(values))


LARGE = (9, 9, 9, 10)  # more ranks than any case that a puzzle names, and no more: they share a core or two
SMALL = (2, 3, 4, 5, 6, 7, 8)


def drawn(*, worlds: Sequence[int], **parameters: Sequence | Callable[[SimpleNamespace], Sequence]) -> Drawn:
    """A case to be drawn anew: see `Drawn`."""
    return Drawn(worlds, tuple(parameters.items()))


def on_any_ranks(**parameters: Sequence | Callable[[SimpleNamespace], Sequence]) -> tuple[Drawn, ...]:
    """Two cases for puzzles that take any number of ranks: on a few of them, and on more than any other case has."""
    return drawn(worlds=SMALL, **parameters), drawn(worlds=LARGE, **parameters)


def magnitudes(low: int, high: int) -> tuple[float, ...]:
    """Numbers from 10^low to below 10^high to draw from, as many of each power of ten."""
    return tuple(float(f"{digits}e{power}") for power in range(low, high) for digits in (1, 1.7, 2.9, 4.3, 5.1, 7.7))


def divisors(n: int) -> list[int]:
    """All numbers that divide n."""
    return [number for number in range(1, n + 1) if n % number == 0]


def new_seed() -> int:
    """A seed of a check, short enough to be typed."""
    return random.SystemRandom().randrange(1, 1_000_000)


def dealt(named: Iterable[Case], drawn: Iterable[Drawn], seed: int, of: str = "") -> tuple[Case, ...]:
    """The cases of a check: those named, with other values for each seed, and one of each that is drawn.

    Puzzles of other names, `of`, draw other cases.
    """
    chance = random.Random(f"{of} {seed}")
    again = tuple(replace(case, seed=case.seed + _APART * seed) for case in named)
    return again + tuple(each.draw(chance) for each in drawn)
