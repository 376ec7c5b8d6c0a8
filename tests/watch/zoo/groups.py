"""Process groups: rows 33, 34, 35, 42 and 43 of the bug zoo, and kin."""

import torch
import torch.distributed as dist

from tests.watch.cases import Outcome, mistake


@mistake(
    row=33,
    ranks=2,
    error="GroupError",
    blames=(0,),
    says=["new_group", "every rank must call it"],
    plain=Outcome.HANGS,
)
def new_group_on_rank_zero_only():
    x = torch.ones(4)
    if dist.get_rank() == 0:
        group = dist.new_group([0, 1])  # <- here
        dist.all_reduce(x, group=group)


@mistake(
    row=33,
    ranks=4,
    error="GroupError",
    blames=(0, 1),
    says=["new_group", "every rank must call it"],
    plain=Outcome.PASSES,
)
def new_group_on_its_members_only():
    """The others continue to a barrier, which is not what the members are waiting for."""
    x = torch.ones(4)
    if dist.get_rank() < 2:
        group = dist.new_group([0, 1])  # <- here
        dist.all_reduce(x, group=group)
    dist.barrier()


@mistake(
    row=33,
    ranks=4,
    error="GroupError",
    blames=(0, 1, 2, 3),
    says=["new_group", "every rank must call it", "same ranks"],
    plain=Outcome.CLOSED,
)
def every_rank_creates_only_its_own_group():
    """Ranks 0 and 1 ask for one group while ranks 2 and 3 ask for another; each should create both."""
    first = dist.get_rank() // 2 * 2
    x = torch.ones(4)
    group = dist.new_group([first, first + 1])  # <- here
    dist.all_reduce(x, group=group)


@mistake(
    row=33,
    ranks=3,
    error="GroupError",
    blames={0: "here", 1: "there", 2: "there"},
    says=["new_group", "different ranks|order", r"\[0, 1\]", r"\[1, 2\]"],
    plain=Outcome.HANGS,
)
def groups_created_in_another_order():
    if dist.get_rank() == 0:
        left = dist.new_group([0, 1])  # <- here
        right = dist.new_group([1, 2])
    else:
        right = dist.new_group([1, 2])  # <- there
        left = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        dist.all_reduce(torch.ones(4), group=left)
    if dist.get_rank() > 0:
        dist.all_reduce(torch.ones(4), group=right)


@mistake(
    ranks=2,
    error="RemoteException",
    blames=(0, 1),
    says=["Rank 2 is out of range"],
    plain=Outcome.RAISES,
)
def group_with_a_rank_that_does_not_exist():
    dist.new_group([1, 2])  # <- here


@mistake(
    row=34,
    ranks=2,
    error="DeadlockError",
    blames={0: "here", 1: "there"},
    says=["deadlock", "rank 0 waits", "rank 1 waits", r"{here}\b", r"{there}\b"],
    plain=Outcome.HANGS,
)
def two_groups_in_crossed_order():
    tensor_parallel, data_parallel = dist.new_group([0, 1]), dist.new_group([0, 1])
    x = torch.ones(4)
    if dist.get_rank() == 0:
        dist.all_reduce(x, group=tensor_parallel)  # <- here
        dist.all_reduce(x, group=data_parallel)
    else:
        dist.all_reduce(x, group=data_parallel)  # <- there
        dist.all_reduce(x, group=tensor_parallel)


@mistake(
    row=34,
    ranks=3,
    error="DeadlockError",
    blames=(0, 1, 2),
    says=["deadlock", r"0 waits", r"1 waits", r"2 waits", r"[\[({]0, ?1[\])}]", r"[\[({]1, ?2[\])}]"],
    plain=Outcome.HANGS,
)
def three_overlapping_groups_in_a_circle():
    groups = [dist.new_group([0, 1]), dist.new_group([1, 2]), dist.new_group([0, 2])]
    rank = dist.get_rank()
    x = torch.ones(4)
    dist.all_reduce(x, group=groups[rank])  # <- here
    dist.all_reduce(x, group=groups[(rank + 2) % 3])


