"""Any order, ranks 1 to 8, micro-batches 1 to 16, stages on a rank 1 to 4: a pipeline computes what one process does.

All combinations are proved on paper (`test_every_order_computes_a_step` here and of zero_bubble). Of real runs there is
a dealt part: with each order every number of ranks, every number of micro-batches and every number of stages on a rank
occurs, also more ranks than micro-batches. The layers are as small as layers can be.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.cluster import Cluster
from reference.oracle import alone, relative_difference
from reference.pipeline_parallel.balance import balanced
from reference.pipeline_parallel.run import Pipeline
from reference.pipeline_parallel.split_backward import DeferredWeightGradients, split_backward

from .pipes import LOOPED, SPLIT, STRAIGHT, Make

LAYERS, WIDTH = 32, 3
RANKS, MICRO_BATCHES, CHUNKS = range(1, 9), range(1, 17), range(1, 5)
Gradients = dict[int, Tensor]
"""By layer."""


@dataclass(frozen=True)
class Case:
    """A pipeline that is run."""

    name: str
    make: Make
    ranks: int
    micro_batches: int
    chunks: int = 1  # stages on a rank, where the order leaves that open


def dealt() -> list[Case]:
    """Every number with every order; and other pairs of numbers with each order."""
    cases = []
    for offset, (name, order) in enumerate((STRAIGHT | SPLIT).items()):
        ranks = [p for p in RANKS if name != "dual_pipe" or p % 2 == 0]
        cases += [Case(name, order.make, ranks[(m + 2 * offset) % len(ranks)], m) for m in MICRO_BATCHES]
    for offset, name in enumerate(("interleaved", "interleaved-even", "breadth-first")):
        pairs = [(v, p) for v in CHUNKS for p in RANKS]
        for number, (v, p) in enumerate(pairs):
            m = MICRO_BATCHES[(5 * number + offset) % len(MICRO_BATCHES)]  # 5: as many m as there are for each v
            cases.append(Case(name, LOOPED[f"{name} {v}"].make, p, m, v))
    return cases


CASES = dealt()
NAMES = sorted({case.name for case in CASES})


class Layer(nn.Module):
    """x + tanh(x Wᵀ), whose backward can be split."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64)
        values = torch.randn(WIDTH, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(number))
        self.linear.weight.data.copy_(values / 2)

    def forward(self, x: Tensor) -> Tensor:
        """[2, WIDTH] -> the same."""
        return x + self.linear(x).tanh()


def given(k: int) -> tuple[Tensor]:
    """What micro-batch k is."""
    return (torch.randn(2, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(k)),)


def loss(y: Tensor, k: int) -> Tensor:
    """Micro-batches count differently, so that none can stand for another."""
    return (y.square().sum() + 1).log() * (k + 1)


@lru_cache
def one_process(m: int) -> tuple[float, Gradients]:
    """Loss and gradients of m micro-batches."""
    model = nn.Sequential(*map(Layer, range(LAYERS)))
    [step] = alone(model, None, lambda _: sum(loss(model(*given(k)), k) for k in range(m)), steps=1)
    return step.loss.item(), dict(enumerate(step.gradients.values()))


def pipelined(cases: list[Case]) -> list[tuple[float, Gradients]]:
    """This rank's part of it, of one case after the other."""
    groups = {ranks: dist.new_group(list(range(ranks))) for ranks in sorted({case.ranks for case in cases})}
    return [part_of(case, groups[case.ranks]) if dist.get_rank() < case.ranks else (0.0, {}) for case in cases]


def part_of(case: Case, group: dist.ProcessGroup) -> tuple[float, Gradients]:
    """Of one case."""
    schedule = case.make(case.ranks, case.micro_batches)
    pieces = balanced([1] * LAYERS, len(schedule.routes[0]))
    own = [stage for stage, rank in enumerate(schedule.placement) if rank == group.rank()]
    stages = {stage: nn.Sequential(*map(Layer, pieces[stage % len(pieces)])) for stage in own}
    split_backward(nn.ModuleList(stages.values()), deferred := DeferredWeightGradients())
    found = Pipeline(schedule, stages, group, torch.device("cpu"), deferred=deferred).step(given, loss)
    gradients: Gradients = {}
    for stage, layers in stages.items():
        for number, layer in zip(pieces[stage % len(pieces)], layers, strict=True):
            add(gradients, number, layer.linear.weight.grad)
    return 0.0 if found is None else found.item(), gradients


def add(gradients: Gradients, number: int, gradient: Tensor | None) -> None:
    """What two stages have copies of adds up; a copy that no micro-batch has passed has none."""
    if gradient is not None:
        gradients[number] = gradients[number] + gradient if number in gradients else gradient


@pytest.mark.turns(6)
@pytest.mark.parametrize("name", NAMES)
def test_it_equals_one_process(clusters: Callable[..., Cluster], name: str) -> None:
    """In float64 the order of additions costs 1e-15, a mistake 1e-3."""
    cases = [case for case in CASES if case.name == name]
    for case, *parts in zip(cases, *clusters(8).run(pipelined, cases), strict=True):
        gradients: Gradients = {}
        for _, found in parts:
            for number, gradient in found.items():
                add(gradients, number, gradient)
        expected_loss, expected = one_process(case.micro_batches)
        assert sum(part for part, _ in parts) == pytest.approx(expected_loss, rel=1e-12), case
        assert gradients.keys() == expected.keys(), case
        assert max(relative_difference(gradients[n], expected[n]) for n in expected) < 1e-10, case


@pytest.mark.parametrize("name", NAMES)
def test_every_number_occurs_with_every_order(name: str) -> None:
    cases = [case for case in CASES if case.name == name]
    assert {case.micro_batches for case in cases} == set(MICRO_BATCHES)
    assert {case.ranks for case in cases} == {p for p in RANKS if name != "dual_pipe" or p % 2 == 0}
    if name in ("interleaved", "interleaved-even", "breadth-first"):
        assert {(case.chunks, case.ranks) for case in cases} == {(v, p) for v in CHUNKS for p in RANKS}
    assert any(case.micro_batches < case.ranks for case in cases)
