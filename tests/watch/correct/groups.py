"""Groups of some of the ranks, and meshes of them."""

from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.watch.cases import correct


def summed(group, start=None):
    """The sum over the group of each member's rank."""
    x = torch.tensor([float(dist.get_rank() if start is None else start)])
    dist.all_reduce(x, group=group)
    return x.item()


@correct(4)
def two_halves():
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = dist.get_rank() // 2
    assert summed(halves[mine]) == [1, 5][mine]


@correct(3)
def overlapping_groups_entered_in_one_order():
    """Every rank walks through the groups in the order of their creation, so no circle can close."""
    rank = dist.get_rank()
    pairs = [(0, 1), (1, 2), (0, 2)]
    groups = [dist.new_group(list(pair)) for pair in pairs]
    for pair, group in zip(pairs, groups, strict=True):
        if rank in pair:
            assert summed(group) == sum(pair)


@correct(2)
def two_groups_of_the_same_ranks_in_flight_together():
    """Without blocking, the order of the two groups may differ between ranks."""
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    a, b = torch.ones(4), torch.ones(4)
    if dist.get_rank() == 0:
        works = [dist.all_reduce(a, group=first, async_op=True), dist.all_reduce(b, group=second, async_op=True)]
    else:
        works = [dist.all_reduce(b, group=second, async_op=True), dist.all_reduce(a, group=first, async_op=True)]
    for work in works:
        work.wait()
    assert a.sum() == b.sum() == 8


@correct(3)
def only_members_enter_while_the_other_goes_on():
    pair = dist.new_group([0, 2])
    if dist.get_rank() in (0, 2):
        assert summed(pair) == 2
    dist.barrier()


@correct(4)
def groups_made_by_their_members_alone():
    """`use_local_synchronization` is what lets members create a group without the others."""
    mine = [0, 1] if dist.get_rank() < 2 else [2, 3]
    group = dist.new_group(mine, use_local_synchronization=True)
    assert summed(group) == sum(mine)


@correct(4)
def subgroups():
    group, groups = dist.new_subgroups(2)
    assert len(groups) == 2
    assert summed(group) == [1, 5][dist.get_rank() // 2]


@correct(4)
def subgroups_by_enumeration():
    group, _ = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])
    assert summed(group) == 3


@correct(4)
def roots_and_peers_inside_a_group():
    """`src` and `dst` are global ranks, `group_src` and `group_dst` are ranks of the group."""
    odd = dist.new_group([1, 3])
    rank, x = dist.get_rank(), torch.zeros(2)
    if rank % 2:
        dist.broadcast(x, src=1, group=odd)
        dist.broadcast(x, group_src=1, group=odd)
        dist.reduce(x, dst=dist.get_global_rank(odd, 0), group=odd)
    if rank == 1:
        dist.send(torch.ones(2), dst=3, group=odd)
        dist.recv(x, group_src=1, group=odd)
    elif rank == 3:
        dist.recv(x, src=1, group=odd)
        dist.send(x, group_dst=0, group=odd)
    assert rank % 2 == 0 or x.sum() == 2


@correct(4)
def mesh_of_two_axes():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    rank = dist.get_rank()
    assert summed(mesh.get_group("tensor")) == [1, 5][rank // 2]
    assert summed(mesh.get_group("data")) == [2, 4][rank % 2]


@correct(4)
def mesh_sliced_and_flattened():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "context"))
    flat = mesh["data", "context"]._flatten("loss")
    assert summed(flat.get_group()) == 6
    assert mesh["context"].get_local_rank() == dist.get_rank() % 2


@correct(4)
def rows_and_columns_without_blocking():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("row", "column"))
    a, b = torch.ones(100), torch.ones(100)
    works = [
        dist.all_reduce(a, group=mesh.get_group("row"), async_op=True),
        dist.all_reduce(b, group=mesh.get_group("column"), async_op=True),
    ]
    works[1].wait()
    dist.all_reduce(b, group=mesh.get_group("row"))
    works[0].wait()
    assert a.sum() == 200 and b.sum() == 400


