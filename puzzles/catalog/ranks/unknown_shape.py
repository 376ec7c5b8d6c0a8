"""ranks.unknown_shape: a receive needs a buffer, so the shape must travel first."""

import itertools

from puzzles.grading.puzzle import POINT_TO_POINT, Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.ranks.answers.parcel import deliver

SHAPES = ((2, 3), (), (7,), (3, 0), (1, 2, 3, 4), (1_001,), (66_001,))  # the last does not fit into 16 bits
OTHERS = tuple(
    tuple(sizes[:dims]) for dims in range(1, 5) for sizes in itertools.product((1, 3, 4), (5, 2), (300, 1), (2, 6))
)


def arguments(case, rank):
    x = case.tensor(rank, *case.shape) if rank == case.source else None
    return {"x": x, "source": case.source, "target": case.target}


def only_the_target_gets_it(case, inputs):
    x = inputs[case.source]["x"]
    return [x if rank == case.target else None for rank in range(case.n)]


PUZZLE = Puzzle(
    name="ranks.unknown_shape",
    title="A parcel of unknown size",
    statement="""
        `source` has a tensor. `target` needs it and does not know its shape, so it can't even make a buffer to receive
        into. All that both know beforehand: it is float32 and has at most four dimensions.

        Args:
            x: on `source` a contiguous float32 tensor: a number, or up to four dimensions, or empty. Elsewhere None.
            source: the rank of `group` that sends.
            target: the rank of `group` that receives, another one.
            group: the ranks that call this.

        Returns: on `target` a tensor of the same shape with the same values, elsewhere None.

        Budget: two messages, the tensor itself and at most 40 bytes beside it.
        """,
    function=deliver,
    cases=cases(worlds=(2,), shape=SHAPES, source=(0,), target=(1,))
    + cases(worlds=(3, 8), shape=((2, 3), ()), source=(2,), target=(1,))
    + cases(worlds=(4,), members=(0, 2, 3), shape=((4, 1),), source=(2,), target=(1,)),
    drawn=on_any_ranks(
        shape=OTHERS, source=lambda so_far: range(so_far.n), target=lambda so_far: {*range(so_far.n)} - {so_far.source}
    ),
    inputs=arguments,
    oracle=only_the_target_gets_it,
    tolerance=0,
    new=True,
    calls=POINT_TO_POINT,
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: case.tensor(0, *case.shape).nbytes + 40,
            optimum=lambda case: case.tensor(0, *case.shape).nbytes,
            why="send the tensor and its shape, and nothing to fill up with",
        ),
        Budget(Measure.STEPS, target=lambda case: 2, why="one message can hold all that there is to say about a shape"),
        Budget(Measure.CALLS, target=lambda case: 2, why="one message for the shape, one for the tensor"),
    ),
    hints=(
        "What must `target` know before it can call `torch.empty`? Who knows it?",
        "A first message may tell the shape of the second. Of which shape is the first?",
        "Five whole numbers always suffice: how many dimensions, then four sizes, some of them unused.",
    ),
    wrong=(
        Wrong(
            "a label whose length depends on the shape",
            diagnosis=r"sends 3 elements.*receives 5 elements",
            edits=((" + [0] * (MOST_DIMS - x.dim())", ""),),
        ),
        Wrong(
            "the shape as floating point numbers",
            diagnosis=r"sends float32.*receives int64",
            edits=(
                (
                    "torch.tensor([x.dim(), *x.shape] + [0] * (MOST_DIMS - x.dim()))",
                    "torch.tensor([x.dim(), *x.shape] + [0] * (MOST_DIMS - x.dim()), dtype=torch.float32)",
                ),
            ),
        ),
        Wrong(
            "only the number of elements",
            diagnosis=r"shape \(2, 3\).*shape \(6,\)",
            edits=(("torch.empty(sizes[:dims])", "torch.empty(torch.Size(sizes[:dims]).numel())"),),
        ),
        Wrong(
            "sizes of zero taken for unused ones",
            diagnosis=r"sends 0 elements.*receives 3 elements",
            edits=(("sizes[:dims]", "[size for size in sizes if size]"),),
        ),
        Wrong(
            "one number at a time",
            diagnosis=r"right, but it takes [34567] steps where 2 must do",
            body="""
                rank = dist.get_rank(group)
                if rank == source:
                    for number in (x.dim(), *x.shape):
                        dist.send(torch.tensor([number]), group=group, group_dst=target)
                    dist.send(x, group=group, group_dst=target)
                if rank != target:
                    return None
                number, shape = torch.empty(1, dtype=torch.int64), []
                dist.recv(number, group=group, group_src=source)
                for _ in range(int(number)):
                    dist.recv(number, group=group, group_src=source)
                    shape.append(int(number))
                received = torch.empty(shape)
                dist.recv(received, group=group, group_src=source)
                return received
                """,
        ),
        Wrong(
            "a large enough box for everything",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*nothing to fill up with",
            body="""
                rank = dist.get_rank(group)
                label, box = torch.zeros(5, dtype=torch.int64), torch.zeros(70_000)
                if rank == source:
                    label[: 1 + x.dim()] = torch.tensor([x.dim(), *x.shape])
                    box[: x.numel()] = x.flatten()
                    dist.send(label, group=group, group_dst=target)
                    dist.send(box, group=group, group_dst=target)
                if rank != target:
                    return None
                dist.recv(label, group=group, group_src=source)
                dist.recv(box, group=group, group_src=source)
                dims, *sizes = label.tolist()
                shape = torch.Size(sizes[:dims])
                return box[: shape.numel()].reshape(shape).clone()
                """,
        ),
        Wrong(
            "sizes of one byte each",
            diagnosis=r"overflow|sends 1001 elements.*receives \d+ elements|shape=\(1001,\)",
            edits=(
                ("+ [0] * (MOST_DIMS - x.dim()))", "+ [0] * (MOST_DIMS - x.dim())).to(torch.uint8)"),
                ("dtype=torch.int64", "dtype=torch.uint8"),
            ),
        ),
        Wrong(
            "all numbers at once, each in a message of its own",
            diagnosis=r"right, but a rank makes 6 calls where 2 must do",
            body="""
                rank = dist.get_rank(group)
                numbers = [torch.zeros(1, dtype=torch.int64) for _ in range(5)]
                if rank == source:
                    for number, value in zip(numbers, (x.dim(), *x.shape)):
                        number.fill_(value)
                    requests = [dist.isend(number, group=group, group_dst=target) for number in numbers]
                    for request in requests:
                        request.wait()
                    dist.send(x, group=group, group_dst=target)
                if rank != target:
                    return None
                requests = [dist.irecv(number, group=group, group_src=source) for number in numbers]
                for request in requests:
                    request.wait()
                dims, *sizes = [int(number) for number in numbers]
                received = torch.empty(sizes[:dims])
                dist.recv(received, group=group, group_src=source)
                return received
                """,
        ),
    ),
)
