"""Ranks that cannot answer: out of range, oneself, a rank of the group taken for one of the world.

Rows 5, 6 and 8 of the bug zoo. What gloo does with a rank that is out of range differs from run to run: it hangs,
aborts, or says that a peer is gone.
"""

import torch
import torch.distributed as dist

from tests.watch.cases import Outcome, mistake


@mistake(
    row=5,
    ranks=2,
    error="PeerError",
    blames=(1,),
    says=[r"ranks are 0\.\.1", "2"],
    plain=Outcome.HANGS,
    args=("send",),
)
@mistake(
    row=5,
    ranks=4,
    error="PeerError",
    blames=(3,),
    says=[r"ranks are 0\.\.3", "4"],
    plain=Outcome.HANGS,
    args=("isend",),
)
def sends_to_its_right_neighbour_without_wrapping(how):
    rank = dist.get_rank()
    token = torch.tensor([rank])
    if rank > 0:
        dist.recv(token, src=rank - 1)
    if how == "send":
        dist.send(token, dst=rank + 1)  # <- here
    else:
        dist.isend(token, dst=rank + 1).wait()  # <- here


@mistake(
    row=5,
    ranks=2,
    error="PeerError",
    blames=(0,),
    says=[r"ranks are 0\.\.1", "-1"],
    plain=Outcome.HANGS,
)
def receives_from_its_left_neighbour_without_wrapping():
    rank = dist.get_rank()
    token = torch.tensor([rank])
    dist.recv(token, src=rank - 1)  # <- here
    dist.send(token, dst=rank + 1)


@mistake(
    row=5,
    ranks=3,
    error="PeerError",
    blames=(2,),
    says=[r"ranks are 0\.\.2", "3"],
    plain=Outcome.HANGS,
)
def batch_with_a_peer_out_of_range():
    rank = dist.get_rank()
    mine, theirs = torch.ones(4), torch.zeros(4)
    requests = []
    if rank > 0:
        requests += dist.batch_isend_irecv([dist.P2POp(dist.irecv, theirs, rank - 1)])
    requests += dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, rank + 1)])  # <- here
    for request in requests:
        request.wait()


@mistake(
    row=5,
    ranks=3,
    error="PeerError",
    blames=(2,),
    says=[r"ranks are 0\.\.2", "3"],
    plain=Outcome.HANGS,
)
def pairs_with_an_odd_number_of_ranks():
    """Rank 2 of three has no partner."""
    partner = dist.get_rank() ^ 1
    mine, theirs = torch.ones(4), torch.zeros(4)
    send, receive = dist.isend(mine, dst=partner), dist.irecv(theirs, src=partner)  # <- here
    send.wait()
    receive.wait()


@mistake(
    row=5,
    ranks=2,
    error="PeerError",
    blames=(0, 1),
    says=[r"ranks are 0\.\.1", "src=2"],
    plain=Outcome.RAISES,
)
def broadcast_from_a_root_out_of_range():
    weights = torch.randn(4)
    dist.broadcast(weights, src=dist.get_world_size())  # <- here


@mistake(
    row=5,
    ranks=3,
    error="PeerError",
    blames=(0, 1, 2),
    says=[r"ranks are 0\.\.2", "dst=3"],
    plain=Outcome.RAISES,
)
def reduce_to_a_root_out_of_range():
    loss = torch.tensor([0.5])
    dist.reduce(loss, dst=3)  # <- here


@mistake(
    row=6,
    ranks=2,
    error="PeerError",
    blames=(0, 1),
    says="dst is yourself",
    plain=Outcome.RAISES,
)
def sends_to_itself():
    dist.send(torch.ones(4), dst=dist.get_rank())  # <- here


@mistake(
    row=6,
    ranks=2,
    error="PeerError",
    blames=(0,),
    says="src is yourself",
    plain=Outcome.RAISES,
)
def receives_from_itself():
    """Rank 0 "gathers" from all ranks, itself included."""
    if dist.get_rank() == 0:
        for source in range(dist.get_world_size()):
            dist.recv(torch.zeros(4), src=source)  # <- here
    else:
        dist.send(torch.ones(4), dst=0)


@mistake(
    row=6,
    ranks=3,
    error="PeerError",
    blames=(0,),
    says="dst is yourself",
    plain=Outcome.RAISES,
)
def scatters_to_everybody_itself_included():
    if dist.get_rank() == 0:
        chunks = torch.arange(12.0).view(3, 4)
        requests = [dist.isend(chunk, dst=dst) for dst, chunk in enumerate(chunks)]  # <- here
        for request in requests:
            request.wait()
    else:
        dist.recv(torch.zeros(4), src=0)


@mistake(
    row=8,
    ranks=4,
    error="PeerError",
    blames=(3,),
    says=["group rank 0 is global rank 1"],
    plain=Outcome.RAISES,
)
def receives_from_a_group_rank():
    """In a group of ranks 1 and 3, its rank 0 is the world's rank 1; `src` wants the world's number."""
    odd = dist.new_group([1, 3])
    x = torch.ones(4)
    if dist.get_rank() == 1:
        dist.send(x, dst=3, group=odd)
    elif dist.get_rank() == 3:
        dist.recv(x, src=0, group=odd)  # <- here


@mistake(
    row=8,
    ranks=4,
    error="PeerError",
    blames=(1,),
    says=["group rank 1 is global rank 3"],
    plain=Outcome.RAISES,
)
def sends_to_a_group_rank_that_is_its_own_global_rank():
    odd = dist.new_group([1, 3])
    x = torch.ones(4)
    if dist.get_rank() == 1:
        dist.send(x, dst=1, group=odd)  # <- here
    elif dist.get_rank() == 3:
        dist.recv(x, src=1, group=odd)


@mistake(
    row=8,
    ranks=4,
    error="PeerError",
    blames=(2, 3),
    says=["group rank 0 is global rank 2"],
    plain=Outcome.RAISES,
)
def broadcasts_from_group_rank_zero():
    first, second = dist.new_group([0, 1]), dist.new_group([2, 3])
    group = first if dist.get_rank() < 2 else second
    weights = torch.randn(4)
    dist.broadcast(weights, src=0, group=group)  # <- here
