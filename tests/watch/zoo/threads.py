"""Collectives from a second thread: row 52 of the bug zoo, and kin."""

import threading
import time

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
