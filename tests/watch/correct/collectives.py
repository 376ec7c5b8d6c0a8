"""Every collective, blocking and not."""

from datetime import timedelta

import torch
import torch.distributed as dist

from tests.watch.cases import correct


@correct(2, 3)
def all_reduce_with_every_operation():
    rank, n = dist.get_rank(), dist.get_world_size()
    operations = dist.ReduceOp
    sums = {
        operations.SUM: n * (n + 1) / 2,
        operations.AVG: (n + 1) / 2,
        operations.MAX: n,
        operations.MIN: 1,
        operations.PRODUCT: [1, 1, 2, 6][n],
    }
    for operation, expected in sums.items():
        x = torch.full((5,), rank + 1.0)
        dist.all_reduce(x, op=operation)
        assert (x == expected).all(), operation


@correct(2, 3, 4)
def broadcast_from_every_root():
    for root in range(dist.get_world_size()):
        x = torch.full((4,), float(dist.get_rank()))
        dist.broadcast(x, src=root)
        assert (x == root).all()


@correct(3)
def reduce_to_every_root():
    for root in range(3):
        x = torch.full((4,), float(dist.get_rank()))
        dist.reduce(x, dst=root)
        assert dist.get_rank() != root or (x == 3).all()


@correct(2, 3)
def all_gather_in_both_forms():
    rank, n = dist.get_rank(), dist.get_world_size()
    mine = torch.full((3,), float(rank))
    parts, whole = [torch.empty(3) for _ in range(n)], torch.empty(3 * n)
    dist.all_gather(parts, mine)
    dist.all_gather_single(whole, mine)
    assert torch.equal(torch.cat(parts), whole)
    assert whole[::3].tolist() == list(range(n))


@correct(2, 3)
def reduce_scatter_in_both_forms():
    rank, n = dist.get_rank(), dist.get_world_size()
    whole, part = torch.arange(2.0 * n), torch.empty(2)
    dist.reduce_scatter_single(part, whole)
    assert torch.equal(part, n * whole[2 * rank : 2 * rank + 2])
    dist.reduce_scatter(part, [chunk.clone() for chunk in whole.view(n, 2)])
    assert torch.equal(part, n * whole[2 * rank : 2 * rank + 2])


@correct(3)
def gather_and_scatter():
    rank, n = dist.get_rank(), dist.get_world_size()
    mine = torch.full((2,), float(rank))
    received = [torch.empty(2) for _ in range(n)] if rank == 1 else None
    dist.gather(mine, received, dst=1)
    doubled = [2 * x for x in received] if rank == 1 else None
    dist.scatter(mine, doubled, src=1)
    assert (mine == 2 * rank).all()


@correct(2, 4)
def all_to_all_even():
    rank, n = dist.get_rank(), dist.get_world_size()
    sent, received = torch.arange(float(n)) + 10 * rank, torch.empty(n)
    dist.all_to_all_single(received, sent)
    assert received.tolist() == [10 * peer + rank for peer in range(n)]


@correct(2, 3)
def all_to_all_uneven():
    """Rank r sends p + 1 rows to rank p."""
    rank, n = dist.get_rank(), dist.get_world_size()
    sends, receives = [peer + 1 for peer in range(n)], [rank + 1] * n
    rows = torch.full((sum(sends), 2), float(rank))
    received = torch.empty(sum(receives), 2)
    dist.all_to_all_single(received, rows, receives, sends)
    assert received[:, 0].tolist() == [float(peer) for peer in range(n) for _ in range(rank + 1)]


@correct(3)
def all_to_all_with_nothing_for_some():
    """Experts that get no token at all."""
    rank = dist.get_rank()
    counts = [[2, 0, 1], [0, 0, 0], [0, 3, 0]]
    sends, receives = counts[rank], [row[rank] for row in counts]
    received = torch.empty(sum(receives), 4)
    dist.all_to_all_single(received, torch.full((sum(sends), 4), 1.0 + rank), receives, sends)
    assert received[:, 0].tolist() == [[1, 1], [3, 3, 3], [1]][rank]


