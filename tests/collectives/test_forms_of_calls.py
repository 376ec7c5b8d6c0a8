"""A process group's own methods, in each form that torch has for them, say the same on gloo, tapped and by hand."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)

from reference.cluster import Cluster, RemoteException
from reference.collectives import backend
from reference.collectives.backend import CustomCollectives
from reference.process_group import SHORT
from reference.trace import Op
from reference.trace.tap import Tap

Clusters = Callable[..., Cluster]
MAX, MINUTE = dist.ReduceOp.MAX, timedelta(minutes=1)


def options(kind: type, **fields: object) -> object:
    made = kind()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def forms(group: ProcessGroup) -> dict[str, tuple[Callable[..., object], tuple, dict, list[Tensor]]]:
    """By a description: a method, its arguments, and the tensors that have the results."""
    r, n = group.rank(), group.size()

    def x() -> Tensor:
        return torch.arange(4.0) + 10 * r

    def one(name: str, *rest: object, key: str = "", **named: object) -> tuple:
        tensor = x()
        given = {key: [tensor] if key == "tensors" else tensor} if key else {}
        return getattr(group, name), () if key else (tensor, *rest), given | named, [tensor]

    def listed(name: str, *rest: object, **named: object) -> tuple:
        tensor = x()
        return getattr(group, name), ([tensor], *rest), named, [tensor]

    calls = {
        "broadcast root": one("broadcast", 1),
        "broadcast root, timeout": one("broadcast", 1, MINUTE),
        "broadcast names": one("broadcast", key="tensor", root=1, timeout=MINUTE),
        "broadcast list": listed("broadcast"),
        "broadcast options": listed("broadcast", options(dist.BroadcastOptions, rootRank=1)),
        "broadcast opts=": listed("broadcast", opts=options(dist.BroadcastOptions, rootRank=1)),
        "allreduce": one("allreduce"),
        "allreduce op": one("allreduce", MAX),
        "allreduce op, timeout": one("allreduce", MAX, MINUTE),
        "allreduce names": one("allreduce", key="tensor", op=MAX),
        "allreduce timeout=": one("allreduce", timeout=MINUTE),
        "allreduce list": listed("allreduce"),
        "allreduce list, op": listed("allreduce", MAX),
        "allreduce list, kind of op": listed("allreduce", dist.ReduceOp.RedOpType.MAX),
        "allreduce list, op=": listed("allreduce", op=MAX),
        "allreduce options": listed("allreduce", options(dist.AllreduceOptions, reduceOp=MAX)),
        "allreduce tensors=": one("allreduce", key="tensors", opts=options(dist.AllreduceOptions, reduceOp=MAX)),
        "allreduce_coalesced": listed("allreduce_coalesced"),
        "allreduce_coalesced opts": listed(
            "allreduce_coalesced", opts=options(dist.AllreduceCoalescedOptions, reduceOp=MAX)
        ),
    }
    for description, arguments in {"root": (1,), "op": (1, MAX), "timeout": (1, MAX, MINUTE)}.items():
        method, given, named, out = one("reduce", *arguments)
        calls[f"reduce {description}"] = method, given, named, out if r == 1 else []
    method, given, named, out = listed("reduce", options(dist.ReduceOptions, rootRank=1, reduceOp=MAX))
    calls["reduce options"] = method, given, named, out if r == 1 else []
    return calls | of_lists(group, x(), n, is_root=r == 1)


def of_lists(group: ProcessGroup, x: Tensor, n: int, is_root: bool) -> dict[str, tuple]:
    """The same for calls with a tensor for each rank."""

    def places() -> list[Tensor]:
        return [torch.zeros(4) for _ in range(n)]

    calls: dict[str, tuple] = {}
    for description, named in {"": {}, " timeout": {"timeout": MINUTE}}.items():
        out = places()
        calls[f"allgather{description}"] = group.allgather, (out, x), named, out
    out = places()
    calls["allgather lists"] = group.allgather, ([out], [x]), {}, out
    out = places()
    calls["allgather names"] = group.allgather, (), {"output_tensors": [out], "input_tensors": [x]}, out
    out = places()
    calls["allgather_coalesced"] = group.allgather_coalesced, ([[place] for place in out], [x]), {}, out
    root = options(dist.GatherOptions, rootRank=1)
    out = places() if is_root else []
    calls["gather root"] = group.gather, (out, x, 1), {}, out
    out = places() if is_root else []
    calls["gather options"] = group.gather, ([out] if is_root else [], [x], root), {}, out
    chunks = [x + k for k in range(n)] if is_root else []
    out = [torch.zeros(4)]
    calls["scatter root"] = group.scatter, (out[0], chunks, 1), {}, out
    out = [torch.zeros(4)]
    root = options(dist.ScatterOptions, rootRank=1)
    calls["scatter options"] = group.scatter, (out, [chunks] if is_root else [], root), {}, out
    for description, arguments in {"": (), " op": (MAX,), " op, timeout": (MAX, MINUTE)}.items():
        out = [torch.zeros(4)]
        given = (out[0], [x + k for k in range(n)], *arguments)
        calls[f"reduce_scatter{description}"] = group.reduce_scatter, given, {}, out
    out = [torch.zeros(4)]
    calls["reduce_scatter lists"] = group.reduce_scatter, (out, [[x + k for k in range(n)]]), {}, out
    whole = torch.cat([x] * n)
    out = [torch.zeros(4)]
    calls["reduce_scatter_single"] = group._reduce_scatter_base, (out[0], whole), {}, out
    out = [torch.zeros(4)]
    calls["reduce_scatter_single names"] = (
        group._reduce_scatter_base,
        (),
        {"outputTensor": out[0], "inputTensor": whole},
        out,
    )
    out = [torch.zeros(4 * n)]
    calls["all_gather_single names"] = group._allgather_base, (), {"output": out[0], "input": x}, out
    out = [torch.zeros(n)]
    named = {"output": out[0], "input": x[:n].contiguous(), "output_split_sizes": [], "input_split_sizes": []}
    calls["alltoall_base names"] = group.alltoall_base, (), named, out
    out = [torch.zeros(4) for _ in range(n)]
    calls["barrier timeout"] = group.barrier, (), {"timeout": MINUTE}, []
    return calls


def results(kind: str) -> dict[str, list[list[float]]]:
    """What each form gives on a group of a backend; "plain gloo" is the group below the tap."""
    backend.register()
    group = dist.new_group(backend="gloo" if kind == "plain gloo" else kind)
    group = group.carrier if kind == "plain gloo" else group
    found = {}
    for description, (method, given, named, out) in forms(group).items():
        method(*given, **named).wait()
        found[description] = [tensor.tolist() for tensor in out]
    return found


@pytest.mark.parametrize("kind", ["gloo", backend.NAME])
def test_each_form_of_a_call_does_what_it_does_on_gloo(clusters: Clusters, kind: str) -> None:
    assert clusters(3).run(results, kind) == clusters(3).run(results, "plain gloo")


@pytest.mark.parametrize(("kind", "of_gloo"), [(Tap, set()), (CustomCollectives, {"monitored_barrier"})])
def test_no_collective_of_a_group_goes_past_us_to_gloo(kind: type, of_gloo: set[str]) -> None:
    """A method that is not written here would be gloo's, silently."""
    words = ("gather", "scatter", "reduce", "broadcast", "alltoall", "all_to_all", "barrier", "send", "recv")
    named = [name for name in vars(ProcessGroup) if name[:2] != "__" and any(word in name for word in words)]
    missing = {name for name in named if getattr(kind, name) is getattr(ProcessGroup, name)}
    assert missing == of_gloo, "which torch.distributed keeps for gloo itself"


