"""Ranks that raise, leave or die while others wait: rows 36, 37, 38 and 41 of the bug zoo."""

import ctypes
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

from tests.watch.cases import Outcome, mistake


@mistake(
    row=36,
    ranks=2,
    error="RemoteException",
    blames=(1,),
    says=["ZeroDivisionError", "rank 0", r"all_reduce", r"{there}\b"],
    plain=Outcome.RAISES,
)
def an_exception_while_the_other_waits():
    batches = [4, 0][dist.get_rank()]
    dist.barrier()
    time.sleep(0.1 * dist.get_rank())
    mean = 10 / batches  # <- here
    dist.all_reduce(torch.tensor([mean]))  # <- there


@mistake(
    row=36,
    ranks=4,
    error="RemoteException",
    blames=(2,),
    says=["IndexError", "left waiting", "rank 0|ranks 0", r"\b1\b", r"\b3\b", "recv"],
    plain=Outcome.RAISES,
)
def an_exception_while_three_wait():
    rank = dist.get_rank()
    shards, x = [[1.0], [2.0], [], [4.0]], torch.zeros(1)
    dist.barrier()
    if rank == 2:
        time.sleep(0.1)
        x[0] = shards[rank][0]  # <- here
    else:
        dist.recv(x, src=2)
    for peer in (0, 1, 3):
        if rank == 2:
            dist.send(x, dst=peer)


@mistake(
    row=36,
    ranks=2,
    error="RemoteException",
    blames=(0, 1),
    says=["mat1 and mat2 shapes cannot be multiplied"],
    plain=Outcome.RAISES,
)
def an_exception_on_every_rank():
    """One error is enough, and it points at the learner's line, not into torch."""
    layer = torch.nn.Linear(8, 4)
    layer(torch.ones(2, 6))  # <- here


@mistake(
    row=36,
    ranks=2,
    error="RemoteException",
    blames=(1,),
    says=["AssertionError"],
    plain=Outcome.RAISES,
)
def a_failed_assertion():
    x = torch.ones(2)
    dist.all_reduce(x)
    assert x.sum() == 4 + dist.get_rank()  # <- here


class OutOfTokens(Exception):
    """An exception that cannot be unpickled: its constructor wants more than a message."""

    def __init__(self, rank, wanted):
        super().__init__(f"rank {rank} wanted {wanted} tokens")


@mistake(
    row=36,
    ranks=2,
    error="RemoteException",
    blames=(0,),
    says=["OutOfTokens", "rank 0 wanted 5 tokens"],
    plain=Outcome.RAISES,
)
def an_exception_that_cannot_travel():
    if dist.get_rank() == 0:
        raise OutOfTokens(0, wanted=5)  # <- here
    dist.barrier()


@mistake(
    row=37,
    ranks=2,
    error="RankDied",
    blames=(1,),
    says="left before finishing",
    plain=Outcome.CLOSED,
    args=("os._exit(0)",),
)
@mistake(
    row=37,
    ranks=2,
    error="RankDied",
    blames=(1,),
    says="left before finishing",
    plain=Outcome.ABORTS,
    args=("os._exit(3)",),
)
@mistake(
    row=37,
    ranks=3,
    error="RankDied",
    blames=(1,),
    says="left before finishing",
    plain=Outcome.ABORTS,
    args=("sys.exit()",),
)
@mistake(
    row=37,
    ranks=2,
    error="RankDied",
    blames=(1,),
    says="left before finishing",
    plain=Outcome.ABORTS,
    args=("sys.exit('done')",),
)
def leaves_in_the_middle(how):
    x = torch.ones(4)
    if dist.get_rank() == 1:
        if how == "os._exit(0)":
            os._exit(0)  # <- here
        elif how == "os._exit(3)":
            os._exit(3)  # <- here
        elif how == "sys.exit()":
            sys.exit()  # <- here
        else:
            sys.exit("done")  # <- here
    dist.all_reduce(x)


