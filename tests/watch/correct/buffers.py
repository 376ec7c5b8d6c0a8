"""What may be done with a tensor in flight: look at its form, use its neighbours, read what only is sent."""

import io

import numpy
import torch
import torch.distributed as dist
from torch import nn

from tests.watch.cases import correct


def start_exchange(mine, buffer):
    """Begin to swap tensors with the other of two ranks."""
    peer = 1 - dist.get_rank()
    return [dist.isend(mine, dst=peer), dist.irecv(buffer, src=peer)]


def finish(requests):
    """Wait for all of them."""
    for request in requests:
        request.wait()


@correct(2)
def other_chunks_are_read_while_one_is_in_flight():
    """One half of a tensor is being received, the other half is free."""
    x = torch.arange(8.0)
    left, right = x.view(2, 4)
    requests = start_exchange(left.clone(), left)
    partial = right.sum().item()
    right += 1
    finish(requests)
    assert partial == 22 and x.sum() == 6 + 26


@correct(2)
def rows_around_the_one_in_flight():
    """Rows 0 and 2 surround row 1 in memory without touching it."""
    x = torch.arange(16.0).view(4, 4)
    requests = start_exchange(torch.zeros(4), x[1])
    even = x[::2].sum().item()
    x[::2] *= 2
    x[2:, :2].add_(1)
    finish(requests)
    assert even == 6 + 38 and x[1].sum() == 0


@correct(2)
def chosen_rows_beside_those_in_flight():
    """Rows that numbers in a tensor choose, by each function that takes such numbers."""
    table, low, high = torch.ones(600_000, 4), torch.tensor([0, 1]), torch.tensor([500_000, 599_999])
    requests = start_exchange(torch.zeros(2, 4), table[2:4])
    for rows in (
        table[low],
        table.index_select(0, high),
        nn.functional.embedding(low, table),
        torch.embedding(table, low),
    ):
        assert rows.sum() == 8
    table[high] = 2.0
    table.index_add_(0, low, torch.ones(2, 4))
    table.index_fill_(0, low, 3.0)
    table.index_copy_(0, low, torch.ones(2, 4))
    finish(requests)
    assert table[:4].sum() == 8 and table[-1].sum() == 8


@correct(2)
def columns_beside_a_block_in_flight():
    """A column of the lower rows, while the upper rows arrive."""
    x = torch.ones(4, 4)
    requests = start_exchange(torch.zeros(2, 4), x[:2])
    assert x[2:, 1].sum() == 2 and x[2:].t().sum() == 8
    finish(requests)
    assert x.sum() == 8


@correct(2)
def what_is_being_sent_is_read():
    """Reading what is being sent is allowed; writing is not."""
    mine, theirs = torch.ones(4), torch.zeros(4)
    requests = start_exchange(mine, theirs)
    total = mine.sum() + (mine * 2).sum()
    again = mine.clone()
    finish(requests)
    assert total == 12 and torch.equal(again, theirs)


@correct(2)
def form_of_a_buffer_in_flight():
    """Shapes, strides and views say nothing about the values, nor do tensors made in its likeness."""
    mine, buffer = torch.arange(6.0), torch.zeros(6)
    requests = start_exchange(mine, buffer)
    like = [torch.zeros_like(buffer), torch.empty_like(buffer), buffer.new_ones(3), torch.full_like(buffer, 2.0)]
    assert tuple(buffer.shape) == (6,) and buffer.numel() == len(buffer) == 6 and buffer.stride() == (1,)
    assert buffer.is_contiguous() and not buffer.requires_grad and buffer.data_ptr() and buffer.dtype.is_floating_point
    matrix, half, flipped = buffer.view(2, 3), buffer[3:], buffer.view(2, 3).t()
    finish(requests)
    assert half.tolist() == [3, 4, 5] and flipped[2, 1] == matrix[1, 2] == 5 and like[0].sum() == 0


@correct(2)
def conversions_that_convert_nothing():
    """`contiguous`, `float` and `cpu` return the tensor itself where there is nothing to do."""
    mine, buffer = torch.ones(6), torch.zeros(6)
    requests = start_exchange(mine, buffer)
    same = [buffer.contiguous(), buffer.float(), buffer.cpu(), buffer.to(torch.float32), buffer.reshape(2, 3)]
    pieces = [*buffer.chunk(2), *buffer.split(2), *buffer.unbind(), buffer.detach(), buffer.unsqueeze(0)]
    finish(requests)
    assert all(tensor.data_ptr() == buffer.data_ptr() for tensor in same) and pieces[0].sum() == 3


@correct(2)
def buffers_are_made_anew_while_old_ones_are_in_flight():
    """Rebinding a name is not writing to a tensor."""
    peer = 1 - dist.get_rank()
    x, requests, received = torch.zeros(4), [], []
    for step in range(3):
        received.append(torch.empty(4))
        requests += [dist.isend(x, dst=peer), dist.irecv(received[-1], src=peer)]
        x = x + step + 1
    finish(requests)
    assert [r[0].item() for r in received] == [0, 1, 3]


