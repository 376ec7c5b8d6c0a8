"""Plans are what they are, whatever carries what their ranks say: native, by hand, the fastest, or one of one's own."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from reference.cluster import Cluster
from reference.collectives.communicator import ByHand, Communicator, Finish, Native
from reference.collectives.default import Communicate
from reference.collectives.fast.dispatch import Fastest
from reference.config import TrainConfig
from reference.memory.precision import PRECISIONS
from reference.models import GPTConfig
from reference.oracle import Record, largest_difference, on_ranks, one_process
from reference.parallelize import DataParallelism, PipelineSchedule, Plan
from reference.zero import FullySharded

Clusters = Callable[..., Cluster]
RANKS = 4
BOUND = 1e-10  # in float64 the order of additions costs 1e-15, a mistake 1e-3
MODEL = GPTConfig(layers=4, width=16, heads=4, kv_heads=2, hidden=24, tied=True)
CONFIG = TrainConfig(MODEL, steps=3, batch=8, sequence=8, warmup=2, precision=PRECISIONS["fp64"])
PLANS = {
    "naive, of replicas": Plan(DataParallelism.NAIVE),
    "flat, over tensor axis": Plan(DataParallelism.FLAT, tensor_parallel=2),
    "DDP, slices": Plan(DataParallelism.DDP, tensor_parallel=2, sequence_parallel=True, micro_batches=2),
    "ZeRO-1, ring": Plan(DataParallelism.ZERO1, tensor_parallel=2, sequence_parallel=True, async_tensor_parallel=True),
    "ZeRO-2, pipeline": Plan(DataParallelism.ZERO2, pipeline_parallel=2, micro_batches=4),
    "FSDP, pipeline": Plan(
        DataParallelism.FSDP, pipeline_parallel=2, micro_batches=4, schedule=PipelineSchedule.INTERLEAVED
    ),
    "HSDP": Plan(DataParallelism.HSDP, dp_replicate=2),
    "zero bubble, scatter-gather": Plan(
        tensor_parallel=2, pipeline_parallel=2, micro_batches=4, schedule=PipelineSchedule.ZB_H1, scatter_gather=True
    ),
}


def trained(plan: Plan, communicate: Communicate) -> Record:
    return on_ranks(CONFIG, dist.group.WORLD, plan=plan, communicate=communicate)


@pytest.fixture(scope="module")
def oracle() -> Record:
    return one_process(CONFIG)


@pytest.mark.turns(4)
@pytest.mark.parametrize("communicate", [Native, ByHand, Fastest])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_every_communicator_trains_what_one_process_does(
    clusters: Clusters, oracle: Record, plan: Plan, communicate: Communicate
) -> None:
    for mine in clusters(RANKS).run(trained, plan, communicate):
        found = largest_difference(mine, oracle)
        assert max(found.values()) < BOUND, found


class Rounded(Communicator):
    """Rounds all numbers to bf16 before they leave; what a compressing communicator would do, in its simplest form."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group)
        self.inner = Fastest(group)

    def all_reduce(self, x: Tensor, op: dist.ReduceOp = dist.ReduceOp.SUM) -> None:
        x.copy_(self.rounded(x))
        self.inner.all_reduce(x, op)

    def all_gather(self, x: Tensor, out: Tensor) -> None:
        self.inner.all_gather(self.rounded(x), out)

    def reduce_scatter(self, x: Tensor, out: Tensor) -> None:
        self.inner.reduce_scatter(self.rounded(x), out)

    def all_to_all(self, x: Tensor, out: Tensor) -> None:
        self.inner.all_to_all(self.rounded(x), out)

    def broadcast(self, x: Tensor, root: int) -> None:
        x.copy_(self.rounded(x))
        self.inner.broadcast(x, root)

    def rounded(self, x: Tensor) -> Tensor:
        return x.bfloat16().to(x.dtype) if x.is_floating_point() else x


@pytest.mark.parametrize(
    "plan",
    [
        Plan(DataParallelism.FSDP),
        Plan(DataParallelism.ZERO2),
        Plan(DataParallelism.DDP),
        Plan(tensor_parallel=4),
        Plan(tensor_parallel=4, sequence_parallel=True),
    ],
    ids=["FSDP", "ZeRO-2", "DDP", "tensor parallel", "sequence parallel"],
)
def test_rounding_goes_under_a_strategy_by_an_argument_alone(clusters: Clusters, oracle: Record, plan: Plan) -> None:
    """bf16 has 8 bits: a step that was rounded is off by up to 4e-3 at each number, and by 1e-6 at least somewhere."""
    for mine in clusters(RANKS).run(trained, plan, Rounded):
        found = largest_difference(mine, oracle)
        assert 1e-6 < found["gradients"] < 0.2 and found["losses"] < 1e-2, found


class Counted(Fastest):
    """Counts the bytes that it is given to gather and to sum."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group)
        self.gathered = self.summed = 0

    def start_all_gather(self, x: Tensor, out: Tensor) -> Finish:
        self.gathered += out.nbytes
        return super().start_all_gather(x, out)

    def start_reduce_scatter(self, x: Tensor, out: Tensor) -> Finish:
        self.summed += x.nbytes
        return super().start_reduce_scatter(x, out)


def counted_step() -> tuple[int, int, int]:
    """A step of FSDP on a model of one's own."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    communicator = Counted(dist.group.WORLD)
    form = FullySharded(model, communicator, units=[[model[0]], [model[2]]])
    with form.micro_batch(last=True):
        model(torch.ones(3, 4)).sum().backward()
    form.reduce_gradients()
    form.end_step()
    return communicator.gathered, communicator.summed, sum(unit.full.nbytes for unit in form.units)


def test_a_communicator_of_ones_own_carries_a_model_of_ones_own(clusters: Clusters) -> None:
    """Each unit is gathered twice, and its gradients are summed once."""
    for gathered, summed, size in clusters(RANKS).run(counted_step):
        assert size > 4 * (4 * 8 + 8 + 8 * 2 + 2) and (gathered, summed) == (2 * size, size)
