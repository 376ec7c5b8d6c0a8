"""Collectives from a second thread: row 52 of the bug zoo, and kin."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

from tests.watch.cases import Outcome, mistake


@mistake(
    row=52,
    ranks=2,
    error="ThreadError",
    blames={0: "here", 1: "here"},
    says=["thread", "logger", r"{here}\b"],
    plain=Outcome.PASSES,
)
def a_logging_thread_shares_the_group_with_training():
    """Which of the two calls a rank posts first is up to its scheduler; today all ranks happened to agree."""

    def log():
        dist.all_reduce(torch.ones(4))  # <- here

    logger = threading.Thread(target=log, name="logger")
    logger.start()
    for _ in range(20):
        dist.all_reduce(torch.ones(4))  # <- here
    logger.join()


@mistake(
    row=52,
    ranks=2,
    error="ThreadError",
    blames=(0, 1),
    says=["thread"],
    plain=Outcome.PASSES,
)
def two_workers_share_a_group():
    def reduce_often():
        gradient = torch.ones(8)
        for _ in range(10):
            dist.all_reduce(gradient)  # <- here
            time.sleep(0.001)

    workers = [threading.Thread(target=reduce_often) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


@mistake(
    row=52,
    ranks=2,
    error="ThreadError",
    blames=(0, 1),
    says=["thread", r"{here}\b"],
    plain=Outcome.PASSES,
)
def a_thread_still_communicates_after_the_function_has_returned():
    def report():
        time.sleep(0.05)
        dist.all_reduce(torch.ones(1))  # <- here

    threading.Thread(target=report, name="report", daemon=True).start()  # <- here


@mistake(
    row=52,
    ranks=2,
    error="DeadlockError",
    blames={0: "here", 1: "there"},
    says=["deadlock", "thread"],
    plain=Outcome.HANGS,
)
def main_waits_for_a_thread_that_waits_for_the_other_rank():
    x = torch.zeros(4)
    peer = 1 - dist.get_rank()

    def receive():
        dist.recv(x, src=peer)  # <- here  # <- there

    receiver = threading.Thread(target=receive, name="receiver")
    receiver.start()
    receiver.join()
    dist.send(x, dst=peer)


def in_two_threads(work):
    """`work(0)` and `work(1)`, each in a thread, started one after the other and joined."""
    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@mistake(
    row=52, ranks=2, error="ThreadError", blames=(0, 1), says=["threads?", "race"], plain=Outcome.PASSES, args=(0.0,)
)
@mistake(
    row=52, ranks=2, error="ThreadError", blames=(0, 1), says=["threads?", "race"], plain=Outcome.PASSES, args=(0.1,)
)
def two_threads_reduce_once(late):
    """With `late`, the first is done long before the second begins: luck, which no rank owes another."""

    def reduce(k):
        time.sleep(late * k)
        dist.all_reduce(torch.ones(4))  # <- here

    in_two_threads(reduce)


@mistake(row=52, ranks=2, error="ThreadError", blames=(0, 1), says=["threads?", "race"], plain=Outcome.PASSES)
def a_lock_is_no_order():
    """One at a time, but who is first differs from rank to rank."""
    lock = threading.Lock()

    def reduce(k):
        time.sleep(0.05 * k)
        with lock:
            dist.all_reduce(torch.ones(4))  # <- here

    in_two_threads(reduce)


@mistake(row=52, ranks=2, error="ThreadError", blames=(0, 1), says=["threads?", "race"], plain=Outcome.PASSES)
def main_reduces_while_a_pool_may():
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(dist.all_reduce, torch.ones(4))  # <- here
        time.sleep(0.1)
        dist.all_reduce(torch.ones(4))  # <- here
        future.result()


@mistake(
    row=52, ranks=2, error="ThreadError", blames=(0,), says=["send to rank 1 with tag 0", "own tag"],
    plain=Outcome.PASSES, args=("send",),
)  # fmt: skip
@mistake(
    row=52, ranks=2, error="ThreadError", blames=(0,), says=["send to rank 1 with tag 0", "own tag"],
    plain=Outcome.PASSES, args=("isend",),
)  # fmt: skip
def two_threads_send_with_one_tag(how):
    def send(k):
        time.sleep(0.05 * k)
        x = torch.full((2,), float(k))
        if how == "send":
            dist.send(x, dst=1)  # <- here
        else:
            dist.isend(x, dst=1).wait()  # <- here

    if dist.get_rank() == 0:
        in_two_threads(send)
    else:
        for _ in range(2):
            dist.recv(torch.zeros(2), src=0)


@mistake(row=52, ranks=2, error="ThreadError", blames=(1,), says="receive from rank 0 with tag 0", plain=Outcome.PASSES)
def two_threads_receive_with_one_tag():
    def receive(k):
        time.sleep(0.05 * k)
        dist.recv(torch.zeros(2), src=0)  # <- here

    if dist.get_rank() == 1:
        in_two_threads(receive)
    else:
        for _ in range(2):
            dist.send(torch.ones(2), dst=1)


BEFORE = r"before"


@mistake(row=13, ranks=2, error="RequestError", blames=(0, 1), says=["unfilled", BEFORE], plain=Outcome.PASSES)
def a_thread_reads_its_result_before_wait():
    x, out = torch.ones(4), torch.zeros(8)

    def work():
        request = dist.all_gather_single(out, x, async_op=True)
        out.clone()  # <- here
        request.wait()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@mistake(row=14, ranks=2, error="RequestError", blames=(0, 1), says=["modified", BEFORE], plain=Outcome.PASSES)
def a_thread_overwrites_what_it_sends_to_all():
    x, out = torch.ones(4), torch.zeros(4)

    def work():
        request = dist.all_to_all_single(out, x, async_op=True)
        x.zero_()  # <- here
        request.wait()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


@mistake(
    row=15, ranks=2, error="RequestError", blames=(0, 1), says=["unfilled", BEFORE], plain=Outcome.PASSES, args=(0.0,)
)
@mistake(
    row=15, ranks=2, error="RequestError", blames=(0, 1), says=["unfilled", BEFORE], plain=Outcome.PASSES, args=(0.1,)
)
def another_thread_adds_to_what_is_reduced(late):
    """With `late`, the wait in the main thread happens to be over; nothing has the other thread wait for it."""
    gradient = torch.ones(4)

    def clip():
        time.sleep(late)
        gradient.add_(1)  # <- here

    request = dist.all_reduce(gradient, async_op=True)
    thread = threading.Thread(target=clip)
    thread.start()
    request.wait()
    thread.join()


@mistake(row=13, ranks=2, error="RequestError", blames=(1,), says=["unfilled", BEFORE], plain=Outcome.PASSES)
def main_reads_what_a_thread_has_received_without_a_join():
    x = torch.zeros(4)
    if dist.get_rank() == 0:
        dist.send(torch.ones(4), dst=1)
    else:
        receiver = threading.Thread(target=dist.recv, args=(x, 0))
        receiver.start()
        time.sleep(0.1)
        x.sum().item()  # <- here
        receiver.join()


@mistake(
    row=52, ranks=2, error="DeadlockError", blames=(0, 1), says=["deadlock|no matching|without receiving"],
    plain=Outcome.PASSES,
)  # fmt: skip
def two_threads_send_to_a_rank_that_sends():
    """Every thread of rank 0 waits, the main one for the two that send."""
    if dist.get_rank() == 0:
        threads = [threading.Thread(target=dist.send, args=(torch.ones(2), 1), kwargs={"tag": k}) for k in range(2)]
        for thread in threads:
            thread.start()  # <- here
        for thread in threads:
            thread.join()  # <- here
    else:
        dist.send(torch.ones(2), dst=0)  # <- here
        for k in range(2):
            dist.recv(torch.zeros(2), src=0, tag=k)


@mistake(row=3, ranks=2, error="DeadlockError", blames=(0, 1), says=["deadlock", "new_group"], plain=Outcome.HANGS)
def one_rank_receives_before_a_group_is_made():
    """The group is not the mistake: rank 0 would come, if any rank sent."""
    if dist.get_rank() == 0:
        dist.recv(torch.zeros(2), src=1)  # <- here
    dist.new_group()  # <- here


@mistake(row=52, ranks=2, error="DeadlockError", blames=(0, 1), says=["deadlock", "asyncio"], plain=Outcome.HANGS)
def an_event_loop_waits_for_threads_that_wait_for_each_other():
    async def main():
        await asyncio.to_thread(dist.recv, torch.zeros(2), 1 - dist.get_rank())  # <- here

    asyncio.run(main())  # <- here


def until_set(event, thread):
    while not event.is_set():
        time.sleep(0.001)


def until_set_without_sleeping(event, thread):
    while True:
        if event.is_set():
            return


def until_it_is_over(event, thread):
    while thread.is_alive():
        time.sleep(0.001)


@mistake(row=52, ranks=2, error="DeadlockError", blames=(0,), says="deadlock", plain=Outcome.HANGS, args=(until_set,))
@mistake(
    row=52,
    ranks=2,
    error="DeadlockError",
    blames=(0,),
    says="deadlock",
    plain=Outcome.HANGS,
    args=(until_set_without_sleeping,),
)
@mistake(
    row=52, ranks=2, error="DeadlockError", blames=(0,), says="deadlock", plain=Outcome.HANGS, args=(until_it_is_over,)
)
def main_looks_whether_a_thread_is_done_that_waits_for_the_other_rank(wait):
    """To look again and again is to wait."""
    if dist.get_rank() == 1:
        dist.recv(torch.zeros(2), src=0)
    done = threading.Event()

    def reduce():
        dist.all_reduce(torch.ones(2))  # <- here
        done.set()

    thread = threading.Thread(target=reduce)
    thread.start()
    wait(done, thread)
