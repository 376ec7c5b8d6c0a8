"""Collectives that some ranks call and others do not, or not yet: rows 18, 19, 20 and 39 of the bug zoo, and kin."""

import torch
import torch.distributed as dist

from tests.watch.cases import Outcome, mistake


@mistake(
    row=18,
    ranks=2,
    error="MismatchError",
    blames={0: "here", 1: "there"},
    says=["all_reduce", "broadcast", r"{here}\b", r"{there}\b"],
    plain=Outcome.HANGS,
)
def all_reduce_meets_broadcast():
    x = torch.ones(4)
    if dist.get_rank() == 0:
        dist.all_reduce(x)  # <- here
    else:
        dist.broadcast(x, src=0)  # <- there


@mistake(
    row=18,
    ranks=3,
    error="MismatchError",
    blames=(2,),
    says=["all_reduce", "barrier", r"{here}\b", r"{there}\b"],
    plain=Outcome.HANGS,
)
def one_of_three_ranks_calls_something_else():
    x = torch.ones(4)
    if dist.get_rank() == 2:
        dist.barrier()  # <- here
    else:
        dist.all_reduce(x)  # <- there


@mistake(
    row=18,
    ranks=2,
    error="MismatchError",
    blames={0: "here", 1: "there"},
    says=["all_gather", "reduce_scatter", r"{here}\b", r"{there}\b"],
    plain=Outcome.HANGS,
)
def async_all_gather_meets_reduce_scatter():
    whole, part = torch.ones(8), torch.ones(4)
    if dist.get_rank() == 0:
        work = dist.all_gather_single(whole, part, async_op=True)  # <- here
    else:
        work = dist.reduce_scatter_single(part, whole, async_op=True)  # <- there
    work.wait()


@mistake(
    row=18,
    ranks=2,
    error="MismatchError",
    blames={0: "here", 1: "there"},
    says=["all_reduce", "broadcast", r"{here}\b", r"{there}\b"],
    plain=Outcome.HANGS,
)
def the_same_calls_in_another_order():
    loss, weights = torch.ones(1), torch.ones(4)
    if dist.get_rank() == 0:
        dist.all_reduce(loss)  # <- here
        dist.broadcast(weights, src=0)
    else:
        dist.broadcast(weights, src=0)  # <- there
        dist.all_reduce(loss)


@mistake(
    row=18,
    ranks=2,
    error="MismatchError",
    blames={0: "here", 1: "there"},
    says=["all_reduce", r"{here}\b", r"{there}\b"],
    plain=Outcome.HANGS,
)
def object_collective_meets_tensor_collective():
    if dist.get_rank() == 0:
        everybodys = [None, None]
        dist.all_gather_object(everybodys, {"loss": 0.5})  # <- here
    else:
        dist.all_reduce(torch.ones(1))  # <- there


@mistake(
    row=18,
    ranks=4,
    error="MismatchError",
    blames=(3,),
    says=["all_reduce", "barrier", r"{here}\b", r"{there}\b"],
    plain=Outcome.HANGS,
)
def branch_that_depends_on_the_data():
    """Only the rank that met an outlier takes the branch; the next collective of the others pairs with its barrier."""
    sample = torch.tensor([1.0 if dist.get_rank() < 3 else 1000.0])
    if sample.item() > 100:
        print("outlier, waiting for all ranks to write a report")
        dist.barrier()  # <- here
    dist.all_reduce(sample)  # <- there


@mistake(
    row=19,
    ranks=2,
    error="DeadlockError",
    blames=(0,),
    says=["all_reduce", "rank 1 finished without"],
    plain=Outcome.CLOSED,
)
@mistake(
    row=19,
    ranks=4,
    error="DeadlockError",
    blames=(0,),
    says=["all_reduce", r"ranks? [123].* finished without"],
    plain=Outcome.CLOSED,
)
def all_reduce_on_rank_zero_only():
    loss = torch.ones(1)
    if dist.get_rank() == 0:
        dist.all_reduce(loss)  # <- here
        print(f"mean loss {loss.item() / dist.get_world_size()}")


@mistake(
    row=19,
    ranks=2,
    error="DeadlockError",
    blames=(0,),
    says=["barrier", "rank 1 finished without"],
    plain=Outcome.CLOSED,
)
def saves_and_waits_on_rank_zero_only():
    model = torch.nn.Linear(4, 4)
    if dist.get_rank() == 0:
        state = {name: value.clone() for name, value in model.state_dict().items()}
        dist.barrier()  # <- here
        return state


@mistake(
    row=19,
    ranks=3,
    error="DeadlockError",
    blames=(0,),
    says=["barrier", r"ranks? [12].* finished without"],
    plain=Outcome.CLOSED,
)
def a_barrier_too_many_pairs_with_the_next_one():
    """The barrier of the checkpoint meets the barrier of the end; the last one is left alone."""
    if dist.get_rank() == 0:
        dist.barrier()
    dist.barrier()  # <- here


@mistake(
    row=19,
    ranks=2,
    error="DeadlockError",
    blames=(1,),
    says=["all_gather_object", "rank 0 finished without"],
    plain=Outcome.CLOSED,
)
def all_gather_object_on_one_rank():
    metrics = {"rank": dist.get_rank(), "correct": 7}
    if dist.get_rank() != 0:
        everybodys = [None] * dist.get_world_size()
        dist.all_gather_object(everybodys, metrics)  # <- here


