"""Collectives whose ranks bring tensors, roots, splits or reductions that do not go together.

Rows 22 to 27, 30 and 31 of the bug zoo, and kin.
"""

import torch
import torch.distributed as dist

from tests.watch.cases import Outcome, mistake


@mistake(
    row=22,
    ranks=2,
    error="MismatchError",
    blames={0: "here", 1: "here"},
    says=[r"\(?4,?\)?", r"\(?5,?\)?", "all_reduce"],
    plain=Outcome.ABORTS,
)
def shapes_differ_in_all_reduce():
    x = torch.ones(4 + dist.get_rank())
    dist.all_reduce(x)  # <- here


@mistake(
    row=22,
    ranks=3,
    error="MismatchError",
    blames=(2,),
    says=[r"\(?7,?\)?", r"\(?8,?\)?", "broadcast"],
    plain=Outcome.ABORTS,
)
def shapes_differ_in_broadcast():
    """The last rank rounded down."""
    bias = torch.zeros(7 if dist.get_rank() == 2 else 8)
    dist.broadcast(bias, src=0)  # <- here


@mistake(
    row=22,
    ranks=2,
    error="MismatchError",
    blames=(0, 1),
    says=[r"\(?8, ?4\)?", r"\(?7, ?4\)?", "reduce"],
    plain=Outcome.ABORTS,
)
def last_batch_is_smaller():
    logits = torch.ones(8 - dist.get_rank(), 4)
    dist.reduce(logits, dst=0)  # <- here


@mistake(
    row=22,
    ranks=2,
    error="MismatchError",
    blames=(0, 1),
    says=["gather", r"\b4\b", r"\b6\b"],
    plain=Outcome.ABORTS,
)
def shapes_differ_in_gather():
    mine = torch.ones(4 if dist.get_rank() == 0 else 6)
    received = [torch.empty(4), torch.empty(4)] if dist.get_rank() == 0 else None
    dist.gather(mine, received, dst=0)  # <- here


@mistake(
    row=22,
    ranks=2,
    error="MismatchError",
    blames=(0, 1),
    says=["scatter", r"\b4\b", r"\b2\b"],
    plain=Outcome.ABORTS,
)
def shapes_differ_in_scatter():
    mine = torch.empty(4 if dist.get_rank() == 0 else 2)
    chunks = list(torch.ones(2, 4)) if dist.get_rank() == 0 else None
    dist.scatter(mine, chunks, src=0)  # <- here


