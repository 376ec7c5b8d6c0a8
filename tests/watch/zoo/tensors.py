"""What cannot be sent or received as it is: not contiguous, a copy, no tensor at all: row 32 of the bug zoo."""

import numpy
import torch
import torch.distributed as dist

from tests.watch.cases import Outcome, mistake


@mistake(
    row=32,
    ranks=2,
    error="TensorError",
    blames=(1,),
    says=[r"\.contiguous\(\)"],
    plain=Outcome.RAISES,
)
def receives_into_a_column():
    x = torch.zeros(4, 4)
    if dist.get_rank() == 0:
        dist.send(torch.ones(4), dst=1)
    else:
        dist.recv(x[:, 0], src=0)  # <- here


@mistake(
    row=32,
    ranks=2,
    error="TensorError",
    blames=(0,),
    says=[r"\.contiguous\(\)"],
    plain=Outcome.RAISES,
)
def sends_a_transposed_matrix():
    if dist.get_rank() == 0:
        weights = torch.randn(3, 4).t()
        dist.send(weights, dst=1)  # <- here
    else:
        dist.recv(torch.empty(4, 3), src=0)


@mistake(
    row=32,
    ranks=2,
    error="TensorError",
    blames=(0, 1),
    says=[r"\.contiguous\(\)"],
    plain=Outcome.PASSES,
)
def reduces_every_second_element():
    """gloo sums the first four elements instead, and says nothing."""
    x = torch.arange(8.0)
    dist.all_reduce(x[::2])  # <- here


@mistake(
    row=32,
    ranks=2,
    error="TensorError",
    blames=(0, 1),
    says=[r"\.contiguous\(\)"],
    plain=Outcome.PASSES,
)
def broadcasts_a_column():
    """gloo sends the first row instead."""
    table = torch.randn(4, 4)
    dist.broadcast(table[:, 1], src=0)  # <- here


@mistake(
    row=32,
    ranks=3,
    error="TensorError",
    blames=(0, 1, 2),
    says=[r"\.contiguous\(\)"],
    plain=Outcome.RAISES,
)
def scatters_the_rows_of_a_transposed_matrix():
    mine = torch.zeros(3, 4).t()[0]
    rows = list(torch.arange(12.0).view(4, 3).t()) if dist.get_rank() == 0 else None
    dist.scatter(mine, rows, src=0)  # <- here


@mistake(
    row=32,
    ranks=2,
    error="TensorError",
    blames=(0, 1),
    says=[r"\.contiguous\(\)"],
    plain=Outcome.PASSES,
)
def gathers_into_the_columns_of_a_matrix():
    mine, matrix = torch.ones(4), torch.zeros(4, 2)
    dist.all_gather(list(matrix.unbind(dim=1)), mine)  # <- here


@mistake(
    row=32,
    ranks=2,
    error="TensorError",
    blames=(1,),
    says=r"expanded|\.contiguous\(\)",
    plain=Outcome.RAISES,
)
def receives_into_an_expanded_tensor():
    """Four elements that share one place in memory."""
    if dist.get_rank() == 0:
        dist.send(torch.arange(4.0), dst=1)
    else:
        row = torch.zeros(1).expand(4)
        dist.recv(row, src=0)  # <- here


@mistake(
    ranks=2,
    error="TensorError",
    blames=(1,),
    says=r"copy|temporary",
    plain=Outcome.PASSES,
    args=("index",),
)
@mistake(
    ranks=2,
    error="TensorError",
    blames=(1,),
    says=r"copy|temporary",
    plain=Outcome.PASSES,
    args=("contiguous",),
)
def receives_into_a_copy(how):
    """Indexing by a list makes a copy, and so does `.contiguous()`: the message arrives where no code can see it."""
    x = torch.zeros(4, 4)
    if dist.get_rank() == 0:
        dist.send(torch.ones(4), dst=1)
    elif how == "index":
        dist.recv(x[[0]], src=0)  # <- here
    else:
        dist.recv(x[:, 0].contiguous(), src=0)  # <- here
    return x.sum()


@mistake(
    ranks=3,
    error="TensorError",
    blames=(0, 1, 2),
    says=r"the same tensor|overlap",
    plain=Outcome.PASSES,
)
def gathers_into_one_tensor_three_times():
    """`[tensor] * n` is one tensor n times."""
    mine = torch.full((4,), float(dist.get_rank()))
    everybodys = [torch.empty(4)] * dist.get_world_size()
    dist.all_gather(everybodys, mine)  # <- here
    return everybodys


@mistake(
    ranks=2,
    error="TensorError",
    blames=(0, 1),
    says="meta",
    plain=Outcome.PASSES,
)
def reduces_a_tensor_that_was_never_materialised():
    with torch.device("meta"):
        layer = torch.nn.Linear(4, 4)
    dist.all_reduce(layer.weight.data)  # <- here


@mistake(
    ranks=2,
    error="TensorError",
    blames=(0,),
    says="sparse",
    plain=Outcome.RAISES,
)
def sends_a_sparse_gradient():
    if dist.get_rank() == 0:
        gradient = torch.eye(4).to_sparse()
        dist.send(gradient, dst=1)  # <- here
    else:
        dist.recv(torch.zeros(4, 4), src=0)


@mistake(
    ranks=2,
    error="TensorError",
    blames=(0,),
    says=["ndarray", "tensor"],
    plain=Outcome.RAISES,
)
def sends_an_array():
    if dist.get_rank() == 0:
        dist.send(numpy.ones(4, dtype=numpy.float32), dst=1)  # <- here
    else:
        dist.recv(torch.zeros(4), src=0)