@correct(2)
def a_copy_is_sent_and_the_original_written():
    x, theirs = torch.ones(4), torch.zeros(4)
    requests = start_exchange(x.clone(), theirs)
    x.zero_()
    finish(requests)
    assert theirs.sum() == 4


@correct(2)
def one_half_is_sent_and_the_other_written():
    x, theirs = torch.ones(8), torch.zeros(4)
    requests = start_exchange(x[:4], theirs)
    x[4:] = 7
    finish(requests)
    assert theirs.sum() == 4


@correct(2)
def one_tensor_sent_twice_at_once():
    if dist.get_rank() == 0:
        x = torch.ones(4)
        requests = [dist.isend(x, dst=1), dist.isend(x, dst=1)]
    else:
        a, b = torch.zeros(4), torch.zeros(4)
        requests = [dist.irecv(a, src=0), dist.irecv(b, src=0)]
    finish(requests)


@correct(2)
def names_are_forgotten_while_their_tensors_travel():
    """The request keeps what it needs; memory that is free again may be used again."""
    whole = torch.zeros(2, 1000)
    for step in range(5):
        mine, row = torch.full((1000,), float(step)), whole[step % 2]
        requests = start_exchange(mine, row)
        del mine, row
        finish(requests)
        torch.full((1000,), 3.0).sum()
    assert whole[:, 0].tolist() == [4, 3]


@correct(2)
def double_buffering():
    """While one buffer is computed with, the next message arrives in the other."""
    steps, total = 4, 0.0
    if dist.get_rank() == 0:
        for step in range(steps):
            dist.send(torch.full((16,), float(step)), dst=1)
        return
    buffers = [torch.empty(16), torch.empty(16)]
    request = dist.irecv(buffers[0], src=0)
    for step in range(steps):
        request.wait()
        if step + 1 < steps:
            request = dist.irecv(buffers[(step + 1) % 2], src=0)
        total += buffers[step % 2].sum().item()
    assert total == 16 * 6


@correct(2)
def inputs_are_read_while_a_collective_runs():
    """What a collective only reads may be read by others; so may the tensor of a broadcast on its root."""
    mine, whole, shard, gathered = torch.ones(4), torch.ones(8), torch.zeros(4), torch.zeros(8)
    weights = torch.full((4,), float(dist.get_rank()))
    works = [
        dist.all_gather_single(gathered, mine, async_op=True),
        dist.reduce_scatter_single(shard, whole, async_op=True),
        dist.broadcast(weights, src=0, async_op=True),
    ]
    assert mine.sum() == 4 and whole.sum() == 8
    if dist.get_rank() == 0:
        assert weights.sum() == 0
    finish(works)
    assert gathered.sum() == shard.sum() == 8


@correct(2)
def one_input_for_two_collectives_at_once():
    mine, parts, whole = torch.ones(2), [torch.zeros(2), torch.zeros(2)], torch.zeros(4)
    finish([dist.all_gather(parts, mine, async_op=True), dist.all_gather_single(whole, mine, async_op=True)])
    assert torch.cat(parts).sum() == whole.sum() == 4


@correct(2)
def tensors_of_inference_mode():
    """They have no version counter to look at."""
    with torch.inference_mode():
        mine, theirs = torch.ones(4), torch.zeros(4)
        requests = start_exchange(mine, theirs)
        finish(requests)
        work = dist.all_reduce(theirs, async_op=True)
        work.wait()
        assert (theirs * mine).sum() == 8


@correct(2)
def arrays_that_share_memory_with_tensors():
    array = numpy.zeros(4, dtype=numpy.float32)
    requests = start_exchange(torch.ones(4), torch.from_numpy(array))
    finish(requests)
    assert array.sum() == 4


@correct(2)
def tensors_in_shared_memory_and_parameters():
    shared, weight = torch.ones(4).share_memory_(), torch.nn.Parameter(torch.ones(4))
    dist.all_reduce(shared)
    with torch.no_grad():
        finish(start_exchange(weight.data, shared))
    assert shared.sum() == 4


@correct(2)
def garbage_is_received_into():
    """A buffer that is only written to may hold anything, NaN too."""
    buffer, piece = torch.full((4,), float("nan")), torch.full((2,), float("nan"))
    finish(start_exchange(torch.ones(4), buffer))
    dist.scatter(piece, [torch.ones(2), torch.ones(2)] if dist.get_rank() == 0 else None, src=0)
    dist.all_to_all_single(buffer, torch.ones(4))
    assert buffer.sum() == 4 and piece.sum() == 2