def gathered_in_one(length: int) -> list[float]:
    backend.register()
    group, rank = dist.new_group(backend=backend.NAME), dist.get_rank()
    out = torch.zeros(length) if rank == 1 else None
    dist.gather_single(torch.full((2,), float(rank)), out, dst=1, group=group)
    return [] if out is None else out.tolist()


@pytest.mark.skipif(not hasattr(dist, "gather_single"), reason="torch has it from 2.14 on; gloo has none of its own")
def test_one_tensor_takes_what_all_ranks_have(clusters: Clusters) -> None:
    results, trace = clusters(3).trace(gathered_in_one, 6)
    assert results == [[], [0, 0, 1, 1, 2, 2], []]
    assert [{event.op for event in of_rank} for of_rank in trace.events] == [{Op.SEND}, {Op.RECV}, {Op.SEND}]
    with pytest.raises(RemoteException, match="a tensor of 6 elements"):
        clusters(3).run(gathered_in_one, 5)


def gathered_in_one_by_the_tap() -> list[float]:
    """gloo has no such call, and NCCL has: here a carrier makes it of gloo's `gather`."""
    group, root = dist.new_group(), options(dist.GatherOptions, rootRank=1)
    gather, n = group.carrier.gather, group.size()

    class Carrier:
        def gather_single(self, output, input, opts):
            return gather([list(output.chunk(n))] if group.rank() == 1 else [], [input], opts)

    group.carrier = Carrier()
    out = torch.zeros(6 if group.rank() == 1 else 0)
    group.gather_single(out, torch.full((2,), float(group.rank())), root).wait()
    return out.tolist()


