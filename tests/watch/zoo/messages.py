"""Messages whose two ends disagree: rows 4, 9, 10, 11 and 17 of the bug zoo."""

import threading
import time

import torch
import torch.distributed as dist

from tests.watch.cases import Outcome, mistake


@mistake(
    row=4,
    ranks=2,
    error="MismatchError",
    blames={0: "here", 1: "there"},
    says=["sent with tag 1", "the receiver wants tag 2"],
    plain=Outcome.HANGS,
)
def tags_differ():
    x = torch.ones(4)
    if dist.get_rank() == 0:
        dist.send(x, dst=1, tag=1)  # <- here
    else:
        dist.recv(x, src=0, tag=2)  # <- there


@mistake(
    row=4,
    ranks=2,
    error="MismatchError",
    blames=(0, 1),
    says=["sent with tag 1", "the receiver wants tag 0"],
    plain=Outcome.HANGS,
)
def a_tag_on_the_send_only():
    peer = 1 - dist.get_rank()
    mine, theirs = torch.ones(4), torch.zeros(4)
    requests = [dist.isend(mine, dst=peer, tag=1), dist.irecv(theirs, src=peer)]
    for request in requests:
        request.wait()  # <- here


@mistake(
    row=4,
    ranks=2,
    error="MismatchError",
    blames={0: "here", 1: "there"},
    says=["sent with tag 1", "the receiver wants tag 2"],
    plain=Outcome.HANGS,
)
def blocking_sends_received_by_tag_in_another_order():
    """The first send waits for tag 1 to be received, and the receiver asks for tag 2 first."""
    a, b = torch.ones(4), torch.ones(4)
    if dist.get_rank() == 0:
        dist.send(a, dst=1, tag=1)  # <- here
        dist.send(b, dst=1, tag=2)
    else:
        dist.recv(b, src=0, tag=2)  # <- there
        dist.recv(a, src=0, tag=1)


@mistake(
    row=9,
    ranks=2,
    error="MismatchError",
    blames={0: "here", 1: "there"},
    says=["sends 8 elements", "receives 4"],
    plain=Outcome.ABORTS,
    args=(8, 4),
)
@mistake(
    row=9,
    ranks=2,
    error="MismatchError",
    blames={0: "here", 1: "there"},
    says=["sends 4 elements", "receives 8"],
    plain=Outcome.PASSES,
    args=(4, 8),
)
def sizes_differ(sent, received):
    if dist.get_rank() == 0:
        dist.send(torch.ones(sent), dst=1)  # <- here
    else:
        dist.recv(torch.zeros(received), src=0)  # <- there


@mistake(
    row=9,
    ranks=2,
    error="MismatchError",
    blames=(0, 1),
    says=["sends 6 elements", "receives 4"],
    plain=Outcome.ABORTS,
)
def sizes_differ_in_a_batch():
    rank = dist.get_rank()
    mine, theirs = torch.ones(6 if rank == 0 else 4), torch.zeros(4)
    operations = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, theirs, 1 - rank)]  # <- here
    for request in dist.batch_isend_irecv(operations):  # <- here
        request.wait()  # <- here


@mistake(
    row=9,
    ranks=2,
    error="MismatchError",
    blames={0: "here", 1: "there"},
    says=["sends 6 elements", "receives 4"],
    plain=Outcome.ABORTS,
)
def last_chunk_is_larger_than_the_buffer():
    """Ten elements on two ranks in chunks of at most six; the receiver believed in equal halves but one."""
    x = torch.arange(10.0)
    chunks = list(x.split([4, 6]))
    if dist.get_rank() == 0:
        for chunk in chunks:
            dist.send(chunk, dst=1)  # <- here
    else:
        buffer = torch.empty(4)
        for _ in chunks:
            dist.recv(buffer, src=0)  # <- there