@correct(2)
def messages_of_two_groups_do_not_mix():
    """Each group is a space of its own: its messages match only each other."""
    pair, peer = dist.new_group([0, 1]), 1 - dist.get_rank()
    world, group = torch.zeros(4), torch.zeros(8)
    requests = [dist.irecv(world, src=peer), dist.irecv(group, src=peer, group=pair)]
    requests += [dist.isend(torch.ones(8), dst=peer, group=pair), dist.isend(torch.ones(4), dst=peer)]
    for request in requests:
        request.wait()
    assert world.sum() == 4 and group.sum() == 8


@correct(3)
def group_of_one():
    alone = [dist.new_group([rank]) for rank in range(3)][dist.get_rank()]
    assert summed(alone) == dist.get_rank()
    dist.barrier(group=alone)


@correct(2)
def groups_made_and_destroyed_in_a_loop():
    for _ in range(3):
        group = dist.new_group([0, 1])
        assert summed(group) == 1
        dist.destroy_process_group(group)
    dist.barrier()


@correct(4)
def outsiders_ask_whether_they_belong():
    group = dist.new_group([0, 2])
    if dist.get_rank(group) >= 0:
        assert summed(group) == 2
    dist.barrier()


@correct(4)
def hierarchical_all_reduce():
    """Reduce inside each node, across the leaders, and back."""
    rank = dist.get_rank()
    node = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    leaders = dist.new_group([0, 2])
    x = torch.tensor([float(rank)])
    dist.reduce(x, dst=rank // 2 * 2, group=node)
    if rank % 2 == 0:
        dist.all_reduce(x, group=leaders)
    dist.broadcast(x, src=rank // 2 * 2, group=node)
    assert x.item() == 6


@correct(2, 3)
def code_that_asks_for_gloo_by_name():
    """Whatever torch has for gloo alone works: these are groups of gloo."""
    group = dist.new_group(backend="gloo")
    assert dist.get_backend() == dist.get_backend(group) == "gloo"
    assert dist.get_backend_config() == dist.get_backend_config(group)
    for each in (None, group, dist.new_group()):
        dist.monitored_barrier(each, timeout=timedelta(seconds=20), wait_all_ranks=True)
        assert dist.get_backend(each) == dist.Backend.GLOO
    x = torch.ones(2)
    dist.all_reduce(x, group=group)
    assert x[0] == dist.get_world_size()


@correct(3, args=(np.array,))
@correct(3, args=(list,))
@correct(3, args=(iter,))
def ranks_in_other_forms_than_a_list(form):
    """numpy's numbers are ranks, too, and a generator gives each once."""
    group = dist.new_group(form(np.arange(3)[::2]))
    if dist.get_rank() != 1:
        assert summed(group) == 2


@correct(4)
def subgroups_of_a_table():
    group, _ = dist.new_subgroups_by_enumeration(np.arange(4).reshape(2, 2))
    assert summed(group) == [1, 5][dist.get_rank() // 2]


@correct(3)
def a_group_in_an_order_of_its_own():
    group = dist.new_group([2, 0], sort_ranks=False)
    if (rank := dist.get_rank()) != 1:
        assert dist.get_rank(group) == {2: 0, 0: 1}[rank]
        gathered = torch.zeros(2)
        dist.all_gather_single(gathered, torch.full((1,), float(rank)), group=group)
        assert gathered.tolist() == [2, 0]


@correct(4)
def rows_and_columns_made_by_their_members_alone():
    """Each rank makes as many groups as any other, so that torch gives them the same names everywhere."""
    rank = dist.get_rank()
    row = dist.new_group([rank // 2 * 2, rank // 2 * 2 + 1], use_local_synchronization=True)
    column = dist.new_group([rank % 2, rank % 2 + 2], use_local_synchronization=True)
    assert summed(row) + summed(column) == 2 * rank + 3