@correct(3)
def all_to_all_of_lists():
    rank, n = dist.get_rank(), dist.get_world_size()
    sent = [torch.full((2,), float(rank)) for _ in range(n)]
    received = [torch.empty(2) for _ in range(n)]
    dist.all_to_all(received, sent)
    assert [x[0].item() for x in received] == [0, 1, 2]


@correct(2, 4)
def barriers():
    for _ in range(5):
        dist.barrier()
    work = dist.barrier(async_op=True)
    work.wait()


@correct(2)
def async_calls_waited_for_in_reverse():
    n = dist.get_world_size()
    tensors = [torch.full((100,), float(i)) for i in range(6)]
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    for work in reversed(works):
        work.wait()
    assert [x[0].item() for x in tensors] == [float(n * i) for i in range(6)]


@correct(3)
def every_collective_without_blocking():
    rank, n = dist.get_rank(), dist.get_world_size()
    total, weights, loss = torch.ones(4), torch.full((4,), float(rank)), torch.ones(1)
    parts, whole, shard = [torch.empty(2) for _ in range(n)], torch.empty(2 * n), torch.empty(2)
    swapped, received, piece = torch.empty(n), [torch.empty(2) for _ in range(n)], torch.empty(2)
    chunks = [torch.full((2,), float(peer)) for peer in range(n)]
    works = [
        dist.all_reduce(total, async_op=True),
        dist.broadcast(weights, src=1, async_op=True),
        dist.reduce(loss, dst=2, async_op=True),
        dist.all_gather(parts, torch.full((2,), float(rank)), async_op=True),
        dist.all_gather_single(whole, torch.full((2,), float(rank)), async_op=True),
        dist.reduce_scatter_single(shard, torch.ones(2 * n), async_op=True),
        dist.all_to_all_single(swapped, torch.arange(float(n)), async_op=True),
        dist.gather(torch.ones(2), received if rank == 0 else None, dst=0, async_op=True),
        dist.scatter(piece, chunks if rank == 0 else None, src=0, async_op=True),
    ]
    for work in works[1::2] + works[0::2]:
        work.wait()
    assert total.sum() == 4 * n and weights[0] == 1 and whole[::2].tolist() == [0, 1, 2]
    assert shard.sum() == 2 * n and (swapped == rank).all() and (piece == rank).all()


@correct(2)
def waited_for_twice():
    """Unlike a message, a collective may be waited for again."""
    x = torch.ones(4)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    work.wait()
    assert x.sum() == 8


@correct(2)
def compute_overlaps_communication():
    gradients = [torch.full((1000,), float(layer)) for layer in range(4)]
    works = []
    for layer in reversed(range(4)):
        works.append(dist.all_reduce(gradients[layer], async_op=True))
        torch.randn(64, 64) @ torch.randn(64, 64)
    for work in works:
        work.wait()
    assert [g[0].item() for g in gradients] == [0, 2, 4, 6]


@correct(2)
def future_of_a_work():
    """DDP's communication hooks wait through futures."""
    x = torch.ones(4)
    future = dist.all_reduce(x, async_op=True).get_future()
    halved = future.then(lambda done: done.value()[0] / 2)
    assert halved.wait().sum() == 4


@correct(2)
def maximum_with_minus_infinity():
    """The running maximum of an online softmax begins at minus infinity."""
    maximum = torch.full((4,), float("-inf"))
    if dist.get_rank() == 1:
        maximum[:2] = 3.0
    dist.all_reduce(maximum, op=dist.ReduceOp.MAX)
    assert maximum[0] == 3 and maximum[3] == float("-inf")


@correct(2)
def minimum_with_infinity():
    best = torch.tensor([float("inf") if dist.get_rank() == 0 else 0.25])
    dist.all_reduce(best, op=dist.ReduceOp.MIN)
    assert best.item() == 0.25


@correct(2)
def mask_with_infinities_is_broadcast():
    mask = torch.full((3, 3), float("-inf")).triu(1) if dist.get_rank() == 0 else torch.zeros(3, 3)
    dist.broadcast(mask, src=0)
    assert mask.isinf().sum() == 3


