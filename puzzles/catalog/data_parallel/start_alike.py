"""data_parallel.start_alike: replicas that start differently stay different."""

import torch
import torch.distributed as dist

from puzzles.grading.drives.data_parallel import SAME_MEMORY, on_a_module
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives import broadcast, cost
from reference.data_parallel.initial import broadcast_state


def state_of_a_rank(case, rank):
    """Parameters and buffers of three dtypes; the seed is odd, and more than a float64 can count."""
    width = case.width
    return {
        "parameters": {"weight": case.tensor(rank, width, 3), "bias": case.tensor(rank, width, name="bias")},
        "buffers": {
            "running_mean": case.tensor(rank, width, name="mean"),
            "seed": torch.tensor(2**53 + 2 * rank + 1),
            "mask": case.normal(rank, 5, name="mask") > 0,
        },
        "root": case.root,
    }


def every_rank_has_the_roots_state(case, inputs):
    state = {**inputs[case.root]["parameters"], **inputs[case.root]["buffers"]}
    return [{**state, "in place": SAME_MEMORY}] * case.n


def sent(case):
    """Bytes that a broadcast of everything, in a message for each dtype, takes from the rank that sends most."""
    messages = ((5 * case.width, 4), (1, 8), (5, 1))  # elements, and their bytes
    return max(
        sum(cost.of(broadcast.tree).bytes(rank, case.n, *message) for message in messages) for rank in range(case.n)
    )


BY_DTYPE = """
    by_dtype = {}
    for tensor in [*module.parameters(), *module.buffers()]:
        by_dtype.setdefault(tensor.dtype, []).append(tensor.detach())
    for tensors in by_dtype.values():
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.broadcast(flat, group=group, group_src=root)
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
            tensor.copy_(part.view_as(tensor))
    """

PUZZLE = Puzzle(
    name="data_parallel.start_alike",
    title="Let all replicas start alike",
    statement="""
        Ranks that sum their gradients take the same steps. So replicas that start from the same numbers stay the same,
        and no gradient brings those together that do not. Give every rank the state of rank `root`, bit by bit: the
        parameters, and also the buffers, such as the running mean of a batch norm, which no gradient ever corrects.

        `module.parameters()` and `module.buffers()` name each tensor once. Not everything is in `state_dict()`: some
        buffers are not to be saved, and a tied parameter is there twice.

        Args:
            module: an `nn.Module` with the same parameters and buffers on every rank, of several dtypes, but not with
                the same values.
            group: n ranks. Any n.
            root: group rank of the one whose state counts.

        Afterwards every tensor of `module` holds what it holds on `root`, in place.

        Budget: one broadcast for each dtype. Numbers of different dtypes do not fit into one tensor without a loss.
        """,
    function=broadcast_state,
    answer=BY_DTYPE,
    cases=cases(worlds=(3, 2, 4, 1, 5, 8), width=(4,), root=lambda n: {0, n - 1})
    + cases(worlds=(4,), members=(0, 2, 3), width=(3,), root=(1,)),
    drawn=on_any_ranks(width=range(2, 9), root=lambda so_far: range(so_far.n)),
    inputs=state_of_a_rank,
    oracle=every_rank_has_the_roots_state,
    tolerance=0,
    drive=on_a_module,
    calls=(dist.broadcast,),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: 3,
            optimum=lambda case: 1,
            why="tensors of one dtype fit into one flat tensor: torch.cat. (As bytes, even all of them do.)",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=sent,
            why="each tensor is sent once, in its own dtype, also where it has two names",
        ),
    ),
    hints=(
        "What does a module have besides parameters? Which tensors can travel in one message?",
        "Collect the tensors in a dict by dtype. For each dtype: `torch.cat` of all of them, flattened, one "
        "`dist.broadcast(flat, group=group, group_src=root)`, and each part copied back.",
        "A parameter needs a gradient, and such a leaf may not be changed in place: take `tensor.detach()`, which is "
        "the same memory.",
    ),
    wrong=(
        Wrong(
            "buffers are forgotten",
            diagnosis=r"running_mean\[0\]: expected",
            edits=(("[*module.parameters(), *module.buffers()]", "module.parameters()"),),
        ),
        Wrong(
            "only what a checkpoint keeps",
            diagnosis=r"mask\[\d\]: expected (True|False), got",
            edits=(
                (
                    "[*module.parameters(), *module.buffers()]",
                    "{id(x): x for x in module.state_dict(keep_vars=True).values()}.values()",
                ),
            ),
        ),
        Wrong(
            "everything in float64",
            diagnosis=r"seed: expected 9007199254740993, got 900719925474099[24]",
            body="""
                tensors = [each.detach() for each in [*module.parameters(), *module.buffers()]]
                flat = torch.cat([tensor.flatten().double() for tensor in tensors])
                dist.broadcast(flat, group=group, group_src=root)
                for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
                    tensor.copy_(part.view_as(tensor))
                """,
        ),
        Wrong(
            "always from rank 0",
            diagnosis=r"right with root=0, wrong with root=",
            edits=(("group_src=root", "group_src=0"),),
        ),
        Wrong(
            "the root as a global rank",
            diagnosis=r"group",
            edits=(("dist.broadcast(flat, group=group, group_src=root)", "dist.broadcast(flat, root, group)"),),
        ),
        Wrong(
            "received, and not put back",
            diagnosis=r"weight\[0, 0\]: expected",
            edits=(("tensor.copy_(part.view_as(tensor))", "tensor = part.view_as(tensor)"),),
        ),
        Wrong(
            "other memory for each tensor",
            diagnosis=r"in place: expected 'the same memory as before', got 'other memory for weight, bias, ",
            edits=(
                ("append(tensor.detach())", "append(tensor)"),
                ("tensor.copy_(part.view_as(tensor))", "tensor.data = part.view_as(tensor)"),
            ),
        ),
        Wrong(
            "one message for each tensor",
            diagnosis=r"right, but a rank makes 5 calls where 3 must do.*\n.*torch\.cat",
            body="""
                for tensor in [*module.parameters(), *module.buffers()]:
                    dist.broadcast(tensor.detach(), group=group, group_src=root)
                """,
        ),
        Wrong(
            "tied parameters twice",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*two names",
            edits=(("*module.parameters()", "*dict(module.named_parameters(remove_duplicate=False)).values()"),),
        ),
    ),
)
