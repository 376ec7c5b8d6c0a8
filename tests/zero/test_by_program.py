"""Units that a program unshards and reshards learn the same as one process, whenever it lets them go."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.cluster import RankError
from reference.data_parallel import gather_full
from reference.memory.precision import PRECISIONS
from reference.zero import FullyShardedByProgram

MICRO_BATCHES = 3


class Stage(nn.Module):
    """Two units, a weight that several modules use, one that is frozen and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(2))
        self.scale = nn.Parameter(torch.randn(5))
        self.frozen = nn.Parameter(torch.randn(5), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(3))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x) * self.scale + self.frozen)
        return x


def batch(rank: int, micro_batch: int) -> Tensor:
    seed = torch.Generator().manual_seed(10 * rank + micro_batch)
    return torch.randn(2, 5, dtype=torch.float64, generator=seed)


def step(reshards_after: set[int]) -> tuple[dict[str, Tensor], list[list[bool]], int]:
    """Gradients by name; after each micro-batch which units are whole; elements of gradients while it is resharded."""
    model = Stage()
    form = FullyShardedByProgram(model, dist.group.WORLD, PRECISIONS["fp64"])
    there, elements = [], 0
    for k in range(MICRO_BATCHES):
        form.unshard(form.units)
        loss = model(batch(dist.get_rank(), k)).square().sum()
        with form.micro_batch(last=k == MICRO_BATCHES - 1):
            loss.backward()
        if k in reshards_after:
            form.reshard()
            elements = sum(gradient.untyped_storage().nbytes() // 8 for gradient in form.gradients())
        there.append([unit.whole for unit in form.units])
    form.reduce_gradients()
    gradients = gather_full(form, lambda part: part.master.grad)
    form.end_step()
    there.append([unit.whole for unit in form.units])
    return gradients, there, elements


@pytest.mark.parametrize("reshards_after", [set(), {0}, {0, 1, 2}])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_gradients_are_those_of_one_process(clusters, n: int, reshards_after: set[int]) -> None:
    model = Stage()
    sum(model(batch(rank, k)).square().sum() for rank in range(n) for k in range(MICRO_BATCHES)).backward()
    expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    expected["unused"] = torch.zeros(3, dtype=torch.float64)
    for found, there, _ in clusters(n).run(step, reshards_after):
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-12, atol=1e-14)
        assert [all(units) for units in there] == [k not in reshards_after for k in range(MICRO_BATCHES)] + [False]
        assert not any(there[-1])


def test_a_rank_that_lets_go_keeps_shards_of_gradients_and_one_bucket_under_way(clusters) -> None:
    _, _, elements = clusters(3).run(step, {0})[0]
    layer, rest = 30, 9  # elements of a unit padded to 3 ranks: one of the layers, and scale with unused
    assert elements <= (layer + layer + rest) // 3 + layer


def too_early() -> None:
    FullyShardedByProgram(model := Stage(), dist.group.WORLD, PRECISIONS["fp64"])
    model(batch(0, 0))


def test_what_the_program_has_not_gathered_is_named(clusters) -> None:
    with pytest.raises(RankError, match=r"layers\.0\.\w+ is sharded, and whole while the model computes"):
        clusters(2).run(too_early)
