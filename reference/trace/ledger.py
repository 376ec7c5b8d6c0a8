"""The ledger: which ranks' parts are in a sum, how often, and by which factor.

Whatever is summed over ranks (gradients, losses, squares of a norm, counts of a router) looks right if a rank is left
out, counted twice or averaged: training still converges, to something else. So the parts are dyed. Rank r's part is
base^r instead of what it was; then each digit of the sum says how often that rank's part is in it:

    base 64, ranks 0 to 3, sum over ranks 0 and 2        1 · 64^0 + 1 · 64^2       digits 1 0 1 0
    summed once more over the same two ranks             2 · 64^0 + 2 · 64^2       digits 2 0 2 0
    a mean instead of a sum                              half of it                digits ½ 0 ½ 0

What comes out is compared with what a spec says (`reference.sharding`), and what is wrong has a name: the axis that was
forgotten, taken twice, or confused with another. A trace of the same step knows the lines that talk along it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite

import torch
from torch import Tensor, nn

from reference.errors import BadInput
from reference.mesh import Mesh
from reference.sharding import Spec, gradient_axes

from .events import Op
from .trace import Trace

BITS = 52  # of a float64, in which all digits must have room
LARGEST_DIVISOR = 64  # of a factor 1/k that is looked for

Shares = tuple[Fraction, ...]
"""How often the part of rank 0, 1, ... is in a sum."""


@dataclass(frozen=True)
class Dye:
    """A digit for each of n ranks.

    Raises:
        BadInput: for more ranks than a float64 has digits for.
    """

    ranks: int
    room: int = BITS  # bits of all digits together; few, where they go through a root

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= BITS // 2:
            raise BadInput(f"a dyed step has 1 to {BITS // 2} ranks, not {self.ranks}: a float64 has no more digits")

    @property
    def base(self) -> int:
        """A power of 4, so that it also has a root; more than any count."""
        return 4 ** min(5, self.room // 2 // self.ranks)

    def of(self, rank: int) -> float:
        """What stands for the part of a rank."""
        return float(self.base**rank)

    def shares(self, value: float) -> Shares | None:
        """How often each rank's part is in a sum; None for what is no sum of parts.

        Some values can be read in several ways: a third of 1 1 1 in base 4 is a whole number. Then the reading in which
        all parts that are there count alike is meant.
        """
        readings = list(self._readings(value))
        alike = (shares for shares in readings if len({share for share in shares if share}) == 1)
        return next(alike, readings[0] if readings else None)

    def _readings(self, value: float) -> Iterator[Shares]:
        """As whole digits, halves, thirds, ..., wherever that comes out."""
        if not isfinite(value):
            return
        for divisor in range(1, LARGEST_DIVISOR + 1):
            whole = round(value * divisor)
            if abs(value * divisor - whole) < 1e-6 + abs(value) * 2**-51 and 0 <= whole < self.base**self.ranks:
                digits = [whole // self.base**rank % self.base for rank in range(self.ranks)]
                yield tuple(Fraction(digit, divisor) for digit in digits)


@contextmanager
def dyed(parameters: Iterable[nn.Parameter], value: float) -> Iterator[None]:
    """Whatever gradient these parameters get inside is `value` in each element."""
    hooks = [p.register_hook(lambda gradient: torch.full_like(gradient, value)) for p in parameters if p.requires_grad]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(frozen=True)
class Entry:
    """One sum, as one rank has it.

    Attributes:
        what: "gradient", "loss", "norm", "router".
        name: of the parameter, or of the number.
        rank: that has it.
        found: for each kind of element, how often each rank's part is in it; None for what is no sum of parts.
        due: ranks whose part should be in it.
        times: how often; the number of micro-batches, for a gradient.
        mesh: whose axes the sum goes along.
    """

    what: str
    name: str
    rank: int
    found: tuple[Shares | None, ...]
    due: frozenset[int]
    times: int
    mesh: Mesh

    @property
    def fault(self) -> str | None:
        """What is wrong with it, in words; None if nothing is."""
        for shares in self.found:
            if fault := self._fault(shares):
                return fault
        return None

    @property
    def axes(self) -> tuple[str, ...]:
        """Along which the sum should go."""
        return spanned(self.mesh, self.rank, self.due)

    def _fault(self, shares: Shares | None) -> str | None:
        if shares is None:
            return "is no sum of the ranks' parts"
        per = [share / self.times for share in shares]
        there = frozenset(rank for rank, share in enumerate(per) if share)
        if not there:
            return "has no rank's part"
        if there == self.due and len(values := {per[rank] for rank in there}) == 1:
            return _of_factor(values.pop(), self.mesh, self.axes)
        if forgotten := self.due - there:
            axes = [axis for axis in self.axes if axis not in spanned(self.mesh, self.rank, there)]
            where = f"is not summed along {' and '.join(axes)}" if axes else "lacks parts"
            return f"{where}: on rank {self.rank}, without rank{'s' * (len(forgotten) > 1)} {_list(forgotten)}"
        if extra := there - self.due:
            axes = [axis for axis in spanned(self.mesh, self.rank, there) if axis not in self.axes]
            where = f"is summed along {' and '.join(axes)}, too"
            return f"{where}: on rank {self.rank}, with rank{'s' * (len(extra) > 1)} {_list(extra)}"
        counts = ", ".join(f"rank {rank} {per[rank]} times" for rank in sorted(there) if per[rank] != 1)
        return f"counts some parts wrong: {counts}"


def _of_factor(factor: Fraction, mesh: Mesh, axes: Sequence[str]) -> str | None:
    """What a factor of all parts means."""
    if factor == 1:
        return None
    if factor.denominator == 1:
        twice = [axis for axis in axes if mesh.size(axis) == factor]
        where = f", as if summed twice along {' or '.join(twice)}" if twice else ""
        return f"counts each part {factor} times{where}"
    means = [axis for axis in axes if mesh.size(axis) == 1 / factor]
    where = f", as if it were a mean along {' or '.join(means)}" if means else ""
    return f"counts {factor} of each part{where}"


def spanned(mesh: Mesh, rank: int, ranks: Iterable[int]) -> tuple[str, ...]:
    """The axes along which some of these ranks stand apart from a rank."""
    apart = {axis for other in ranks for axis in mesh.apart(rank, other)}
    return tuple(axis for axis in mesh.names if axis in apart)


def _list(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))


@dataclass(frozen=True)
class Ledger:
    """All entries of all ranks, and what these ranks said to each other meanwhile."""

    entries: tuple[Entry, ...]
    trace: Trace | None = None

    @property
    def faults(self) -> list[str]:
        """What is wrong, each fault once: what, where, and the lines that talk along that axis, if any do."""
        found: dict[tuple[str, str, str], Entry] = {}
        for entry in self.entries:
            if entry.fault:
                found.setdefault((entry.what, entry.name, entry.fault.partition(":")[0]), entry)
        return [f"{what} {name} {entry.fault}{self._lines(entry)}" for (what, name, _), entry in found.items()]

    def table(self) -> list[tuple[str, str, str, str]]:
        """A row for each sum: what, name, the axes that it should go along, and what is wrong or "once"."""
        rows: dict[tuple[str, str], tuple[str, str, str, str]] = {}
        for entry in self.entries:
            row = entry.what, entry.name, " x ".join(entry.axes) or "-", entry.fault or "once"
            if entry.fault or (entry.what, entry.name) not in rows:
                rows[entry.what, entry.name] = row
        return list(rows.values())

    def _lines(self, entry: Entry) -> str:
        """Where in the program the groups of this sum are used."""
        if self.trace is None:
            return ""
        groups = [frozenset(entry.due), *(frozenset(entry.mesh.group_of(entry.rank, a)) for a in entry.axes)]
        lines = lines_of(self.trace, entry.rank, groups)
        return f" ({', '.join(lines)})" if lines else " (no line talks along it)"


def lines_of(trace: Trace, rank: int, groups: Sequence[frozenset[int]]) -> list[str]:
    """Lines on which a rank talks to one of these groups as a whole: where sums along axes are made."""
    talks = [
        f"{event.file}:{event.line}"
        for event in trace.events[rank]
        if len(event.group) > 1 and frozenset(event.group) in groups and event.op is not Op.BARRIER
    ]
    return list(dict.fromkeys(talks))


def entries_of(
    gradients: Mapping[str, Tensor],
    due: Mapping[str, frozenset[int]],
    mesh: Mesh,
    rank: int,
    dye: Dye,
    times: int = 1,
    what: str = "gradient",
) -> list[Entry]:
    """Entries of one rank, for sums of dyed parts.

    Args:
        gradients: what came out, by name.
        due: ranks whose parts should be in each.
        mesh, rank, dye, times, what: as for `Entry`.

    Raises:
        BadInput: if a digit has no room for so many parts of one rank.
    """
    if times >= dye.base:
        raise BadInput(
            f"a sum has {times} parts of each of {dye.ranks} ranks, and a digit counts to {dye.base - 1}: take fewer "
            "micro-batches, or fewer ranks"
        )
    found = {name: tuple(dye.shares(float(value)) for value in x.unique()) for name, x in gradients.items()}
    return [Entry(what, name, rank, shares, due[name], times, mesh) for name, shares in found.items()]


def record(
    step: Callable[[], object],
    parameters: Mapping[str, nn.Parameter],
    specs: Mapping[str, Spec],
    mesh: Mesh,
    batch: Sequence[str],
    rank: int,
    times: int = 1,
) -> list[Entry]:
    """Take one step of a program with dyed gradients, and say what is in each afterwards: entries of this rank.

        def main():                                    # rankwise trace --ledger program.py
            ...
            return record(step, dict(model.named_parameters()), specs, mesh, batch=("dp",), rank=dist.get_rank())

    Args:
        step: forward, backward and all sums of gradients, up to the optimizer, which is not called. All ranks call it.
        parameters: of this rank, whose `grad` is the whole gradient after a step.
        specs: of each, by name; by default a replica, see `reference.sharding`.
        mesh: of all ranks.
        batch: axes along which ranks read different tokens, and all have a part of each gradient.
        rank: of this one.
        times: how often backward comes by each parameter in a step: once in each micro-batch.

    Raises:
        BadInput: for a parameter that has no gradient afterwards.
    """
    dye, due = Dye(len(mesh.ranks)), {}
    for name in parameters:
        axes = gradient_axes(specs.get(name, Spec()), mesh, batch)
        due[name] = frozenset(mesh.group_of(rank, *axes))
    with dyed(parameters.values(), dye.of(rank)):
        step()
    if missing := [name for name, parameter in parameters.items() if parameter.grad is None]:
        raise BadInput(f"{missing[0]} has no gradient after the step: the ledger reads `grad` of each parameter")
    return entries_of({name: p.grad for name, p in parameters.items()}, due, mesh, rank, dye, times)