@mistake(
    ranks=2,
    error="TensorError",
    blames=(0, 1),
    says=["float", "tensor"],
    plain=Outcome.RAISES,
)
def reduces_a_python_number():
    loss = torch.tensor(0.5)
    dist.all_reduce(loss.item())  # <- here


@mistake(
    ranks=2,
    error="TensorError",
    blames=(0, 1),
    says=["list", "tensor"],
    plain=Outcome.RAISES,
)
def reduces_a_list_of_gradients():
    model = torch.nn.Linear(4, 4)
    model(torch.ones(2, 4)).sum().backward()
    dist.all_reduce([parameter.grad for parameter in model.parameters()])  # <- here


@mistake(
    ranks=2,
    error="TensorError",
    blames=(0, 1),
    says=["None", "tensor"],
    plain=Outcome.RAISES,
)
def reduces_the_gradient_of_an_unused_parameter():
    model = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])
    model[0](torch.ones(2, 4)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)  # <- here


@mistake(
    ranks=2,
    error="TensorError",
    blames=(0, 1),
    says=["avg|average|AVG", "int64"],
    plain=Outcome.RAISES,
)
def averages_integers():
    correct = torch.tensor([3 + dist.get_rank()])
    dist.all_reduce(correct, op=dist.ReduceOp.AVG)  # <- here


def leaves_the_result_in_a_copy(how):
    """A list of indices, `.contiguous()` and `.float()` make one: the tensor that was meant is as it was."""
    x, half = torch.ones(4, 2), torch.ones(4, dtype=torch.bfloat16)
    if how == "float":
        dist.all_reduce(half.float())  # <- here
    elif how == "index":
        dist.all_reduce(x[[0, 2]])  # <- here
    elif how == "contiguous":
        dist.all_reduce(x[:, 0].contiguous())  # <- here
    elif how == "all_gather_single":
        dist.all_gather_single(x[[0, 1]], torch.ones(1, 2))  # <- here
    elif how == "reduce_scatter_single":
        dist.reduce_scatter_single(x[:, 0].contiguous(), torch.ones(8))  # <- here
    else:
        dist.all_to_all_single(x[:, 0].contiguous(), torch.ones(4))  # <- here
    return x.sum(), half.sum()


for how in ("float", "index", "contiguous", "all_gather_single", "reduce_scatter_single", "all_to_all_single"):
    leaves_the_result_in_a_copy = mistake(
        ranks=2, error="TensorError", blames=(0, 1), says=["a temporary copy", r"\.float\(\)"], plain=Outcome.PASSES,
        args=(how,),
    )(leaves_the_result_in_a_copy)  # fmt: skip


@mistake(
    ranks=2, error="TensorError", blames=(1,), says="a temporary copy", plain=Outcome.PASSES, args=("recv",)
)  # fmt: skip
@mistake(
    ranks=2, error="TensorError", blames=(1,), says="a temporary copy", plain=Outcome.PASSES, args=("broadcast",)
)  # fmt: skip
def receives_into_another_dtype(how):
    weights = torch.zeros(3, dtype=torch.bfloat16)
    if how == "broadcast":
        dist.broadcast(weights.double(), src=0)  # <- here
    elif dist.get_rank() == 0:
        dist.send(torch.ones(3), dst=1)
    else:
        dist.recv(weights.float(), src=0)  # <- here
    return weights.sum()


@mistake(
    ranks=2, error="TensorError", blames=(0, 1), says="tensors of the output list share memory", plain=Outcome.PASSES
)  # fmt: skip
def gathers_into_parts_that_overlap():
    whole = torch.zeros(6)
    dist.all_gather([whole[0:4], whole[2:6]], torch.full((4,), float(dist.get_rank())))  # <- here
    return whole


@mistake(
    ranks=2, error="TensorError", blames=(0, 1), says="the output shares memory with the input", plain=Outcome.PASSES
)  # fmt: skip
def all_to_all_in_place():
    """What arrives lies where what is still to be sent has been."""
    x = torch.arange(200_000.0)
    dist.all_to_all_single(x, x)  # <- here
    return x


@mistake(ranks=2, error="TensorError", blames=(0, 1), says="a nested tensor can't travel", plain=Outcome.RAISES)
def reduces_a_nested_tensor():
    x = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    dist.all_reduce(x)  # <- here


@mistake(ranks=2, error="TensorError", blames=(0, 1), says="a sparse tensor can't travel", plain=Outcome.RAISES)
def reduces_compressed_rows():
    x = torch.eye(3).to_sparse_csr()
    dist.all_reduce(x)  # <- here


@mistake(
    ranks=2, error="TensorError", blames=(0, 1), says="gloo has no collectives of float8_e4m3fn", plain=Outcome.RAISES,
    args=("sum",),
)  # fmt: skip
@mistake(
    ranks=2, error="TensorError", blames=(0, 1), says=r"can travel as x\.view\(torch\.uint8\)", plain=Outcome.RAISES,
    args=("gather",),
)  # fmt: skip
def collectives_of_eight_bits(how):
    """Messages of them arrive."""
    x = torch.ones(2).to(torch.float8_e4m3fn)
    if how == "sum":
        dist.all_reduce(x)  # <- here
    else:
        dist.all_gather_single(torch.zeros(4).to(torch.float8_e4m3fn), x)  # <- here
