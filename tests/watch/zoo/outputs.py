"""Outputs, lists and splits of the wrong size: row 29 of the bug zoo, and kin."""

import torch
import torch.distributed as dist

from tests.watch.cases import Outcome, mistake


@mistake(
    row=29,
    ranks=2,
    error="TensorError",
    blames=(0, 1),
    says=[r"\b8\b", r"\b4\b", "output"],
    plain=Outcome.RAISES,
    args=(4,),
)
@mistake(
    row=29,
    ranks=3,
    error="TensorError",
    blames=(0, 1, 2),
    says=[r"\b12\b", r"\b16\b", "output"],
    plain=Outcome.RAISES,
    args=(16,),
)
def all_gather_into_an_output_of_the_wrong_size(elements):
    mine = torch.ones(4)
    gathered = torch.empty(elements)
    dist.all_gather_single(gathered, mine)  # <- here


@mistake(
    row=29,
    ranks=2,
    error="TensorError",
    blames=(0, 1),
    says=[r"\b4\b", r"\b3\b", "output"],
    plain=Outcome.RAISES,
)
def reduce_scatter_into_an_output_that_is_too_small():
    whole, part = torch.ones(8), torch.empty(3)
    dist.reduce_scatter_single(part, whole)  # <- here


@mistake(
    row=29,
    ranks=3,
    args=(3,),
    error="TensorError",
    blames=(2,),
    says=["the output has 3 elements, 2 will arrive", r"input_list\[2\]"],
    plain=Outcome.RAISES,
)
@mistake(
    row=29,
    ranks=3,
    args=(2,),
    error="TensorError",
    blames=(0, 1, 2),
    says=["input_list has 2 tensors, the group 3 ranks"],
    plain=Outcome.RAISES,
)
def reduce_scatter_of_a_list_that_does_not_fit(pieces):
    dist.reduce_scatter(torch.empty(3), list(torch.ones(8).split(3))[:pieces])  # <- here


@mistake(
    row=29,
    ranks=3,
    error="TensorError",
    blames=(0, 1, 2),
    says=[r"10", r"\b3\b"],
    plain=Outcome.RAISES,
)
def reduce_scatter_of_a_length_that_does_not_divide():
    gradient = torch.ones(10)
    shard = torch.empty(gradient.numel() // dist.get_world_size())
    dist.reduce_scatter_single(shard, gradient)  # <- here


@mistake(
    row=29,
    ranks=3,
    error="TensorError",
    blames=(0, 1, 2),
    says=[r"\b2\b", r"\b3\b"],
    plain=Outcome.RAISES,
)
def all_gather_with_a_list_that_is_too_short():
    """A world size of two, written down when there were two ranks."""
    mine = torch.ones(4)
    everybodys = [torch.empty(4) for _ in range(2)]
    dist.all_gather(everybodys, mine)  # <- here


@mistake(
    row=29,
    ranks=2,
    error="TensorError",
    blames=(0,),
    says=["the output has 6 elements, 8 will arrive"],
    plain=Outcome.RAISES,
)
def gathers_into_buffers_that_are_too_small():
    buffers = [torch.empty(3), torch.empty(3)] if dist.get_rank() == 0 else None
    dist.gather(torch.ones(4), buffers, dst=0)  # <- here


@mistake(
    row=29,
    ranks=3,
    error="TensorError",
    blames=(0,),
    says=[r"\b2\b", r"\b3\b"],
    plain=Outcome.RAISES,
)
def gather_with_a_list_that_leaves_out_the_root():
    mine = torch.ones(4)
    world_size = dist.get_world_size()
    received = [torch.empty(4) for _ in range(world_size - 1)] if dist.get_rank() == 0 else None
    dist.gather(mine, received, dst=0)  # <- here


@mistake(
    ranks=3,
    error="TensorError",
    blames=(0,),
    says=["scatter_list", r"\b2\b", r"\b3\b"],
    plain=Outcome.RAISES,
)
def scatter_of_fewer_chunks_than_ranks():
    """`chunk` may return fewer pieces than it was asked for: four elements in three pieces are 2 + 2."""
    mine = torch.empty(2)
    chunks = list(torch.arange(4.0).chunk(3)) if dist.get_rank() == 0 else None
    dist.scatter(mine, chunks, src=0)  # <- here


@mistake(
    ranks=2,
    error="TensorError",
    blames=(1,),
    says=["scatter_list", "src"],
    plain=Outcome.RAISES,
)
def scatter_list_given_by_a_rank_that_is_not_the_source():
    mine = torch.empty(2)
    chunks = [torch.zeros(2), torch.ones(2)]
    dist.scatter(mine, chunks, src=0)  # <- here


@mistake(
    ranks=2,
    error="TensorError",
    blames=(0,),
    says=["scatter_list", "src"],
    plain=Outcome.RAISES,
)
def scatter_without_a_list_on_the_source():
    mine = torch.empty(2)
    dist.scatter(mine, None, src=0)  # <- here


@mistake(
    ranks=2,
    error="TensorError",
    blames=(1,),
    says=["gather_list", "dst"],
    plain=Outcome.RAISES,
)
def gather_list_given_by_a_rank_that_is_not_the_destination():
    mine = torch.ones(2)
    received = [torch.zeros(2), torch.zeros(2)]
    dist.gather(mine, received, dst=0)  # <- here


@mistake(
    ranks=2,
    error="TensorError",
    blames=(0, 1),
    says=[r"\b7\b", r"\b8\b", "splits?"],
    plain=Outcome.RAISES,
)
def splits_that_do_not_add_up():
    tokens, received = torch.ones(8), torch.empty(8)
    dist.all_to_all_single(received, tokens, input_split_sizes=[3, 4], output_split_sizes=[4, 4])  # <- here


@mistake(
    ranks=3,
    error="TensorError",
    blames=(0, 1, 2),
    says=[r"\b2\b", r"\b3\b", "splits?"],
    plain=Outcome.RAISES,
)
def splits_for_fewer_ranks_than_there_are():
    tokens, received = torch.ones(8), torch.empty(8)
    dist.all_to_all_single(received, tokens, output_split_sizes=[4, 4], input_split_sizes=[4, 4])  # <- here


@mistake(
    ranks=2,
    error="TensorError",
    blames=(0, 1),
    says=["int64", "float32"],
    plain=Outcome.RAISES,
    args=("all_gather",),
)
@mistake(
    ranks=2,
    error="TensorError",
    blames=(0, 1),
    says=["int64", "float32"],
    plain=Outcome.RAISES,
    args=("all_gather_single",),
)
@mistake(
    ranks=2,
    error="TensorError",
    blames=(0, 1),
    says=["int64", "float32"],
    plain=Outcome.RAISES,
    args=("all_to_all_single",),
)
def output_of_another_dtype_than_the_input(what):
    tokens = torch.arange(2)
    if what == "all_gather":
        dist.all_gather([torch.zeros(2), torch.zeros(2)], tokens)  # <- here
    elif what == "all_gather_single":
        dist.all_gather_single(torch.zeros(4), tokens)  # <- here
    else:
        dist.all_to_all_single(torch.zeros(2), tokens)  # <- here
