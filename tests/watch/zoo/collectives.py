"""Collectives that are not the same call on every rank: rows 18 to 27, 30, 31 and 39 of the bug zoo, and kin."""

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
        print("outlier, waiting for everybody to write a report")
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
    error="MismatchError",
    blames=(0, 1),
    says=["all_gather", r"rank 0\D+3\b", r"rank 1\D+5\b"],
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
    says=[r"rank \d sends \d (rows|elements) to rank \d, which expects \d"],
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
    ranks=2,
    error="RemoteException",
    blames=(0, 1),
    says=["TypeError|ValueError|AttributeError|RuntimeError", "(?i)sum"],
    plain=Outcome.RAISES,
)
def reduce_operation_as_a_string():
    dist.all_reduce(torch.ones(4), op="sum")  # <- here