def test_a_gather_into_one_tensor_is_traced_as_a_gather(clusters: Clusters) -> None:
    results, trace = clusters(3).trace(gathered_in_one_by_the_tap)
    assert results == [[], [0, 0, 1, 1, 2, 2], []]
    assert [[(event.op, event.peer) for event in of_rank] for of_rank in trace.events] == [[(Op.GATHER, 1)]] * 3


def wrong(kind: str) -> list[str]:
    backend.register()
    group, x, said = dist.new_group(backend=kind), torch.ones(2), []
    for call in (
        partial(group.broadcast),
        partial(group.broadcast, x, 0, MINUTE, "more"),
        partial(group.allreduce, x, opp=MAX),
    ):
        with pytest.raises(TypeError) as error:
            call()
        said.append(str(error.value))
    return said


@pytest.mark.parametrize("kind", ["gloo", backend.NAME])
def test_what_is_no_form_of_a_call_is_named(clusters: Clusters, kind: str) -> None:
    said = clusters(2).run(wrong, kind)[0]
    assert said == [
        "broadcast of a process group lacks an argument: tensor",
        "broadcast of a process group takes tensors and options, and not also 'more'",
        "allreduce of a process group takes tensors and options, and not also opp",
    ]
    assert set(SHORT) <= set(dir(ProcessGroup))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(12, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).relu())


def hooks(group: ProcessGroup) -> dict[str, tuple[object, Callable]]:
    """PyTorch's hooks for what DDP says, with their states."""
    local = post_localSGD_hook.PostLocalSGDState(group, group, start_localSGD_iter=2)
    return {
        "allreduce": (group, default_hooks.allreduce_hook),
        "fp16": (group, default_hooks.fp16_compress_hook),
        "fp16 around allreduce": (group, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)),
        "nothing": (group, debugging_hooks.noop_hook),
        "powerSGD": (
            powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2, min_compression_rate=0.5),
            powerSGD_hook.powerSGD_hook,
        ),
        "local SGD": (local, post_localSGD_hook.post_localSGD_hook),
        "own, with a short form": (group, short_form),
        "own, with then": (group, averaging),
    }