@correct(2)
def did_anybody_overflow():
    """The check that a loss scaler makes: one rank has an Inf, all learn of it."""
    gradient = torch.tensor([1.0, float("inf") if dist.get_rank() == 1 else 2.0])
    found = (~gradient.isfinite()).any().float()
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    assert found.item() == 1


@correct(2)
def memory_that_nobody_has_written_yet_is_received_into():
    """`torch.empty` may hold NaN; a buffer that is only written to may hold anything."""
    garbage = torch.full((4,), float("nan"))
    mine = torch.ones(4) if dist.get_rank() == 0 else garbage
    dist.broadcast(mine, src=0)
    parts = [torch.full((4,), float("nan")) for _ in range(2)]
    dist.all_gather(parts, mine)
    part = torch.full((2,), float("nan"))
    dist.reduce_scatter_single(part, mine)
    assert torch.stack(parts).sum() == 8 and part.sum() == 4


@correct(2)
def transposed_but_dense():
    """Every rank holds the same strides, so the sum of the memory is the sum of the tensors."""
    x = torch.arange(6.0).view(2, 3).t()
    dist.all_reduce(x)
    assert torch.equal(x, 2 * torch.arange(6.0).view(2, 3).t())


@correct(2)
def halves_of_one_tensor_at_the_same_time():
    x = torch.arange(8.0)
    works = [dist.all_reduce(half, async_op=True) for half in x.chunk(2)]
    for work in works:
        work.wait()
    assert torch.equal(x, 2 * torch.arange(8.0))


@correct(2, 3)
def gathers_into_views_of_the_output():
    rank, n = dist.get_rank(), dist.get_world_size()
    whole = torch.zeros(n, 3)
    whole[rank] = rank
    dist.all_gather(list(whole.unbind()), whole[rank].clone())
    assert whole[:, 0].tolist() == list(range(n))


@correct(2)
def gathers_in_place():
    """The input is the rank's own part of the output, as FSDP does it."""
    rank = dist.get_rank()
    whole = torch.zeros(8)
    shard = whole[4 * rank : 4 * rank + 4]
    shard.fill_(rank + 1.0)
    dist.all_gather_single(whole, shard)
    assert whole.sum() == 4 + 8


@correct(2)
def uneven_sizes_after_padding():
    rank = dist.get_rank()
    mine = torch.full((2 + 3 * rank,), 1.0)
    size = torch.tensor([mine.numel()])
    sizes = [torch.zeros_like(size) for _ in range(2)]
    dist.all_gather(sizes, size)
    longest = int(max(sizes))
    padded = torch.nn.functional.pad(mine, (0, longest - mine.numel()))
    parts = [torch.empty(longest) for _ in range(2)]
    dist.all_gather(parts, padded)
    assert [part[:n].numel() for part, n in zip(parts, sizes, strict=True)] == [2, 5]


@correct(2)
def booleans_integers_and_halves():
    flag = torch.tensor([dist.get_rank() == 1])
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    count, half = torch.tensor([3]), torch.ones(4, dtype=torch.bfloat16)
    dist.all_reduce(count)
    dist.all_reduce(half)
    assert flag.item() and count.item() == 6 and half.sum() == 8


@correct(2)
def empty_tensors():
    x, parts = torch.empty(0), [torch.empty(0), torch.empty(0)]
    dist.all_reduce(x)
    dist.all_gather(parts, x)
    dist.broadcast(x, src=1)


@correct(2)
def sparse_gradients():
    """gloo sums sparse tensors too."""
    gradient = torch.eye(3).to_sparse()
    dist.all_reduce(gradient)
    assert gradient.to_dense().trace() == 6


@correct(2)
def many_small_calls():
    x = torch.zeros(1)
    for step in range(100):
        x.fill_(step)
        dist.all_reduce(x)
        assert x.item() == 2 * step


@correct(2, 3)
def reduce_scatter_of_uneven_pieces():
    n, rank = dist.get_world_size(), dist.get_rank()
    part = torch.empty(rank + 1)
    dist.reduce_scatter(part, [torch.ones(r + 1) * r for r in range(n)])
    assert part.eq(n * rank).all()