@mistake(
    row=34,
    ranks=4,
    error="DeadlockError",
    blames={0: "here", 1: "there", 2: "there", 3: "here"},
    says=["deadlock", "0 waits", "waits"],
    plain=Outcome.HANGS,
)
def rows_first_meets_columns_first():
    """A 2 x 2 mesh: ranks 0 and 3 reduce over their row first, ranks 1 and 2 over their column."""
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    rank = dist.get_rank()
    row, column = rows[rank // 2], columns[rank % 2]
    x = torch.ones(4)
    if rank in (0, 3):
        dist.all_reduce(x, group=row)  # <- here
        dist.all_reduce(x, group=column)
    else:
        dist.all_reduce(x, group=column)  # <- there
        dist.all_reduce(x, group=row)


@mistake(
    row=34,
    ranks=2,
    error="DeadlockError",
    blames={0: "here", 1: "there"},
    says=["deadlock", "barrier", r"recv\(src=0\)"],
    plain=Outcome.HANGS,
)
def barrier_of_the_world_meets_a_message_in_a_group():
    pair = dist.new_group([0, 1])
    x = torch.zeros(4)
    if dist.get_rank() == 0:
        dist.barrier()  # <- here
        dist.send(x, dst=1, group=pair)
    else:
        dist.recv(x, src=0, group=pair)  # <- there
        dist.barrier()


@mistake(
    ranks=2,
    error="MismatchError",
    blames={0: "here", 1: "there"},
    says=["group", r"{here}\b", r"{there}\b"],
    plain=Outcome.HANGS,
)
def sent_in_a_group_and_received_in_the_world():
    pair = dist.new_group([0, 1])
    x = torch.ones(4)
    if dist.get_rank() == 0:
        dist.send(x, dst=1, group=pair)  # <- here
    else:
        dist.recv(x, src=0)  # <- there


@mistake(
    row=35,
    ranks=3,
    error="GroupError",
    blames=(2,),
    says="rank 2 is not in the group: nothing happened",
    plain=Outcome.PASSES,
    args=("all_reduce",),
)
@mistake(
    row=35,
    ranks=3,
    error="GroupError",
    blames=(2,),
    says="rank 2 is not in the group: nothing happened",
    plain=Outcome.PASSES,
    args=("barrier",),
)
@mistake(
    row=35,
    ranks=4,
    error="GroupError",
    blames=(2, 3),
    says=r"rank [23] is not in the group: nothing happened",
    plain=Outcome.PASSES,
    args=("all_gather",),
)
def rank_outside_the_group_calls(what):
    pair = dist.new_group([0, 1])
    x, parts = torch.ones(4), [torch.empty(4), torch.empty(4)]
    if what == "all_reduce":
        dist.all_reduce(x, group=pair)  # <- here
    elif what == "barrier":
        dist.barrier(group=pair)  # <- here
    else:
        dist.all_gather(parts, x, group=pair)  # <- here


@mistake(
    row=42,
    ranks=2,
    error="GroupError",
    blames=(0, 1),
    says=["destroyed", r"{there}\b"],
    plain=Outcome.RAISES,
)
def world_destroyed_then_used():
    loss = torch.ones(1)
    dist.all_reduce(loss)
    dist.destroy_process_group()  # <- there
    dist.all_reduce(loss)  # <- here


@mistake(
    row=42,
    ranks=2,
    error="GroupError",
    blames=(0, 1),
    says=["destroyed", r"{there}\b"],
    plain=Outcome.RAISES,
)
def group_destroyed_then_used():
    pair = dist.new_group([0, 1])
    x = torch.ones(4)
    dist.all_reduce(x, group=pair)
    dist.destroy_process_group(pair)  # <- there
    dist.broadcast(x, src=0, group=pair)  # <- here


@mistake(
    row=42,
    ranks=2,
    error="GroupError",
    blames={0: "here", 1: "elsewhere"},
    says=["destroyed", r"{here}\b"],
    plain=Outcome.CLOSED,
)
def world_destroyed_on_one_rank_while_the_other_uses_it():
    x = torch.ones(4)
    if dist.get_rank() == 0:
        dist.destroy_process_group()  # <- here
    else:
        dist.all_reduce(x)  # <- elsewhere


@mistake(
    row=42,
    ranks=2,
    error="GroupError",
    blames=(0, 1),
    says=["destroyed", r"{there}\b"],
    plain=Outcome.RAISES,
)
def destroyed_twice():
    dist.destroy_process_group()  # <- there
    dist.destroy_process_group()  # <- here


@mistake(
    row=43,
    ranks=2,
    error="GroupError",
    blames=(0, 1),
    says="the group already exists",
    plain=Outcome.RAISES,
)
def initialised_twice():
    """A script for torchrun, pasted into a cell of a cluster that has done this already."""
    dist.init_process_group("gloo")  # <- here
    dist.all_reduce(torch.ones(1))


@mistake(
    ranks=2,
    error="GroupError",
    blames=(0, 1),
    says=["group", r"new_group|list"],
    plain=Outcome.RAISES,
)
def ranks_given_in_place_of_a_group():
    dist.all_reduce(torch.ones(4), group=[0, 1])  # <- here


ARGUMENTS = {
    "all_reduce": lambda x: (x,),
    "all_gather": lambda x: ([torch.ones(2), torch.ones(2)], x),
    "all_gather_single": lambda x: (torch.ones(4), x),
    "all_gather_object": lambda x: ([None, None], "me"),
    "reduce_scatter": lambda x: (x, [torch.ones(2), torch.ones(2)]),
    "reduce_scatter_single": lambda x: (x, torch.ones(4)),
    "all_to_all": lambda x: ([torch.ones(1), torch.ones(1)], list(x.chunk(2))),
    "all_to_all_single": lambda x: (torch.ones(2), x),
    "barrier": lambda x: (),
    "monitored_barrier": lambda x: (),
    "broadcast": lambda x: (x, 0),
    "reduce": lambda x: (x, 0),
}
REFUSED = ("monitored_barrier", "broadcast", "reduce")  # by torch alone


def used_after_it_was_destroyed(name):
    """gloo works on where no root is named; on NCCL the communicator is gone."""
    group = dist.new_group([0, 1])
    dist.barrier()
    dist.destroy_process_group(group)  # <- there
    getattr(dist, name)(*ARGUMENTS[name](torch.ones(2)), group=group)  # <- here


for name in ARGUMENTS:
    used_after_it_was_destroyed = mistake(
        row=42, ranks=2, error="GroupError", blames=(0, 1), says=[r"destroyed at \S+:{there}\b"],
        plain=Outcome.RAISES if name in REFUSED else Outcome.PASSES, args=(name,),
    )(used_after_it_was_destroyed)  # fmt: skip


@mistake(
    row=33, ranks=2, error="GroupError", blames=(0, 1), plain=Outcome.HANGS,
    says=["with the same ranks, in the same order", r"new_group\(\[0, 1\]\)", r"new_group\(\[1, 0\]\)"],
)  # fmt: skip
def ranks_of_a_group_in_two_orders():
    """Where `new_group` does not sort them, each rank takes itself for the same one."""
    ranks = [0, 1] if dist.get_rank() == 0 else [1, 0]
    group = dist.new_group(ranks, sort_ranks=False)  # <- here
    dist.all_reduce(torch.ones(2), group=group)


@mistake(
    row=33, ranks=3, error="GroupError", blames=(0,), plain=Outcome.HANGS,
    says=[r"new_group\(\[0, 1\]\) was called on rank 0 only", "every member must call it"],
)  # fmt: skip
def a_local_group_that_one_of_its_members_makes():
    if dist.get_rank() == 0:
        dist.new_group([0, 1], use_local_synchronization=True)  # <- here


LOCAL = {0: ([0, 1], [0, 2]), 1: ([1, 2], [0, 1]), 2: ([0, 2], [1, 2])}


@mistake(
    row=33, ranks=3, error="DeadlockError", blames=(0, 1, 2), plain=Outcome.HANGS, args=("crossed",),
    says=["deadlock", "rank 0 waits in new_group", "in the same order"],
)  # fmt: skip
@mistake(
    row=33, ranks=3, error="DeadlockError", blames=(0, 2), plain=Outcome.HANGS, args=("sorted",),
    says=["deadlock", "rank 0 waits in new_group", "each has made as many groups before"],
)  # fmt: skip
def local_groups_that_do_not_meet(order):
    """Crossed, rank 0 waits for rank 1, which waits for rank 2, which waits for rank 0. Sorted, torch has ranks 0 and 2
    meet under the names of a second and of a first group.
    """
    pairs = LOCAL[dist.get_rank()]
    for ranks in sorted(pairs) if order == "sorted" else pairs:
        dist.new_group(ranks, use_local_synchronization=True)  # <- here


@mistake(
    row=34, ranks=2, error="DeadlockError", blames=(0, 1), plain=Outcome.HANGS,
    says=["rank 0 waits in all_reduce(.*) on group \\[0, 1\\]", "rank 1 waits in all_reduce(.*) on the world"],
)  # fmt: skip
def one_rank_forgets_its_group():
    """A group of all ranks is not the world."""
    group, x = dist.new_group([0, 1]), torch.ones(2)
    if dist.get_rank() == 0:
        dist.all_reduce(x, group=group)  # <- here
    else:
        dist.all_reduce(x)  # <- here