@mistake(
    row=10,
    ranks=2,
    error="MismatchError",
    blames={0: "here", 1: "there"},
    says=["float32", "float64"],
    plain=Outcome.PASSES,
    args=(torch.float32, torch.float64),
)
@mistake(
    row=10,
    ranks=2,
    error="MismatchError",
    blames={0: "here", 1: "there"},
    says=["float32", "int32"],
    plain=Outcome.PASSES,
    args=(torch.float32, torch.int32),
)
@mistake(
    row=10,
    ranks=2,
    error="MismatchError",
    blames={0: "here", 1: "there"},
    says=["int64", "float32"],
    plain=Outcome.ABORTS,
    args=(torch.int64, torch.float32),
)
@mistake(
    row=10,
    ranks=2,
    error="MismatchError",
    blames={0: "here", 1: "there"},
    says=["bfloat16", "float16"],
    plain=Outcome.PASSES,
    args=(torch.bfloat16, torch.float16),
)
def dtypes_differ(sent, received):
    if dist.get_rank() == 0:
        dist.send(torch.ones(4, dtype=sent), dst=1)  # <- here
    else:
        dist.recv(torch.zeros(4, dtype=received), src=0)  # <- there


@mistake(
    row=10,
    ranks=2,
    error="MismatchError",
    blames={0: "here", 1: "there"},
    says=["int64", "float32"],
    plain=Outcome.ABORTS,
)
def sends_labels_into_a_float_buffer():
    """`torch.tensor([1, 2])` is int64, `torch.zeros(2)` is float32."""
    if dist.get_rank() == 0:
        labels = torch.tensor([1, 2])
        dist.isend(labels, dst=1).wait()  # <- here
    else:
        labels = torch.zeros(2)
        dist.irecv(labels, src=0).wait()  # <- there


@mistake(
    row=11,
    ranks=2,
    error="MismatchError",
    blames={0: "here", 1: "there"},
    says=["message 1 has the wrong size", "8 elements", "4"],
    plain=Outcome.ABORTS,
)
def messages_received_in_swapped_order():
    weight, bias = torch.ones(2, 4), torch.ones(4)
    if dist.get_rank() == 0:
        dist.send(weight, dst=1)  # <- here
        dist.send(bias, dst=1)
    else:
        dist.recv(bias, src=0)  # <- there
        dist.recv(weight, src=0)


@mistake(
    row=11,
    ranks=2,
    error="MismatchError",
    blames={0: "here", 1: "there"},
    says=["message 1 has the wrong size", "4 elements", "8"],
    plain=Outcome.ABORTS,
)
def requests_posted_in_swapped_order():
    a, b = torch.ones(4), torch.ones(8)
    if dist.get_rank() == 0:
        requests = [dist.isend(a, dst=1), dist.isend(b, dst=1)]  # <- here
    else:
        requests = [dist.irecv(b, src=0), dist.irecv(a, src=0)]  # <- there
    for request in requests:
        request.wait()  # <- here  # <- there


@mistake(
    row=17,
    ranks=3,
    error="RaceError",
    blames=(0,),
    says=["the result depends on arrival order", r"ranks? 1(,| and) (rank )?2"],
    plain=Outcome.PASSES,
    args=(0.0,),
)
@mistake(
    row=17,
    ranks=3,
    error="RaceError",
    blames=(0,),
    says="the result depends on arrival order",
    plain=Outcome.PASSES,
    args=(0.2,),
)
def receives_from_anyone_in_arrival_order(late):
    """Rank 0 appends what comes; with `late`, rank 2 is slow enough that the order happens to be right."""
    rank = dist.get_rank()
    if rank == 0:
        parts = [torch.zeros(1) for _ in range(2)]
        for part in parts:
            dist.recv(part)  # <- here
        return torch.cat(parts)
    time.sleep(late if rank == 2 else 0)
    dist.send(torch.tensor([float(rank)]), dst=0)


@mistake(
    row=17,
    ranks=4,
    error="RaceError",
    blames=(0,),
    says="the result depends on arrival order",
    plain=Outcome.PASSES,
)
def first_answer_wins():
    """Every rank answers with the same tag and the same shape; whose answer is the first is up to the scheduler."""
    rank = dist.get_rank()
    answer = torch.tensor([rank])
    if rank > 0:
        dist.send(answer, dst=0, tag=7)
        return
    for _ in range(dist.get_world_size() - 1):
        request = dist.irecv(answer, src=None, tag=7)  # <- here
        request.wait()  # <- here


