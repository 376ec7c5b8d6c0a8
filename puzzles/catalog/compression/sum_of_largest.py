"""compression.sum_of_largest: top-k, whose places are bytes too."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Claim, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.compression.answers.largest import sum_of_largest
from reference.compression.plain_memory import top_k

PAIR = 8  # bytes of a float32 and an int32


def vector_of(case, rank):
    """Numbers of which no two have the same magnitude."""
    return {"x": case.normal(rank, case.length, dtype=torch.float32), "k": case.k}


def of_one_process(case, inputs):
    """The largest of each rank, added up; they are taken out of what it had."""
    sent = [top_k(each["x"], case.k) for each in inputs]
    total = torch.stack([each.double() for each in sent]).sum(0).float()
    return [{"returns": total, "x": each["x"] - mine} for each, mine in zip(inputs, sent, strict=True)]


def alike_to_the_last_bit(case, inputs, outputs, trace):
    """Ranks that add up in other orders have nearly the same, and drift apart."""
    first, *others = (each["returns"] for each in outputs)
    unlike = next((rank for rank, other in enumerate(others, 1) if not torch.equal(first, other)), None)
    return [Claim(unlike is None, f"rank {unlike} has other last bits than rank 0: add up in one order")]


PUZZLE = Puzzle(
    name="compression.sum_of_largest",
    title="Top-k, with places",
    statement="""
        Each rank sends the k elements of its `x` with the largest magnitudes, and all ranks add up what all have sent.
        Ranks choose different elements, so a value means nothing without its place, and a place is as large as a value:
        4 bytes, as int32, if it is not sent as int64, as torch has it.

        Args:
            x: [N] float32 of this rank. Afterwards it has zeros where an element was sent: the rest is the residual.
            k: 1 to N.
            group: n ranks. Any n.

        Returns: [N] float32, the sum over ranks of what they have sent, the same on every rank to the last bit: add up
        in one order.

        Budget: one call; 8 k bytes to each other rank.
        """,
    function=sum_of_largest,
    cases=cases(worlds=(3, 4, 1), length=(20,), k=(3,))
    + cases(worlds=(2, 8), length=(12,), k=(1, 12))
    + cases(worlds=(4,), members=(0, 2, 3), length=(9,), k=(4,)),
    drawn=on_any_ranks(length=range(8, 20), k=(1, 3, 5)),
    inputs=vector_of,
    oracle=of_one_process,
    judge=alike_to_the_last_bit,
    tolerance=1e-5,
    calls=(dist.all_gather_into_tensor,),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: (case.n - 1) * PAIR * case.k,
            why="a value and a place for each of k elements, 4 bytes each",
        ),
        Budget(Measure.CALLS, target=lambda case: 1, why="values and places are bytes, and go in one message"),
    ),
    hints=(
        "`x.abs().topk(k).indices` are places, as int64. What if N is less than two billion?",
        "`places.to(torch.int32).view(torch.float32)` are the same bytes as float32: so they fit beside values. Only "
        "do not compute with them.",
        "All-gather [2, k] of values and places; for each rank, `total[its places] += its values`.",
    ),
    wrong=(
        Wrong(
            "places as torch has them",
            diagnosis=r"right, but rank \d sen(t|ds) [\d,]+ B.*\n.*4 bytes each",
            body="""
                n = dist.get_world_size(group)
                places = x.abs().topk(k).indices
                message = torch.cat([x[places].view(torch.uint8), places.view(torch.uint8)])
                x[places] = 0
                everyone = message.new_empty(n * len(message))
                dist.all_gather_into_tensor(everyone, message, group=group)
                total = torch.zeros_like(x)
                for said in everyone.view(n, -1):
                    values, where = said[: 4 * k].clone(), said[4 * k :].clone()
                    total[where.view(torch.int64)] += values.view(torch.float32)
                return total
                """,
        ),
        Wrong(
            "values of all at this rank's own places",
            diagnosis=r"expected",
            edits=(("total[where.view(torch.int32).long()]", "total[places.long()]"),),
        ),
        Wrong(
            "the largest, and not the largest magnitudes",
            diagnosis=r"expected",
            edits=(("x.abs().topk", "x.topk"),),
        ),
        Wrong(
            "magnitudes are sent",
            diagnosis=r"expected",
            edits=(("torch.stack([x[places.long()],", "torch.stack([x.abs()[places.long()],"),),
        ),
        Wrong(
            "one rank's value takes the place of another's",
            diagnosis=r"expected",
            edits=(("] += values", "] = values"),),
        ),
        Wrong(
            "each rank begins with its own",
            diagnosis=r"right, but rank \d has other last bits than rank 0",
            edits=(("in everyone.view(n, 2, k):", "in everyone.view(n, 2, k).roll(-dist.get_rank(group), 0):"),),
        ),
        Wrong(
            "what was sent stays in the residual",
            diagnosis=r"x.*expected|expected",
            edits=(("    x[places.long()] = 0\n", ""),),
        ),
        Wrong(
            "zeros are sent, too",
            diagnosis=r"right, but rank \d sen(t|ds) [\d,]+ B",
            body="""
                places = x.abs().topk(k).indices
                total = torch.zeros_like(x)
                total[places] = x[places]
                x[places] = 0
                dist.all_reduce(total, group=group)
                return total
                """,
        ),
    ),
)