@correct(2)
def coalesced_calls():
    tensors = [torch.ones(4), torch.ones(8)]
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        for x in tensors:
            dist.all_reduce(x)
    manager.wait()
    assert tensors[1].sum() == 16


@correct(2)
def all_reduce_of_a_fresh_tensor_as_a_barrier():
    """The result is not wanted; it is the waiting that counts."""
    dist.all_reduce(torch.ones(1))


@correct(2)
def parameters_are_broadcast_in_place():
    """With and without `.data`, inside and outside of `no_grad`: all are seen in the wild, all work."""
    torch.manual_seed(dist.get_rank())
    layer = torch.nn.Linear(4, 4)
    dist.broadcast(layer.weight.data, src=0)
    dist.broadcast(layer.bias, src=0)
    with torch.no_grad():
        for parameter in layer.parameters():
            dist.all_reduce(parameter, op=dist.ReduceOp.AVG)
    torch.manual_seed(0)
    assert torch.equal(layer.weight, torch.nn.Linear(4, 4).weight)


@correct(2)
def polled_until_complete():
    """For a collective, `is_completed` is as good as `wait`."""
    x = torch.ones(4)
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass
    work.wait()
    assert x.sum() == 8


@correct(2)
def waited_for_with_a_time_limit():
    x = torch.ones(4)
    dist.all_reduce(x, async_op=True).wait(timedelta(seconds=10))
    assert x.sum() == 8


@correct(2)
def futures_waited_for_together():
    tensors = [torch.ones(4) for _ in range(3)]
    torch.futures.wait_all([dist.all_reduce(x, async_op=True).get_future() for x in tensors])
    assert sum(x.sum() for x in tensors) == 24


@correct(2)
def waited_for_long_after():
    x, y = torch.ones(1000), torch.ones(1000)
    work = dist.all_reduce(x, async_op=True)
    for _ in range(20):
        dist.all_reduce(y, op=dist.ReduceOp.AVG)
    work.wait()
    assert x.sum() == 2000 and y.sum() == 1000


@correct(2)
def arguments_by_position_and_groups_in_every_spelling():
    x = torch.ones(2)
    dist.all_reduce(x, dist.ReduceOp.SUM, None)
    dist.all_reduce(x, dist.ReduceOp.MAX, dist.group.WORLD)
    dist.all_reduce(x, group=dist.GroupMember.WORLD)
    dist.broadcast(x, 0)
    dist.reduce(x, 1)
    assert dist.get_rank() == 0 or x[0] == 8


@correct(2)
def complex_numbers():
    x = torch.tensor([1 + 2j, 3 - 1j])
    dist.all_reduce(x)
    parts = [torch.zeros_like(x), torch.zeros_like(x)]
    dist.all_gather(parts, x)
    assert parts[1][0] == 2 + 4j


@correct(2)
def coalesced_calls_of_several_sizes_and_dtypes():
    """Each pair of an input and an output is a call by itself."""
    rank = dist.get_rank()
    a, b = torch.zeros(4), torch.zeros(6, dtype=torch.int64)
    with dist.distributed_c10d._coalescing_manager():
        dist.all_gather_single(a, torch.full((2,), float(rank)))
        dist.all_gather_single(b, torch.full((3,), rank))
    assert a.tolist() == [0, 0, 1, 1] and b.tolist() == [0, 0, 0, 1, 1, 1]
    c, d = torch.zeros(1), torch.zeros(2, dtype=torch.float64)
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as requests:
        dist.reduce_scatter_single(c, torch.ones(2))
        dist.reduce_scatter_single(d, torch.ones(4, dtype=torch.float64))
    requests.wait()
    assert c.sum() == 2 and d.sum() == 4


@correct(2)
def one_layout_with_two_descriptions():
    """The stride of a dim of size 1 says nothing."""
    rows = torch.ones(2, 3)
    x = rows.t().unsqueeze(1) if dist.get_rank() == 0 else rows.unsqueeze(1).permute(2, 1, 0)
    dist.all_reduce(x)
    assert (x == 2).all() and x.stride()[::2] == (1, 3)