@correct(2)
def numpy_reads_and_writes_where_it_may():
    """It reads what is only sent, writes beside it, and writes what has been waited for."""
    x, out, beside = torch.ones(4), torch.zeros(8), torch.zeros(8)
    view, free = x.numpy(), beside.numpy()[4:]
    works = [dist.all_gather_single(out, x, async_op=True), dist.all_reduce(beside[:4], async_op=True)]
    assert view.sum() == 4
    free += 3
    finish(works)
    view += 1
    assert out.sum() == 8 and beside.sum() == 12 and x.sum() == 8


@correct(2)
def what_a_future_gives_is_the_tensor_itself():
    """DDP's hooks divide it in place."""
    x = torch.ones(4)
    future = dist.all_reduce(x, async_op=True).get_future().then(lambda f: f.value()[0].div_(2))
    assert future.wait().data_ptr() == x.data_ptr() and x.sum() == 4


@correct(2)
def in_place_collectives_that_go_on():
    """Input and output share memory, as torch allows."""
    rank, x = dist.get_rank(), torch.zeros(8)
    x[4 * rank : 4 * rank + 4] = rank + 1
    dist.all_gather_single(x, x[4 * rank : 4 * rank + 4], async_op=True).wait()
    assert x.tolist() == [1] * 4 + [2] * 4
    parts = list(x.chunk(2))
    dist.all_gather(parts, x[:4].clone(), async_op=True).wait()
    assert x.sum() == 8


@correct(2)
def more_looks_at_the_form_of_a_buffer_in_flight():
    x = torch.ones(3, 2)
    request = dist.all_reduce(x, async_op=True)
    wide, _ = torch.broadcast_tensors(x, torch.ones(4, 1, 1))
    assert x.dim_order() == (0, 1) and x.new_empty_strided((2,), (1,)).shape == (2,)
    request.wait()
    assert wide.sum() == 48


@correct(2)
def hooks_are_registered_while_weights_travel():
    layer = torch.nn.Linear(3, 3)
    requests = [dist.broadcast(parameter, src=0, async_op=True) for parameter in layer.parameters()]
    for parameter in layer.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: None)
    finish(requests)


@correct(2)
def cut_off_from_its_history_while_it_is_sent():
    mine, theirs = torch.ones(3, requires_grad=True) * 2, torch.zeros(3)
    requests = start_exchange(mine, theirs)
    mine.detach_()
    finish(requests)
    assert theirs.sum() == 6


@correct(2)
def received_into_a_tensor_of_inference_mode():
    with torch.inference_mode():
        theirs = torch.zeros(3)
    finish(start_exchange(torch.ones(3), theirs))
    assert theirs.sum() == 3


@correct(2)
def the_result_of_a_request_is_the_tensor_itself():
    x, parts = torch.ones(3), [torch.zeros(3), torch.zeros(3)]
    for request, own in (
        (dist.all_reduce(x, async_op=True), [x]),
        (dist.all_gather(parts, torch.ones(3), async_op=True), parts),
    ):
        request.wait()
        results = request.result()
        assert len(results) == len(own) and all(one is other for one, other in zip(results, own, strict=True))
    assert x.sum() == 6


@correct(2)
def a_file_is_saved_with_its_arguments_named():
    kept = io.BytesIO()
    torch.save(obj=torch.ones(2), f=kept)
    kept.seek(0)
    assert torch.load(kept).sum() == 2


@correct(2)
def copies_that_have_a_name():
    """What has a name is no temporary, also where the result is not looked at, or through a view alone."""
    x = torch.ones(3, dtype=torch.bfloat16)

    def joins():
        total = x.float()
        dist.all_reduce(total)

    joins()
    half = x[[0, 2]].float()
    rows = half.view(2, 1)
    dist.all_reduce(half)
    del half
    dist.barrier()
    assert rows.sum() == 4


@correct(3)
def results_that_no_rank_wants():
    """To meet, to warm up, to throw away what comes, to bring one's part of another rank's sum."""
    rank, x = dist.get_rank(), torch.ones(3, dtype=torch.bfloat16)
    dist.all_reduce(torch.arange(3).float())
    dist.all_reduce(torch.ones(3)[[0, 2]])
    dist.all_reduce(x.clone())
    if rank == 0:
        total = x.float()
        dist.reduce(total, dst=0)
        assert total.sum() == 9
        dist.send(torch.ones(1, dtype=torch.int64), dst=1)
    else:
        dist.reduce(x.float(), dst=0)
    if rank == 1:
        dist.recv(torch.zeros(1).long(), src=0)
    dist.barrier()


@correct(2)
def parts_in_place():
    """Each rank's part lies where it belongs, in the sum and in what is gathered."""
    rank, x = dist.get_rank(), torch.arange(4.0)
    mine = x.chunk(2)[rank]
    dist.reduce_scatter_single(mine, x)
    dist.all_gather_single(x, mine)
    assert x.tolist() == [0, 2, 4, 6]
    dist.all_to_all(list(x.chunk(2)), [torch.full((2,), float(rank))] * 2)
    assert x.tolist() == [0, 0, 1, 1]