@mistake(
    row=19,
    ranks=3,
    error="DeadlockError",
    blames=(0,),
    says=["gather", r"ranks? [12].* finished without"],
    plain=Outcome.CLOSED,
)
def gather_on_the_destination_only():
    mine = torch.ones(4)
    if dist.get_rank() == 0:
        received = [torch.empty(4) for _ in range(3)]
        dist.gather(mine, received, dst=0)  # <- here


@mistake(
    row=19,
    ranks=2,
    error="DeadlockError",
    blames=(0,),
    says=["scatter", "rank 1 finished without"],
    plain=Outcome.CLOSED,
)
def scatter_on_the_source_only():
    mine = torch.empty(4)
    if dist.get_rank() == 0:
        dist.scatter(mine, list(torch.ones(2, 4)), src=0)  # <- here


@mistake(
    row=19,
    ranks=2,
    error="DeadlockError",
    blames=(0,),
    says=["broadcast", "rank 1 finished without"],
    plain=Outcome.CLOSED,
)
def broadcast_on_the_source_only():
    """It returns at once on the source when the tensor is small, and the receiver never learns of it."""
    if dist.get_rank() == 0:
        weights = torch.randn(4_000_000)
        dist.broadcast(weights, src=0)  # <- here


@mistake(
    row=19,
    ranks=2,
    error="DeadlockError",
    blames=(1,),
    says=["all_reduce", "rank 0 finished without"],
    plain=Outcome.CLOSED,
)
def async_all_reduce_on_one_rank():
    x = torch.ones(4)
    if dist.get_rank() == 1:
        work = dist.all_reduce(x, async_op=True)
        work.wait()  # <- here


@mistake(
    row=20,
    ranks=2,
    error="DeadlockError",
    blames=(0,),
    says=["all_reduce", r"call #2\b.* only on rank 0"],
    plain=Outcome.CLOSED,
)
def one_iteration_too_many():
    loss = torch.ones(1)
    for _ in range(2 if dist.get_rank() == 0 else 1):
        dist.all_reduce(loss)  # <- here


@mistake(
    row=20,
    ranks=3,
    error="DeadlockError",
    blames=(0, 1),
    says=["all_reduce", r"call #4\b.* only on ranks? [01]"],
    plain=Outcome.CLOSED,
)
def uneven_batches():
    """Eleven samples dealt out to three ranks: four, four, three."""
    samples = range(dist.get_rank(), 11, dist.get_world_size())
    gradient = torch.zeros(4)
    for sample in samples:
        gradient.fill_(sample)
        dist.all_reduce(gradient)  # <- here


@mistake(
    row=20,
    ranks=2,
    error="DeadlockError",
    blames=(1,),
    says=["all_reduce", "rank 0"],
    plain=Outcome.CLOSED,
)
def early_stopping_decided_by_each_rank():
    for step in range(10):
        loss = torch.tensor([1.0 / (step + 1 + dist.get_rank() * 0.5)])
        if dist.get_rank() == 0 and loss.item() < 0.3:
            break
        dist.all_reduce(loss)  # <- here


@mistake(
    row=39,
    ranks=2,
    error="DeadlockError",
    blames=(0,),
    says=["all_reduce", "rank 1 finished without"],
    plain=Outcome.CLOSED,
)
def early_return_on_one_rank():
    batch = torch.ones(4) if dist.get_rank() == 0 else torch.ones(0)
    if batch.numel() == 0:
        return  # nothing to do here
    dist.all_reduce(batch)  # <- here


@mistake(
    row=39,
    ranks=4,
    error="DeadlockError",
    blames=(0, 1, 3),
    says=["barrier", "rank 2 finished without"],
    plain=Outcome.CLOSED,
)
def break_on_one_rank():
    for step in range(3):
        if dist.get_rank() == 2 and step == 1:
            break
        dist.barrier()  # <- here


@mistake(
    ranks=2,
    error="DeadlockError",
    blames={0: "here", 1: "there"},
    says=["barrier", "recv"],
    plain=Outcome.HANGS,
)
def barrier_on_one_rank_while_the_other_receives():
    x = torch.zeros(4)
    if dist.get_rank() == 0:
        dist.barrier()  # <- here
        dist.send(x, dst=1)
    else:
        dist.recv(x, src=0)  # <- there
        dist.barrier()


@mistake(
    ranks=2,
    error="MismatchError",
    blames={0: "here", 1: "there"},
    says=["all_gather", "gather", r"{here}\b", r"{there}\b"],
    plain=Outcome.HANGS,
)
def only_the_root_gathers_from_all():
    mine = torch.ones(4)
    received = [torch.empty(4), torch.empty(4)]
    if dist.get_rank() == 0:
        dist.all_gather(received, mine)  # <- here
    else:
        dist.gather(mine, dst=0)  # <- there


@mistake(
    row=18, ranks=2, error="MismatchError", blames={0: "here", 1: "there"}, says=["monitored_barrier", "different"],
    plain=Outcome.HANGS, args=(0,),
)  # fmt: skip
@mistake(
    row=18, ranks=2, error="MismatchError", blames={0: "here", 1: "there"}, says=["monitored_barrier", "different"],
    plain=Outcome.HANGS, args=(1,),
)  # fmt: skip
def one_barrier_is_monitored_and_one_is_not(rank):
    """They are made of different messages."""
    if dist.get_rank() == rank:
        dist.monitored_barrier()  # <- here  # <- there
    else:
        dist.barrier()  # <- here  # <- there
