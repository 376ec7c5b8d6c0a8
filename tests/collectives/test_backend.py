"""PyTorch's own parallel training runs on the hand-made collectives, with the losses it has on gloo."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

from reference.cluster import Cluster
from reference.collectives import all_reduce, backend
from reference.trace import Op

STEPS, ROWS, WIDTH = 4, 8, 5


def model() -> nn.Sequential:
    """Four blocks, the same on every rank. Sizes that do not divide by 2, 3 or 4."""
    torch.manual_seed(1)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, WIDTH)) for _ in range(4))
    ).double()


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of one rank."""
    return torch.randn(2, ROWS, WIDTH, generator=torch.Generator().manual_seed(10 * step + rank)).double().unbind()


def data_parallel(group: dist.ProcessGroup) -> list[float]:
    return trained(DistributedDataParallel(model(), process_group=group, bucket_cap_mb=0.0005), group)


def fully_sharded(group: dist.ProcessGroup) -> list[float]:
    whole, mesh = model(), DeviceMesh.from_group(group, "cpu", mesh_dim_names=("shard",))
    for block in whole:
        fully_shard(block, mesh=mesh)
    return trained(fully_shard(whole, mesh=mesh), group)


def trained(parallel: nn.Module, group: dist.ProcessGroup) -> list[float]:
    """This rank's losses over some steps of Adam."""
    optimizer = torch.optim.Adam(parallel.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        x, y = batch(step, dist.get_rank(group))
        loss = nn.functional.mse_loss(parallel(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def pipelined(group: dist.ProcessGroup) -> list[float]:
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    blocks = nn.Sequential(*(block for i, block in enumerate(model()) if i * n // 4 == rank))
    stage = PipelineStage(blocks, rank, n, torch.device("cpu"), group=group)
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.MSELoss())
    optimizer, losses = torch.optim.Adam(blocks.parameters(), lr=0.01), []
    for step in range(STEPS):
        x, y = batch(step, 0)
        optimizer.zero_grad()
        of_step: list[Tensor] = []
        schedule.step(*([x] if rank == 0 else []), target=y if rank == n - 1 else None, losses=of_step)
        optimizer.step()
        losses.append(sum(loss.item() for loss in of_step))
    return losses


def on(kind: str, train: Callable[[dist.ProcessGroup], list[float]]) -> list[float]:
    """Train on a group of a backend."""
    if kind == backend.NAME:
        backend.register()
    return train(dist.new_group(backend=kind))


TRAININGS = {
    "DDP": (data_parallel, 3),
    "FSDP2": (fully_sharded, 3),
    "1F1B": (pipelined, 4),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_trains_as_on_gloo(clusters: Callable[..., Cluster], name: str) -> None:
    train, n = TRAININGS[name]
    gloo, handmade = (clusters(n).run(on, kind, train) for kind in ("gloo", backend.NAME))
    torch.testing.assert_close(torch.tensor(handmade), torch.tensor(gloo), rtol=1e-10, atol=0)
    assert gloo[-1][-1] != gloo[-1][0] > 0


@pytest.mark.parametrize("name", ["DDP", "FSDP2"])
def test_what_trains_is_made_of_sends_and_receives(clusters: Callable[..., Cluster], name: str) -> None:
    train, n = TRAININGS[name]
    _, trace = clusters(n).trace(on, backend.NAME, train)
    assert {event.op for events in trace.events for event in events} == {Op.SEND, Op.RECV}
    assert min(trace.bytes_sent) > 0


Results = list[Tensor]


def values(rank: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank)).mul(8).round().double()


def every_call(group: dist.ProcessGroup) -> dict[str, Results]:
    """Every collective of torch.distributed, in every spelling."""
    r, n, root = dist.get_rank(group), dist.get_world_size(group), 1
    results: dict[str, Results] = {}

    def filled(call: Callable[..., object], *outs: Tensor) -> Results:
        call()
        return list(outs)

    for op in ("SUM", "AVG", "MIN", "MAX", "PRODUCT"):
        x, kind = values(r, 2, 3), getattr(dist.ReduceOp, op)
        results[f"all_reduce {op}"] = filled(lambda x=x, kind=kind: dist.all_reduce(x, kind, group), x)
        out = torch.zeros(2, 3).double()
        whole = values(r, 2 * n, 3)
        results[f"reduce_scatter {op}"] = filled(
            lambda out=out, whole=whole, kind=kind: dist.reduce_scatter(out, list(whole.chunk(n)), kind, group), out
        )
    x = values(r, 4).to(torch.complex128)
    results["all_reduce complex"] = filled(lambda: dist.all_reduce(x, group=group), x)
    b = values(r, 4)
    results["broadcast"] = filled(lambda: dist.broadcast(b, group=group, group_src=root), b)
    s = values(r, 4)
    results["reduce"] = filled(lambda: dist.reduce(s, group=group, group_dst=root), s)[: r == root]
    places = [torch.zeros(2, 3).double() for _ in range(n)]
    results["all_gather"] = filled(lambda: dist.all_gather(places, values(r, 2, 3), group=group), *places)
    mine = [torch.zeros(3).double() for _ in range(n)] if r == root else []
    results["gather"] = filled(lambda: dist.gather(values(r, 3), mine or None, group=group, group_dst=root), *mine)
    part = torch.zeros(3).double()
    chunks = list(values(r, n, 3)) if r == root else None
    results["scatter"] = filled(lambda: dist.scatter(part, chunks, group=group, group_src=root), part)
    even = torch.zeros(2 * n, 2).double()
    results["all_to_all_single"] = filled(lambda: dist.all_to_all_single(even, values(r, 2 * n, 2), group=group), even)
    uneven = torch.zeros(n * (r + 1), 2).double()
    splits = list(range(1, n + 1))
    results["all_to_all_single uneven"] = filled(
        lambda: dist.all_to_all_single(uneven, values(r, sum(splits), 2), [r + 1] * n, splits, group=group), uneven
    )
    columns = [torch.zeros(3).double() for _ in range(n)]
    results["all_to_all"] = filled(lambda: dist.all_to_all(columns, list(values(r, n, 3)), group=group), *columns)
    z = values(r, 3)
    results["asynchronous"] = filled(lambda: dist.all_reduce(z, group=group, async_op=True).wait(), z)
    objects: list[object] = [None] * n
    dist.all_gather_object(objects, {"rank": r}, group=group)
    results["objects"] = [torch.tensor([each["rank"] for each in objects])]
    dist.barrier(group)
    return results


def on_both() -> list[str]:
    """Calls whose results differ between gloo and the hand-made backend."""
    backend.register()
    gloo, ours = every_call(dist.new_group(backend="gloo")), every_call(dist.new_group(backend=backend.NAME))
    return [name for name in gloo if not all(map(torch.equal, gloo[name], ours[name]))] + [
        name for name in gloo if len(gloo[name]) != len(ours[name])
    ]


@pytest.mark.parametrize("n", [2, 3, 4])
def test_every_collective_gives_what_gloo_gives(clusters: Callable[..., Cluster], n: int) -> None:
    assert clusters(n).run(on_both) == [[]] * n


def with_own_functions() -> tuple[list[int], list[list[float]]]:
    """Lengths that a function of one's own was called with, and results of calls it serves and does not serve."""
    lengths = []

    def ring(x: Tensor, group: dist.ProcessGroup) -> None:
        lengths.append(x.numel())
        all_reduce.ring(x, group)

    backend.register({"all_reduce": ring})
    group, results = dist.new_group(backend=backend.NAME), []
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.AVG):
        x = torch.full((3,), dist.get_rank() + 1.0)
        dist.all_reduce(x, op, group)
        results.append(x.tolist())
    dist.broadcast(x, 0, group)
    return lengths, results


def test_functions_of_ones_own_take_the_place_of_ours(clusters: Callable[..., Cluster]) -> None:
    """A function without `op` is for sums; what it does not serve, and what is missing, comes from the reference."""
    assert clusters(3).run(with_own_functions) == [([3], [[6.0] * 3, [3.0] * 3, [2.0] * 3])] * 3


def test_a_wrong_function_trains_wrong(clusters: Callable[..., Cluster]) -> None:
    """It is really these functions that DDP uses."""
    right, wrong = clusters(3).run(on, backend.NAME, data_parallel), clusters(3).run(with_nothing_reduced)
    assert wrong[0][0] == right[0][0]
    assert abs(wrong[0][-1] - right[0][-1]) > 1e-6


def with_nothing_reduced() -> list[float]:
    backend.register({"all_reduce": lambda x, group, op=None: None})
    return data_parallel(dist.new_group(backend=backend.NAME))


def test_an_unknown_collective_is_refused() -> None:
    with pytest.raises(ValueError, match="no such collective: allreduce; there are broadcast, reduce, "):
        backend.register({"allreduce": all_reduce.ring})
