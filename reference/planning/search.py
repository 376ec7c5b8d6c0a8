"""All layouts of a job, and the fastest that fit.

A table of sizes grows column by column: each row is crossed with what the next column may be, and rows go as soon as
one of `refusals.CONDITIONS` does not hold of them. Choices that are words (sharding, recomputation, schedule) are not
columns: there is one `Layouts` for each combination, with the rows that make sense for it. Those are predicted in
blocks that stay in a core's cache, first their memory, and seconds of those alone that fit.

| model, GPUs           | layouts that divide                                                                  |
|-----------------------|--------------------------------------------------------------------------------------|
| of n = 2^k GPUs       | (k+3 over 3) meshes, less what a model's heads and layers do not allow               |
| and of each mesh      | micro-batches x chunks x 4 shardings x 3 recomputations x 12 schedules x 2           |

The same layout is tried once: with one rank along an axis there is nothing to share out, and no choice of how.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np

from reference.choices import Recompute
from reference.errors import BadInput
from reference.plan import LOOPED, PipelineSchedule

from . import memory, step
from .constants import of_gpu
from .job import Job
from .layouts import SIZES, Column, Layouts, Sharding
from .predict import Prediction, predict
from .refusals import CONDITIONS, V_SHAPED, Condition, Values

BLOCK = 16_384  # layouts: some 30 columns of them in float64 fill a cache of a few megabytes
Table = dict[str, np.ndarray]


@dataclass(frozen=True)
class SearchSpace:
    """What is tried.

    Attributes:
        shardings, recomputes, schedules, sequence_parallel: choices.
        sizes: those that are given, by name: {"tp": 8}. All others take every value that divides.
    """

    shardings: tuple[Sharding, ...] = tuple(Sharding)
    recomputes: tuple[Recompute, ...] = tuple(Recompute)
    schedules: tuple[PipelineSchedule, ...] = tuple(PipelineSchedule)
    sequence_parallel: tuple[bool, ...] = (False, True)
    sizes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def given(self, **values: Any) -> "SearchSpace":
        """The part of it in which sizes and choices, called as in `Layouts`, are these."""
        plural = {"sharding": "shardings", "recompute": "recomputes", "schedule": "schedules"}
        sizes = {name: int(value) for name, value in values.items() if name in SIZES}
        choices = {plural.get(name, name): (value,) for name, value in values.items() if name not in SIZES}
        return replace(self, sizes=MappingProxyType({**self.sizes, **sizes}), **choices)


def layouts(job: Job, space: SearchSpace | None = None) -> Iterator[Layouts]:
    """All layouts of a job that divide, in blocks of one kind each."""
    space = SearchSpace() if space is None else space
    axes = _axes(job, space)
    for chunked in (_alone, _looped, _folded):
        table, schedules = chunked(job, space, axes)
        kinds = product(space.shardings, space.recomputes, schedules, space.sequence_parallel)
        for sharding, recompute, schedule, sequence_parallel in kinds:
            choices = {
                "sharding": sharding,
                "recompute": recompute,
                "schedule": schedule,
                "sequence_parallel": sequence_parallel,
            }
            yield from _blocks(_sensible(job, table, choices), choices)


def _axes(job: Job, space: SearchSpace) -> Table:
    """Meshes, and micro-batches on each."""
    gpus = divisors(job.cluster.gpus)
    table: Table = {}
    for name in ("tp", "cp", "pp"):
        table = _crossed(job, space, table, name, gpus)
        table = _rows(table, np.mod(job.cluster.gpus, _ranks(table)) == 0)
    table["dp"] = job.cluster.gpus / _ranks(table)
    table = _rows(table, table["dp"] == space.sizes.get("dp", table["dp"]))
    experts = gpus if job.model.experts else [1]
    for name, values in (("micro_batch", divisors(job.batch)), ("ep", experts), ("etp", experts)):
        table = _crossed(job, space, table, name, values)
    return table


def _ranks(table: Table) -> np.ndarray:
    return np.prod([table[name] for name in ("tp", "cp", "pp") if name in table], axis=0)


def _alone(job: Job, space: SearchSpace, axes: Table) -> tuple[Table, list[PipelineSchedule]]:
    """With one stage on each rank."""
    looped = [schedule for schedule in space.schedules if schedule not in (*LOOPED, *V_SHAPED)]
    return _crossed(job, space, axes, "chunks", [1]), looped


def _looped(job: Job, space: SearchSpace, axes: Table) -> tuple[Table, list[PipelineSchedule]]:
    """With as many as there are layers for."""
    piped = _rows(axes, axes["pp"] > 1)
    most = job.model.layers // 2
    return _crossed(job, space, piped, "chunks", range(2, most + 1)), [s for s in space.schedules if s in LOOPED]


def _folded(job: Job, space: SearchSpace, axes: Table) -> tuple[Table, list[PipelineSchedule]]:
    """With two, which make a V."""
    piped = _rows(axes, axes["pp"] > 1)
    return _crossed(job, space, piped, "chunks", [2]), [s for s in space.schedules if s in V_SHAPED]


def _crossed(job: Job, space: SearchSpace, table: Table, name: str, values: Iterable[int]) -> Table:
    """Each row with each value of one more column, as far as conditions that look at these columns hold."""
    values = np.array([value for value in values if space.sizes.get(name, value) == value], dtype=np.float64)
    rows = len(next(iter(table.values()))) if table else 1
    table = {other: np.repeat(column, len(values)) for other, column in table.items()}
    table[name] = np.tile(values, rows)
    for condition in CONDITIONS:
        if name in condition.about and set(condition.about) <= set(table):
            table = _rows(table, condition.holds(job, table))
    return table


def _rows(table: Table, mask: np.ndarray) -> Table:
    return table if np.all(mask) else {name: column[mask] for name, column in table.items()}


_OF_CHOICES: tuple[Condition, ...] = tuple(each for each in CONDITIONS if not set(each.about) <= set(SIZES))


def _sensible(job: Job, table: Table, choices: Mapping[str, Any]) -> Table:
    """The rows of which these choices can be made, and are no other ones under another name."""
    at = {**table, **choices}
    mask = np.logical_and.reduce([condition.holds(job, at) for condition in _OF_CHOICES])
    if choices["sharding"] is not Sharding.NONE:
        mask = mask & sums_gradients(job, table)
    return _rows(table, mask)


def sums_gradients(job: Job, at: Values) -> Column:
    """Whether several ranks of a stage have the same matrices, or the same experts: else there is nothing to share."""
    stage = at["tp"] * at["cp"] * at["dp"]
    of_experts = (stage > at["ep"] * at["etp"]) if job.model.experts else False
    return (at["cp"] * at["dp"] > 1) | of_experts


def _blocks(table: Table, choices: Mapping[str, Any]) -> Iterator[Layouts]:
    for begin in range(0, len(table["tp"]), BLOCK):
        yield Layouts(**{name: column[begin : begin + BLOCK] for name, column in table.items()}, **choices)


def divisors(n: int) -> list[int]:
    """In order."""
    small = [k for k in range(1, int(n**0.5) + 1) if n % k == 0]
    return sorted({*small, *(n // k for k in small)})


@dataclass(frozen=True)
class SearchResult:
    """What a search has found.

    Attributes:
        tried: layouts that divide.
        fitting: those of them that fit into memory.
        best: the fastest that fit, each with other axes, the fastest first.
        frontier: those that fit and than which no other is both faster and smaller; the smallest first.
        smallest: the one that needs least memory, whether it fits or not.
    """

    job: Job
    tried: int
    fitting: int
    best: tuple[Prediction, ...]
    frontier: tuple[Prediction, ...]
    smallest: Prediction


def search(job: Job, space: SearchSpace | None = None, count: int = 5) -> SearchResult:
    """Try all layouts of a job.

    Args:
        job: what is to be trained.
        space: the part of all layouts that is tried.
        count: of the best ones.

    Raises:
        BadInput: if no layout divides.
    """
    constants = of_gpu(job.cluster.gpu)
    tried, fitting, best, frontier, smallest = 0, 0, _Fastest(count), _Frontier(), _Smallest()
    for block in layouts(job, space):
        tried += len(block)
        held = sum(memory.parts(job, block).values())
        smallest.add(block, held)
        fits = held <= job.cluster.gpu.memory
        if not np.any(fits):
            continue
        fitted, held = block.take(fits), held[fits]
        seconds = sum(step.parts(job, fitted, constants).values())
        fitting += len(fitted)
        best.add(fitted, seconds)
        frontier.add(fitted, seconds, held)
    if not tried:
        raise BadInput(nothing_divides(job))
    found = (tuple(predict(job, layout) for layout in each.layouts) for each in (best, frontier))
    return SearchResult(job, tried, fitting, *found, predict(job, smallest.layout))


def nothing_divides(job: Job) -> str:
    """What is wrong with a job for which there is no layout, and what would do."""
    return (
        f"no layout divides {job.cluster.gpus:,} GPUs, {job.batch:,} windows, {job.model.heads} heads and "
        f"{job.model.layers} layers: take as many windows as GPUs, or a multiple"
    )


class _Smallest:
    """The layout that needs least memory."""

    def __init__(self) -> None:
        self.bytes, self.layout = np.inf, None

    def add(self, block: Layouts, held: Column) -> None:
        row = int(np.argmin(held))
        if held[row] < self.bytes:
            self.bytes, self.layout = float(held[row]), block.take(row)


class _Fastest:
    """The fastest layout of each mesh, of so many meshes. Of equally fast ones, that with most replicas."""

    def __init__(self, count: int) -> None:
        self.count, self.found, self.limit = count, {}, np.inf

    def add(self, block: Layouts, seconds: Column) -> None:
        rows = np.flatnonzero(seconds <= self.limit)
        if not len(rows):
            return
        rows = rows[np.argsort(seconds[rows], kind="stable")]
        meshes = np.stack([getattr(block, name)[rows] for name in _MESH])
        first = np.sort(np.unique(meshes, axis=1, return_index=True)[1])  # of each mesh, in the order of seconds
        for row in rows[first]:
            mesh = tuple(int(getattr(block, name)[row]) for name in _MESH)
            if mesh not in self.found or seconds[row] < self.found[mesh][0]:
                self.found[mesh] = (float(seconds[row]), block.take(row))
        self.found = dict(self.ranked[: self.count])
        if len(self.found) == self.count:
            self.limit = self.ranked[-1][1][0] * (1 + ALIKE)

    @property
    def ranked(self) -> list[tuple[tuple[int, ...], tuple[float, Layouts]]]:
        """Meshes with their seconds and layouts."""
        return sorted(self.found.items(), key=lambda each: (float(f"{each[1][0]:.9g}"), -each[0][_MESH.index("dp")]))

    @property
    def layouts(self) -> list[Layouts]:
        return [layout for _, (_, layout) in self.ranked]


ALIKE = 1e-9  # relative: sums in another order
_MESH = ("tp", "cp", "dp", "pp", "ep", "etp")


class _Frontier:
    """Layouts of which no other is faster and smaller."""

    def __init__(self) -> None:
        self.bytes, self.seconds, self.layouts = np.array([]), np.array([]), []

    def add(self, block: Layouts, seconds: Column, held: Column) -> None:
        at = np.searchsorted(self.bytes, held, side="right")  # how many of the frontier are no larger
        rows = np.flatnonzero(seconds < np.concatenate([[np.inf], self.seconds])[at])
        rows = rows[_undominated(held[rows], seconds[rows])]
        if not len(rows):
            return
        held, seconds = (np.concatenate(both) for both in ((self.bytes, held[rows]), (self.seconds, seconds[rows])))
        everything = [*self.layouts, *(block.take(row) for row in rows)]
        kept = _undominated(held, seconds)
        self.bytes, self.seconds = held[kept], seconds[kept]
        self.layouts = [everything[row] for row in kept]


def _undominated(held: Column, seconds: Column) -> np.ndarray:
    """Indices of the points than which none is both smaller and faster, the smallest first."""
    order = np.lexsort((seconds, held))
    so_far = np.minimum.accumulate(seconds[order]) if len(order) else seconds
    is_better = np.concatenate([[True], so_far[1:] < so_far[:-1]])[: len(order)]
    return order[is_better]
