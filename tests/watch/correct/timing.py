"""Ranks that are late, leave early or take turns; branches that every rank takes."""

import subprocess
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from tests.watch.cases import correct


@correct(2, 4)
def one_rank_is_late():
    """Every rank waits for 0.3 seconds; that is slow, and not a deadlock."""
    if dist.get_rank() == 1:
        time.sleep(0.3)
    x = torch.ones(4)
    dist.all_reduce(x)
    assert x[0] == dist.get_world_size()


@correct(3)
def a_late_sender():
    rank, x = dist.get_rank(), torch.zeros(4)
    if rank == 0:
        time.sleep(0.3)
    if rank > 0:
        dist.recv(x, src=rank - 1)
    if rank < 2:
        dist.send(x + 1, dst=rank + 1)
    assert x[0] == rank


@correct(2)
def a_late_receiver():
    x = torch.ones(1_000_000)
    if dist.get_rank() == 0:
        dist.send(x, dst=1)
    else:
        time.sleep(0.3)
        dist.recv(x, src=0)


@correct(2)
def a_rank_that_computes():
    """Busy without the interpreter ever sleeping."""
    x = torch.ones(1)
    if dist.get_rank() == 0:
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            torch.randn(100, 100) @ torch.randn(100, 100)
    dist.all_reduce(x)


@correct(3)
def ranks_leave_when_they_are_done():
    """Rank 0 has nothing to do after its message; the others continue without it."""
    rank, pair, x = dist.get_rank(), dist.new_group([1, 2]), torch.ones(4)
    if rank == 0:
        dist.send(x, dst=1)
        return "done"
    if rank == 1:
        dist.recv(x, src=0)
    time.sleep(0.05)
    dist.all_reduce(x, group=pair)
    return x.sum().item()


@correct(3)
def a_rank_that_never_speaks():
    if dist.get_rank() < 2:
        peer, x = 1 - dist.get_rank(), torch.zeros(2)
        receive = dist.irecv(x, src=peer)
        dist.isend(torch.ones(2), dst=peer).wait()
        receive.wait()
        assert x.sum() == 2


@correct(2)
def a_branch_that_every_rank_takes():
    """The decision depends on data, but on data that all have agreed upon."""
    loss = torch.tensor([1.0 if dist.get_rank() == 0 else 1000.0])
    worst = loss.clone()
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    if worst.item() > 100:
        dist.barrier()
    dist.all_reduce(loss)


@correct(3)
def early_stopping_decided_together():
    for step in range(10):
        stop = torch.tensor([int(dist.get_rank() == 1 and step == 3)])
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop.item():
            break
    assert step == 3


@correct(2)
def uneven_batches_counted_first():
    batches = torch.tensor([5 + dist.get_rank()])
    dist.all_reduce(batches, op=dist.ReduceOp.MIN)
    for _ in range(batches.item()):
        dist.all_reduce(torch.ones(2))


@correct(2)
def different_lines_for_the_same_call():
    """Two places in the code, one call: what counts is what is called, not where."""
    x = torch.ones(4)
    if dist.get_rank() == 0:
        x *= 2
        dist.all_reduce(x)
    else:
        dist.all_reduce(x)
    assert (x == 3).all()


@correct(2)
def rank_zero_saves_then_all_load():
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    path, model = Path(folder[0]) / "model.pt", nn.Linear(4, 4)
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
    dist.barrier()
    model.load_state_dict(torch.load(path))
    dist.barrier()
    if dist.get_rank() == 0:
        path.unlink()
        path.parent.rmdir()


@correct(3)
def ranks_speak_in_order():
    for turn in range(dist.get_world_size()):
        if turn == dist.get_rank():
            print(f"rank {turn}")
        dist.barrier()


@correct(2)
def an_error_that_is_handled():
    """An exception that one rank expects and recovers from is no error."""
    try:
        sample = {"text": "..."}["label"]
    except KeyError:
        sample = 0.0
    x = torch.tensor([sample])
    dist.all_reduce(x)
    assert x.item() == 0


@correct(2)
def a_store_beside_the_group():
    """The key-value store is not a collective, and waiting for it is not a deadlock."""
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        time.sleep(0.05)
        store.set("learning rate", "0.1")
    assert store.get("learning rate") == b"0.1"
    dist.barrier()


@correct(2)
def workers_of_a_data_loader():
    """Child processes that are gone when the function returns."""
    loader = DataLoader(torch.arange(8.0), batch_size=2, num_workers=1)
    total = torch.zeros(1)
    for batch in loader:
        dist.all_reduce(batch)
        total += batch.sum()
    assert total == 56


@correct(2)
def a_command_that_has_ended():
    if dist.get_rank() == 0:
        subprocess.run(["true"], check=True)
    dist.barrier()


@correct(4)
def pairs_at_different_paces():
    """Two pairs that never meet, one of them slow."""
    rank = dist.get_rank()
    partner, x = rank ^ 1, torch.zeros(2)
    for _ in range(3):
        if rank >= 2:
            time.sleep(0.05)
        receive = dist.irecv(x, src=partner)
        dist.send(torch.ones(2), dst=partner)
        receive.wait()