@mistake(
    row=37,
    ranks=2,
    error="RankDied",
    blames=(0, 1),
    says="left before finishing",
    plain=Outcome.PASSES,
)
def every_rank_leaves():
    """No rank is left to wait, and still no rank returned anything."""
    dist.barrier()
    sys.exit(0)  # <- here


@mistake(
    row=38,
    ranks=2,
    error="RankDied",
    blames=(1,),
    says=["SIGKILL", "all_reduce"],
    plain=Outcome.ABORTS,
)
def killed_by_the_system():
    """What a machine without memory left does."""
    x = torch.ones(4)
    dist.all_reduce(x)  # <- here
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # <- here
    dist.barrier()


@mistake(
    row=38,
    ranks=2,
    error="RankDied",
    blames=(0,),
    says=["SIGSEGV", "broadcast"],
    plain=Outcome.ABORTS,
)
def segmentation_fault():
    x = torch.ones(4)
    dist.broadcast(x, src=0)  # <- here
    if dist.get_rank() == 0:
        ctypes.string_at(0)  # <- here
    dist.barrier()


@mistake(
    row=38,
    ranks=3,
    error="RankDied",
    blames=(2,),
    says=["SIGABRT"],
    plain=Outcome.ABORTS,
)
def aborted_by_a_library():
    if dist.get_rank() == 2:
        os.abort()  # <- here
    dist.barrier()


@mistake(
    row=38,
    ranks=2,
    error="RemoteException",
    blames=(0, 1),
    says=["(?i)memory"],
    plain=Outcome.RAISES,
)
def asks_for_more_memory_than_there_is():
    activations = torch.empty(1 << 50)  # <- here
    dist.all_reduce(activations)


@mistake(
    row=41,
    ranks=2,
    error="PeerError",
    blames=(0,),
    says=[r"ranks are 0\.\.1"],
    plain=Outcome.HANGS,
)
def error_of_a_call_swallowed_then_a_hang():
    """What matters is the first error, not that rank 1 waits for a message that was never sent."""
    x = torch.ones(4)
    if dist.get_rank() == 0:
        try:
            dist.send(x, dst=2)  # <- here
        except Exception:
            print("could not send, continuing")
    else:
        dist.recv(x, src=0)


@mistake(
    row=41,
    ranks=2,
    error="DeadlockError",
    blames=(0, 1),
    says=["all_reduce", "KeyError"],
    plain=Outcome.CLOSED,
)
def error_of_its_own_swallowed_then_a_hang():
    sample = {"text": "..."} if dist.get_rank() == 1 else {"label": 1.0}
    try:
        label = torch.tensor([sample["label"]])  # <- here
        dist.all_reduce(label)  # <- here
    except KeyError:
        print("skipped a sample without a label")


@mistake(
    row=41,
    ranks=2,
    error="DeadlockError",
    blames=(0, 1),
    says=["all_reduce", "KeyError"],
    plain=Outcome.CLOSED,
)
def error_of_a_hook_swallowed_then_a_hang():
    """A hook is the caller's own code, which torch runs in the middle of its own."""
    scales = {} if dist.get_rank() == 1 else {"x": 0.5}
    x = torch.ones(4, requires_grad=True)

    def average(gradient):
        try:
            scaled = gradient * scales["x"]  # <- here
            dist.all_reduce(scaled)  # <- here
        except KeyError:
            print("no scale, continuing")

    x.register_hook(average)
    x.sum().backward()


@mistake(
    row=41,
    ranks=2,
    error="RemoteException",
    blames=(1,),
    says=["ValueError: no such file", "rank 0", r"{there}\b"],
    plain=Outcome.CLOSED,
)
def exception_in_a_thread_nobody_looks_at():
    x = torch.ones(4)

    def load():
        raise ValueError("no such file")  # <- here

    if dist.get_rank() == 1:
        loader = threading.Thread(target=load)
        loader.start()
        loader.join()
    else:
        dist.recv(x, src=1)  # <- there