@mistake(
    row=22,
    ranks=2,
    error="MismatchError",
    blames=(0, 1),
    says=["reduce_scatter", r"\b8\b", r"\b12\b"],
    plain=Outcome.ABORTS,
)
def shapes_differ_in_reduce_scatter():
    elements = 8 if dist.get_rank() == 0 else 12
    gradient, shard = torch.ones(elements), torch.empty(elements // 2)
    dist.reduce_scatter_single(shard, gradient)  # <- here


@mistake(
    row=23,
    ranks=2,
    error="MismatchError",
    blames=(0, 1),
    says=[r"\(?2, ?3\)?", r"\(?3, ?2\)?"],
    plain=Outcome.PASSES,
)
def transposed_on_one_rank():
    gradient = torch.ones(2, 3) if dist.get_rank() == 0 else torch.ones(3, 2)
    dist.all_reduce(gradient)  # <- here


@mistake(
    row=23,
    ranks=2,
    error="MismatchError",
    blames=(0, 1),
    says=[r"\[2, 3\]", r"\[3, 2\]", r"shapes differ\n"],
    plain=Outcome.PASSES,
)
def all_gather_of_a_piece_that_lies_across():
    piece = torch.ones(2, 3) if dist.get_rank() == 0 else torch.ones(3, 2)
    dist.all_gather([torch.empty(2, 3), torch.empty(2, 3)], piece)  # <- here


@mistake(
    row=23,
    ranks=2,
    error="MismatchError",
    blames=(0, 1),
    says=[r"all_reduce_coalesced", r"\[2, 3\]", r"\[3, 2\]"],
    plain=Outcome.PASSES,
)
def all_reduces_tensors_in_another_order():
    dist.all_reduce_coalesced(in_another_order(torch.ones(2), torch.ones(3)))  # <- here


@mistake(
    row=23,
    ranks=2,
    error="MismatchError",
    blames=(0, 1),
    says=[r"reduce_scatter", r"\[2, 3\]", r"\[3, 2\]"],
    plain=Outcome.HANGS,
)
def reduce_scatters_pieces_in_another_order():
    pieces = in_another_order(torch.ones(2), torch.ones(3))
    dist.reduce_scatter(torch.empty_like(pieces[dist.get_rank()]), pieces)  # <- here


def in_another_order(*tensors):
    """On rank 1. There are as many elements in all."""
    return list(reversed(tensors)) if dist.get_rank() == 1 else list(tensors)


@mistake(
    row=23,
    ranks=3,
    error="MismatchError",
    blames=(1,),
    says=[r"\(?6,?\)?", r"\(?2, ?3\)?"],
    plain=Outcome.PASSES,
)
def flattened_on_one_rank():
    weights = torch.arange(6.0).view(2, 3)
    if dist.get_rank() == 1:
        weights = weights.flatten()
    dist.broadcast(weights, src=0)  # <- here


@mistake(
    row=24,
    ranks=2,
    error="MismatchError",
    blames=(0, 1),
    says=["float32", "float64"],
    plain=Outcome.ABORTS,
)
def dtypes_differ_in_all_reduce():
    loss = torch.tensor([0.5], dtype=torch.float32 if dist.get_rank() == 0 else torch.float64)
    dist.all_reduce(loss)  # <- here


@mistake(
    row=24,
    ranks=2,
    error="MismatchError",
    blames=(0, 1),
    says=["int64", "float32"],
    plain=Outcome.ABORTS,
)
def a_python_zero_makes_an_integer_tensor():
    """The rank without samples reports `0`, the others report `0.0` and more."""
    total = 0 if dist.get_rank() == 1 else 2.5
    dist.all_reduce(torch.tensor([total]))  # <- here


@mistake(
    row=24,
    ranks=3,
    error="MismatchError",
    blames=(0,),
    says=["bfloat16", "float32"],
    plain=Outcome.PASSES,
)
def only_rank_zero_casts_its_weights():
    weights = torch.randn(8)
    if dist.get_rank() == 0:
        weights = weights.bfloat16()
    dist.broadcast(weights, src=0)  # <- here


@mistake(
    row=25,
    ranks=2,
    error="MismatchError",
    blames=(0, 1),
    says=["float32", "int32"],
    plain=Outcome.PASSES,
)
def same_bytes_but_another_dtype():
    x = torch.ones(4, dtype=torch.float32 if dist.get_rank() == 0 else torch.int32)
    dist.all_reduce(x)  # <- here


@mistake(
    row=25,
    ranks=2,
    error="MismatchError",
    blames=(0, 1),
    says=["bfloat16", "float16"],
    plain=Outcome.PASSES,
)
def two_kinds_of_half():
    mine = torch.ones(4, dtype=torch.float16 if dist.get_rank() == 0 else torch.bfloat16)
    everybodys = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(everybodys, mine)  # <- here


@mistake(
    row=26,
    ranks=2,
    error="MismatchError",
    blames=(0, 1),
    says=["src=0", "src=1"],
    plain=Outcome.HANGS,
)
@mistake(
    row=26,
    ranks=3,
    error="MismatchError",
    blames=(0, 1, 2),
    says=["src=0", "src=[12]"],
    plain=Outcome.HANGS,
)
def every_rank_is_its_own_root():
    weights = torch.randn(4)
    dist.broadcast(weights, src=dist.get_rank())  # <- here


@mistake(
    row=26,
    ranks=2,
    error="MismatchError",
    blames=(0, 1),
    says=["dst=0", "dst=1"],
    plain=Outcome.CLOSED,
)
def roots_differ_in_reduce():
    loss = torch.ones(1)
    dist.reduce(loss, dst=dist.get_rank())  # <- here


@mistake(
    row=26,
    ranks=3,
    error="MismatchError",
    blames=(2,),
    says=["src=0", "src=1"],
    plain=Outcome.HANGS,
)
def roots_differ_in_broadcast_object_list():
    config = [{"lr": 0.1}] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(config, src=1 if dist.get_rank() == 2 else 0)  # <- here


@mistake(
    row=26,
    ranks=2,
    error="MismatchError",
    blames=(0, 1),
    says=["dst=0", "dst=1"],
    plain=Outcome.HANGS,
)
def everybody_gathers():
    mine = torch.ones(4)
    received = [torch.empty(4), torch.empty(4)]
    dist.gather(mine, received, dst=dist.get_rank())  # <- here


@mistake(
    row=27,
    ranks=2,
    error="MismatchError",
    blames=(0, 1),
    says=["(?i)sum", "(?i)max"],
    plain=Outcome.PASSES,
)
def sum_meets_max():
    x = torch.ones(4)
    dist.all_reduce(x, op=dist.ReduceOp.SUM if dist.get_rank() == 0 else dist.ReduceOp.MAX)  # <- here


@mistake(
    row=27,
    ranks=3,
    error="MismatchError",
    blames=(1,),
    says=["(?i)sum", "(?i)avg"],
    plain=Outcome.PASSES,
)
def sum_meets_average():
    gradient = torch.ones(6)
    operation = dist.ReduceOp.AVG if dist.get_rank() == 1 else dist.ReduceOp.SUM
    dist.all_reduce(gradient, op=operation)  # <- here


@mistake(
    row=27,
    ranks=2,
    error="MismatchError",
    blames=(0, 1),
    says=["(?i)min", "(?i)max"],
    plain=Outcome.PASSES,
)
def min_meets_max_in_reduce_scatter():
    whole, part = torch.ones(8), torch.empty(4)
    operation = dist.ReduceOp.MIN if dist.get_rank() == 0 else dist.ReduceOp.MAX
    dist.reduce_scatter_single(part, whole, op=operation)  # <- here


@mistake(
    row=30,
    ranks=2,
    error="MismatchError",
    blames=(0, 1),
    says=["all_gather", r"rank 0\D+3\b", r"rank 1\D+5\b"],
    plain=Outcome.ABORTS,
)
def uneven_all_gather():
    """Every rank makes room for pieces of its own size."""
    mine = torch.ones(3 + 2 * dist.get_rank())
    everybodys = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everybodys, mine)  # <- here