@mistake(
    row=17, ranks=3, error="RaceError", blames=(0,), says=["arrival order", "waits in vain"], plain=Outcome.PASSES,
    args=(0.1,),
)  # fmt: skip
@mistake(
    row=17, ranks=4, error="RaceError", blames=(0,), says=["arrival order", "waits in vain"], plain=Outcome.PASSES,
    args=(0.1,),
)  # fmt: skip
def from_anybody_and_then_from_rank_1(late):
    """Today rank 2 is first. Where rank 1 is, its message is gone when it is asked for by name."""
    rank, x = dist.get_rank(), torch.zeros(2)
    if rank == 0:
        dist.recv(x)  # <- here
        dist.recv(x, src=1)
    elif rank < 3:
        time.sleep(late if rank == 1 else 0)
        dist.send(torch.full((2,), float(rank)), dst=0)


@mistake(row=17, ranks=3, error="RaceError", blames=(0,), says=["arrival order", "waits in vain"], plain=Outcome.PASSES)
def an_irecv_from_anybody_beside_a_named_one():
    rank, a, b = dist.get_rank(), torch.zeros(2), torch.zeros(2)
    if rank == 0:
        request = dist.irecv(a, tag=3)  # <- here
        request.wait()
        dist.irecv(b, src=1, tag=3).wait()
    else:
        time.sleep(0.1 * (rank == 1))
        dist.send(torch.full((2,), float(rank)), dst=0, tag=3)


@mistake(row=17, ranks=3, error="RaceError", blames=(0,), says="arrival order", plain=Outcome.PASSES)
def the_sender_is_stored_and_never_looked_at():
    rank, x = dist.get_rank(), torch.zeros(2)
    if rank == 0:
        for _ in range(2):
            sender = dist.recv(x)  # <- here  # noqa: F841
        return x
    dist.send(torch.full((2,), float(rank)), dst=0)


@mistake(row=9, ranks=2, error="MismatchError", blames=(0, 1), says=["a list beside one tensor", r"\[2, 2\]", r"\[4\]"],
         plain=Outcome.HANGS)  # fmt: skip
def a_list_reduced_and_scattered_beside_one_tensor():
    out = torch.zeros(2)
    if dist.get_rank() == 0:
        dist.reduce_scatter(out, [torch.ones(2), torch.ones(2)])  # <- here
    else:
        dist.reduce_scatter_single(out, torch.ones(4))  # <- here


@mistake(ranks=2, error="RequestError", blames=(1,), says=["irecv gives no future", r"wait\(\)"], plain=Outcome.RAISES,
         args=("irecv",))  # fmt: skip
@mistake(ranks=2, error="RequestError", blames=(1,), says=["isend gives no future", r"wait\(\)"], plain=Outcome.RAISES,
         args=("isend",))  # fmt: skip
def a_future_of_a_message(name):
    x = torch.zeros(4)
    if dist.get_rank() == 1:
        request = dist.irecv(x, src=0) if name == "irecv" else dist.isend(x, dst=0)
        request.get_future().wait()  # <- here
    else:
        dist.send(x, dst=1) if name == "irecv" else dist.recv(x, src=1)


@mistake(row=17, ranks=3, error="RaceError", blames=(0,), says="arrival order", plain=Outcome.PASSES)
def sends_while_a_thread_still_waits_for_the_word():
    """The word would make an order; rank 2 does not wait for it."""
    rank, x = dist.get_rank(), torch.zeros(1)
    if rank == 0:
        dist.recv(x)  # <- here
        time.sleep(0.3)
        dist.send(x, dst=2, tag=5)
        dist.recv(x)
    elif rank == 1:
        dist.send(x, dst=0)
    else:
        thread = threading.Thread(target=dist.recv, args=(torch.zeros(1), 0), kwargs={"tag": 5})
        thread.start()
        time.sleep(0.1)
        dist.send(x, dst=0)
        thread.join()
