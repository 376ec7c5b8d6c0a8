"""PyTorch's own parallel training runs on the hand-made collectives, with the losses it has on gloo."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from textwrap import dedent
from threading import Thread
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from reference.cluster import Cluster
from reference.cluster.errors import DeadlockError, ThreadError
from reference.collectives import all_reduce, backend
from reference.collectives.compat import all_gather_single, reduce_scatter_single
from reference.trace import Op

from .training import TRAININGS, data_parallel


def on(kind: str, train: Callable[[dist.ProcessGroup], list[float]]) -> list[float]:
    """Train on a group of a backend."""
    if kind == backend.NAME:
        backend.register()
    return train(dist.new_group(backend=kind))


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("name", TRAININGS)
def test_trains_as_on_gloo(clusters: Callable[..., Cluster], name: str, n: int) -> None:
    gloo, handmade = (clusters(n).run(on, kind, TRAININGS[name]) for kind in ("gloo", backend.NAME))
    torch.testing.assert_close(torch.tensor(handmade), torch.tensor(gloo), rtol=1e-10, atol=0)
    assert gloo[-1][-1] != gloo[-1][0] > 0


@pytest.mark.parametrize("name", ["DDP", "FSDP2"])
def test_what_trains_is_made_of_sends_and_receives(clusters: Callable[..., Cluster], name: str) -> None:
    _, trace = clusters(3).trace(on, backend.NAME, TRAININGS[name])
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
    learned = values(r, 4).requires_grad_()
    for name, call in {"all_reduce": dist.all_reduce, "broadcast": partial(dist.broadcast, group_src=root)}.items():
        loss = learned**2
        results[f"{name} with a history"] = [filled(partial(call, loss, group=group), loss)[0].detach()]
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


def strided() -> list[bool]:
    """Whether results that go into every other place of a tensor are right; gloo fills other places by some calls."""
    backend.register()
    group = dist.new_group(backend=backend.NAME)
    r, n = dist.get_rank(), dist.get_world_size()
    calls = {
        "all_reduce": lambda out: dist.all_reduce(out.copy_(values(1, n) / n), group=group),
        "broadcast": lambda out: dist.broadcast(out.copy_(values(r, n)), group=group, group_src=1),
        "scatter": lambda out: dist.scatter(out, [values(1, n)] * n if r == 1 else None, group=group, group_src=1),
        "reduce_scatter": lambda out: reduce_scatter_single(out, values(1, n).repeat(n) / n, group=group),
        "all_to_all": lambda out: dist.all_to_all_single(out, values(1, n)[r].repeat(n), group=group),
        "all_gather": lambda out: all_gather_single(out, values(1, n)[r : r + 1], group=group),
    }
    found = []
    for call in calls.values():
        whole = torch.full((2 * n,), 0.5).double()
        call(whole[::2])
        found.append(torch.allclose(whole[::2], values(1, n)) and bool((whole[1::2] == 0.5).all()))
    return found


def test_tensors_need_not_be_contiguous(clusters: Callable[..., Cluster]) -> None:
    assert clusters(3).run(strided) == [[True] * 6] * 3


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


def used_after_it_was_destroyed() -> list[str]:
    backend.register()
    group, x, said = dist.new_group(backend=backend.NAME), torch.ones(2), []
    dist.all_reduce(x, group=group)
    dist.destroy_process_group(group)
    for use in (
        lambda: group.allreduce([x]),
        lambda: group.all_gather_single(torch.zeros(4), x),
        lambda: group.send([x], 1 - dist.get_rank(), 0),
        lambda: group.recv([x], 1 - dist.get_rank(), 0),
    ):
        try:
            use()
        except ValueError as error:
            said.append(str(error))
    return said


def test_a_destroyed_group_is_refused(clusters: Callable[..., Cluster]) -> None:
    said = "Invalid process group specified: it was destroyed"
    assert clusters(2).run(used_after_it_was_destroyed) == [[said] * 4] * 2


def summed_in_two_threads() -> None:
    backend.register()
    group = dist.new_group(backend=backend.NAME)
    threads = [Thread(target=dist.all_reduce, args=(torch.ones(2),), kwargs={"group": group}) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def broadcast_from_two_roots() -> None:
    backend.register()
    dist.broadcast(torch.ones(2), dist.get_rank(), dist.new_group(backend=backend.NAME))


def test_a_watch_says_nothing_of_tags_that_no_caller_gave(clusters: Callable[..., Cluster]) -> None:
    """And its advice is one that a caller of collectives can follow."""
    with pytest.raises(ThreadError, match=r"both use this group.*\n.*give each thread its own group"):
        clusters(2, watch=True).run(summed_in_two_threads)
    with pytest.raises(DeadlockError, match=r"rank 0 waits in send\(dst=1\)"):
        clusters(2, watch=True).run(broadcast_from_two_roots)


def test_it_can_be_the_world() -> None:
    """As under torchrun; groups made in such a world are hand-made too."""
    program = """
        import torch, torch.distributed as dist
        from reference.collectives import backend
        backend.register()
        dist.init_process_group(backend.NAME, store=dist.HashStore(), rank=0, world_size=1)
        group = dist.new_group([0])
        x = torch.ones(3)
        dist.all_reduce(x, group=group)
        print(dist.get_backend(), dist.get_backend(group), isinstance(group, backend.CustomCollectives), x.tolist())
    """
    root = Path(backend.__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", dedent(program)], cwd=root, capture_output=True, text=True, timeout=120)
    assert run.stdout.split("\n")[0] == "handmade handmade True [1.0, 1.0, 1.0]", run.stderr


@pytest.mark.parametrize(("world", "carrier"), [("nccl", "nccl"), ("cpu:gloo,cuda:nccl", "nccl"), ("gloo", "gloo")])
def test_what_is_between_gpus_travels_as_the_world_says(
    world: str, carrier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=object()))
    monkeypatch.setattr(dist, "get_backend", lambda: world)
    assert backend.carrier_of_world() == carrier


def test_an_unknown_collective_is_refused() -> None:
    with pytest.raises(ValueError, match="no such collective: allreduce; there are broadcast, reduce, "):
        backend.register({"allreduce": all_reduce.ring})