@mistake(
    row=30,
    ranks=3,
    error="MismatchError",
    blames=(2,),
    says=["all_gather", r"\b4\b", r"\b2\b"],
    plain=Outcome.ABORTS,
)
def last_shard_is_shorter():
    """Ten elements on three ranks: four, four, two."""
    shard = torch.arange(10.0).split(4)[dist.get_rank()]
    whole = torch.empty(3 * shard.numel())
    dist.all_gather_single(whole, shard.contiguous())  # <- here


@mistake(
    row=30,
    ranks=2,
    error="TensorError",
    blames=(0, 1),
    says=["all_gather", r"\b3\b", r"\b5\b"],
    plain=Outcome.RAISES,
)
def all_gather_into_pieces_of_their_true_sizes():
    """What one would like to write: pieces of 3 and 5. gloo and NCCL want them equal."""
    mine = torch.ones(3 + 2 * dist.get_rank())
    everybodys = [torch.empty(3), torch.empty(5)]
    dist.all_gather(everybodys, mine)  # <- here


@mistake(
    row=31,
    ranks=2,
    error="MismatchError",
    blames=(0, 1),
    says=["rank 0 sends 2 rows to rank 1, which expects 3"],
    plain=Outcome.PASSES,
)
def splits_disagree():
    """Rank 0 keeps two of its four rows and sends two; rank 1 has room for three."""
    tokens = torch.ones(4, 8)
    sends = [2, 2]
    receives = [2, 2] if dist.get_rank() == 0 else [3, 2]
    received = torch.empty(sum(receives), 8)
    dist.all_to_all_single(received, tokens, receives, sends)  # <- here


@mistake(
    row=31,
    ranks=3,
    error="MismatchError",
    blames=(0, 1, 2),
    says=[r"rank \d sends \d (rows?|elements?) to rank \d, which expects \d"],
    plain=Outcome.RAISES,
)
def tokens_sent_by_choice_but_received_in_equal_parts():
    """Experts choose unevenly; the counts themselves were never exchanged."""
    counts = [[1, 2, 3], [2, 2, 2], [3, 2, 1]][dist.get_rank()]
    tokens, received = torch.ones(6), torch.empty(6)
    dist.all_to_all_single(received, tokens, output_split_sizes=[2, 2, 2], input_split_sizes=counts)  # <- here


@mistake(
    row=31,
    ranks=2,
    error="MismatchError",
    blames=(0, 1),
    says=[r"rank 1 sends 3 (rows|elements) to rank 0, which expects 2"],
    plain=Outcome.RAISES,
)
def lists_of_all_to_all_disagree():
    sent = [torch.ones(2), torch.ones(2)] if dist.get_rank() == 0 else [torch.ones(3), torch.ones(2)]
    received = [torch.empty(2), torch.empty(2)]
    dist.all_to_all(received, sent)  # <- here


@mistake(
    ranks=2,
    error="MismatchError",
    blames=(0, 1),
    says=["broadcast", r"\b2\b", r"\b3\b"],
    plain=Outcome.RAISES,
)
def broadcast_object_list_of_another_length():
    objects = ["a", "b"] if dist.get_rank() == 0 else [None, None, None]
    dist.broadcast_object_list(objects, src=0)  # <- here


@mistake(
    ranks=2,
    error="TensorError",
    blames=(0, 1),
    says=["op must be a dist.ReduceOp", "'sum'"],
    plain=Outcome.RAISES,
)
def reduce_operation_as_a_string():
    dist.all_reduce(torch.ones(4), op="sum")  # <- here


@mistake(
    row=23,
    ranks=2,
    error="MismatchError",
    blames=(0, 1),
    says=[r"[\[(][\])]", r"[\[(]1,?[\])]"],
    plain=Outcome.PASSES,
)
def a_number_meets_a_vector_of_one():
    loss = torch.tensor(0.5) if dist.get_rank() == 0 else torch.tensor([0.5])
    dist.all_reduce(loss)  # <- here