def short_form(group: ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """As PyTorch's documentation writes hooks."""
    return group.allreduce([bucket.buffer().div_(group.size())]).get_future().then(lambda future: future.value()[0])


def averaging(group: ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    future = group.allreduce(bucket.buffer()).get_future()
    return future.then(lambda f: f.value()[0] / 2).then(lambda f: f.value() * 2 / group.size())


def trained(kind: str) -> dict[str, list[list[float]]]:
    """Losses of DDP with each hook, on a group of a backend."""
    backend.register()
    group = dist.new_group(backend=kind)
    found = {}
    for name, hook in hooks(group).items():
        model = nn.parallel.DistributedDataParallel(Net().float(), process_group=group, bucket_cap_mb=0.0005)
        model.register_comm_hook(*hook)
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
        for step in range(4):
            inputs = torch.randn(5, 12, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
            loss = model(inputs).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found[name] = losses
    return found


def test_ddp_with_each_of_torchs_hooks_trains_as_on_gloo(clusters: Clusters) -> None:
    gloo, ours = (clusters(2).run(trained, kind) for kind in ("gloo", backend.NAME))
    for of_gloo, of_ours in zip(gloo, ours, strict=True):
        for name, losses in of_gloo.items():
            assert of_ours[name] == pytest.approx(losses, rel=1e-5), name
    assert len({tuple(losses) for losses in ours[0].values()}) >= 4, "hooks differ"


def expanded() -> dict[str, tuple[list, list]]:
    """What collectives make of a tensor with one column for all of its columns, and of a copy with as many as it has.

    gloo writes as many elements as there seem to be where there is room for one column, so it is no oracle here.
    """
    backend.register()
    group, found = dist.new_group(backend=backend.NAME), {}
    for name, call in {
        "all_reduce": lambda x: dist.all_reduce(x, group=group),
        "all_reduce MAX": lambda x: dist.all_reduce(x, MAX, group=group),
        "broadcast": lambda x: dist.broadcast(x, group=group, group_src=1),
        "allreduce": lambda x: group.allreduce([x]).wait(),
    }.items():
        x = (torch.arange(4.0) + group.rank())[:, None].expand(4, 3)
        copy = x.clone(memory_format=torch.contiguous_format)
        call(x)
        call(copy)
        found[name] = x.tolist(), copy.tolist()
    return found


def test_expanded_tensors_get_what_copies_get(clusters: Clusters) -> None:
    for of_rank in clusters(3).run(expanded):
        assert of_rank["all_reduce"][0][1] == [6.0] * 3
        assert all(one == copy for one, copy in of_rank.values()), of_rank


def torn() -> str:
    """Rank 1 sends rows that differ to ranks that have one row for all."""
    backend.register()
    group = dist.new_group(backend=backend.NAME)
    x = torch.arange(12.0).view(4, 3) if group.rank() == 1 else torch.zeros(4, 1).expand(4, 3)
    try:
        dist.broadcast(x, group=group, group_src=1)
    except ValueError as error:
        return str(error)
    return ""


def test_an_expanded_tensor_cannot_hold_values_that_differ(clusters: Clusters) -> None:
    said = clusters(3).run(torn)
    assert said[1] == "" and said[0] == said[2]
    assert said[0].startswith("an expanded tensor has one place for values that differ here")


def mixed(kind: str) -> tuple[list[float], list[float], int]:
    """Messages of the caller's under way while a collective runs, one of them received from any rank."""
    backend.register()
    group = dist.new_group(backend=kind)
    rank, x = group.rank(), torch.full((4,), group.rank() + 1.0)
    if rank == 0:
        request = dist.isend(torch.full((4,), 7.0), group=group, group_dst=1)
        dist.all_reduce(x, group=group)
        request.wait()
        return x.tolist(), [], 0
    if rank == 1:
        dist.all_reduce(x, group=group)
        out = torch.zeros(4)
        source = dist.recv(out, group=group)
        return x.tolist(), out.tolist(), source
    dist.all_reduce(x, group=group)
    return x.tolist(), [], 0


def test_messages_of_collectives_and_of_the_caller_keep_apart(clusters: Clusters) -> None:
    want = [([6.0] * 4, [], 0), ([6.0] * 4, [7.0] * 4, 0), ([6.0] * 4, [], 0)]
    assert clusters(3).run(mixed, "gloo") == want
    assert clusters(3).run(mixed, backend.NAME) == want


def test_options_have_their_kinds() -> None:
    assert all(hasattr(c10d, short.options.__name__) for short in SHORT.values())
