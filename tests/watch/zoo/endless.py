"""Ranks that never end, flood the output, ask the keyboard or leave children behind: rows 40 and 53 of the bug zoo."""

import multiprocessing
import signal
import subprocess
import threading
import time
from itertools import count

import torch
import torch.distributed as dist

from tests.watch.cases import Outcome, mistake


@mistake(
    row=40,
    ranks=2,
    error="TimeLimit",
    blames=(1,),
    says=r"still running.* at line {here}\b",
    plain=Outcome.HANGS,
    deadline=0.5,
)
def infinite_loop():
    done = False
    if dist.get_rank() == 1:
        while not done:  # <- here
            done = False  # <- here
    dist.barrier()


@mistake(
    row=40,
    ranks=2,
    error="TimeLimit",
    blames=(0,),
    says=r"still running.* at line {here}\b",
    plain=Outcome.HANGS,
    deadline=0.5,
)
def loop_that_never_lets_go_of_the_interpreter():
    if dist.get_rank() == 0:
        sum(range(10**15))  # <- here
    dist.barrier()


@mistake(
    row=40,
    ranks=2,
    error="TimeLimit",
    blames=(0, 1),
    says=r"still running.* at line {here}\b",
    plain=Outcome.HANGS,
    deadline=0.5,
)
def sleeps_forever():
    time.sleep(3600)  # <- here


@mistake(
    row=40,
    ranks=2,
    error="TimeLimit",
    blames=(0, 1),
    says="still running.* at line",
    plain=Outcome.HANGS,
    deadline=0.5,
)
def trains_until_the_loss_is_zero():
    """Every call of the loop is correct; it just never ends."""
    loss = torch.ones(1)
    while loss.item() > 0:  # <- here
        dist.all_reduce(loss, op=dist.ReduceOp.AVG)  # <- here


@mistake(
    row=40,
    ranks=2,
    error="TimeLimit",
    blames=(1,),
    says=r"still running.* at line {here}\b",
    plain=Outcome.HANGS,
    deadline=0.5,
)
def waits_for_a_lock_it_already_holds():
    lock = threading.Lock()
    if dist.get_rank() == 1:
        with lock:
            lock.acquire()  # <- here
    dist.barrier()


@mistake(
    row=40,
    ranks=2,
    error="DeadlockError",
    blames=(1,),
    says=["rank 0 finished without sending", "no matching isend"],
    plain=Outcome.HANGS,
)
def polls_a_request_that_cannot_complete():
    """`is_completed` in a loop instead of `wait`; the message is never sent."""
    if dist.get_rank() == 1:
        request = dist.irecv(torch.zeros(4), src=0)
        while not request.is_completed():  # <- here
            time.sleep(0.01)


@mistake(
    row=3,
    ranks=2,
    error="DeadlockError",
    blames=(0, 1),
    says=["deadlock", "irecv"],
    plain=Outcome.HANGS,
)
def both_poll_for_a_message_before_they_send():
    """A loop that only asks is a wait like any other."""
    peer, x = 1 - dist.get_rank(), torch.zeros(4)
    request = dist.irecv(x, src=peer)
    while not request.is_completed():  # <- here
        pass
    dist.send(x, dst=peer)


@mistake(
    row=19,
    ranks=3,
    error="DeadlockError",
    blames=(0, 1),
    says=["rank 2 finished without it"],
    plain=Outcome.PASSES,
)
def polls_a_collective_that_one_rank_left_out():
    if dist.get_rank() < 2:
        work = dist.all_reduce(torch.ones(4), async_op=True)
        while not work.is_completed():  # <- here
            time.sleep(0.005)


@mistake(
    row=40,
    ranks=2,
    error="TimeLimit",
    blames=(0,),
    says=r"still running.* at line {here}\b",
    plain=Outcome.HANGS,
    deadline=0.5,
)
def ignores_the_signals_that_would_end_it():
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    while dist.get_rank() == 0:
        time.sleep(1)  # <- here
    dist.barrier()


@mistake(
    row=53,
    ranks=2,
    error="RemoteException",
    blames=(0,),
    says="input",
    plain=Outcome.RAISES,
)
def asks_the_keyboard():
    if dist.get_rank() == 0:
        input("learning rate? ")  # <- here
    dist.barrier()


@mistake(
    row=53,
    ranks=2,
    error="OutputFlood",
    blames=(0,),
    says="printed",
    plain=Outcome.HANGS,
)
def floods_the_output():
    if dist.get_rank() == 0:
        while True:  # around one line alone: where a loop is stopped is chance
            print("step" * 1000)  # <- here
    dist.barrier()


@mistake(
    row=53,
    ranks=2,
    error="GroupError",
    blames=(0, 1),
    says="a process that the rank has started is no rank",
    plain=Outcome.HANGS,
)
def a_child_process_takes_part_in_a_collective():
    def work():
        dist.all_reduce(torch.ones(1))  # <- here

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()


@mistake(
    row=53,
    ranks=2,
    error="StrayProcess",
    blames=(1,),
    says=r"process|child",
    plain=Outcome.PASSES,
)
def leaves_a_child_behind():
    if dist.get_rank() == 1:
        subprocess.Popen(["sleep", "3600"], start_new_session=True)  # <- here
    dist.barrier()


@mistake(
    row=40,
    ranks=2,
    error="TimeLimit",
    blames=(0,),
    says=r"still running.* at line {here}\b",
    plain=Outcome.HANGS,
    deadline=0.5,
)
def asks_the_store_for_a_key_that_nobody_sets():
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        store.get("address of the master")  # <- here
    dist.barrier()


def receives_first_beside_a_thread_that_never_rests(how):
    """The other thread might still send, as far as one can know, so that the verdict comes with the time limit."""
    peer, x = 1 - dist.get_rank(), torch.zeros(2)
    if how == "heartbeat":
        stop = threading.Event()
        threading.Thread(target=lambda: all(not stop.wait(0.05) for _ in count()), daemon=True).start()
        dist.recv(x, src=peer)  # <- here
    thread = threading.Thread(target=dist.recv, args=(x, peer), daemon=True)
    thread.start()  # <- here
    while thread.is_alive():
        thread.join(timeout=0.05)  # <- here


for how in ("heartbeat", "joined again and again"):
    receives_first_beside_a_thread_that_never_rests = mistake(
        row=1, ranks=2, error="DeadlockError", blames=(0, 1), plain=Outcome.HANGS, args=(how,), deadline=0.5,
        says=["every rank receives before it sends", "other threads of these ranks ran on until the time limit"],
    )(receives_first_beside_a_thread_that_never_rests)  # fmt: skip
