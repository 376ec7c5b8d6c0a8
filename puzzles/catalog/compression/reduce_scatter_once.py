"""compression.reduce_scatter_once: sums of what was quantised, and each number quantised once."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.compression.plain import dequantise, quantise, reduce_scatter_once

from .common import KINDS, block_of, rounded, sent


def gradients(case, rank):
    """Blocks of all kinds, of a size of their own on each rank."""
    blocks = case.n * case.blocks
    few = [block_of(case, rank, number, 127, KINDS[(number + rank) % 4]) for number in range(min(blocks, 64))]
    x = torch.cat([few[number % len(few)] for number in range(blocks)]) * 2.0**rank
    return {"x": x, "block": case.block, "largest": 127}


def summed_as_they_arrive(case, inputs):
    """Each rank's numbers rounded in one process, and added up in float64."""
    if case.blocks > 64:
        total = sum(dequantise(*quantise(each["x"], case.block, 127)).double() for each in inputs)
    else:
        total = sum(rounded(each["x"], case.block, 127) for each in inputs)
    return [{"returns": chunk.float(), "x": each["x"]} for chunk, each in zip(total.chunk(case.n), inputs, strict=True)]


def bytes_sent(case):
    """Codes and scales of all chunks but its own."""
    return (case.n - 1) * sent(case.blocks * case.block, case.block, 8)


PUZZLE = Puzzle(
    name="compression.reduce_scatter_once",
    title="A sum that is rounded once",
    statement="""
        Gradients travel in 8 bits, and each rank wants the sum of its chunk. Integers of different scales do not add
        up, so a sum is made of numbers. In a ring each rank would make numbers of what arrives, add its own and
        quantise the sum again: what goes around is rounded n-1 times. Let each rank's numbers be rounded once, and send
        no more than the ring does.

        Given are `quantise(x, block, largest)`, which returns integers in int8 and a scale for each block, and
        `dequantise(codes, scales)`, which returns numbers in float32.

        Args:
            x: [n·m] in float32, where `block` divides m. It stays as it is.
            block: numbers that share a scale.
            largest: of the integers, 127.
            group: n ranks. Any n.

        Returns: [m] in float32, the sum of this rank's chunk of all ranks' `x`, as quantised.

        Budget: n-1 chunks in 8 bits, with their scales.
        """,
    function=reduce_scatter_once,
    cases=cases(worlds=(2, 3, 4, 1, 5, 8), blocks=(2,), block=(8,))
    + cases(worlds=(4,), members=(0, 2, 3), blocks=(3,), block=(8,)),
    drawn=on_any_ranks(blocks=range(1, 5), block=(4, 8, 12)),
    large=case(4, blocks=4096, block=256),
    inputs=gradients,
    oracle=summed_as_they_arrive,
    tolerance=1e-6,
    calls=(dist.all_to_all_single, dist.all_gather, dist.all_reduce, dist.reduce_scatter),
    given=(quantise, dequantise),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=bytes_sent,
            why="send codes and scales of each chunk to the rank that sums it, and numbers to none",
        ),
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: 14 * case.n * case.blocks * case.block + 64,
            optimum=lambda case: 2 * case.n * case.blocks * case.block,
            why="numbers of all ranks' chunks take as much as `x`; not much else is needed beside codes and scales",
        ),
    ),
    hints=(
        "Which rank needs the numbers of chunk j, from whom? Where are they quantised if each is to be rounded once?",
        "Quantise all of `x`. Chunk j of the codes and of the scales goes to rank j: that is an all-to-all of each.",
        "Dequantise what has arrived, view it as [n, m], and sum over the ranks.",
    ),
    wrong=(
        Wrong(
            "integers are summed, with the scale of one",
            diagnosis=r"expected -?[\d.e+]+, got",
            edits=(
                (
                    "dequantise(all_codes, all_scales).view(group.size(), -1).sum(0)",
                    "dequantise(all_codes.view(group.size(), -1).sum(0), all_scales.view(group.size(), -1)[0])",
                ),
            ),
        ),
        Wrong(
            "rounded again at each step of a ring",
            diagnosis=r"expected -?[\d.e+]+, got",
            edits=(
                (
                    "    return dequantise(all_codes, all_scales).view(group.size(), -1).sum(0)",
                    "    rows = dequantise(all_codes, all_scales).view(group.size(), -1)\n    total = rows[0]\n"
                    "    for row in rows[1:]:\n        total = dequantise(*quantise(total, block, largest)) + row\n"
                    "    return dequantise(*quantise(total, block, largest))",
                ),
            ),
        ),
        Wrong(
            "scales of one's own for what others have sent",
            diagnosis=r"expected -?[\d.e+]+, got",
            edits=(
                ("    dist.all_to_all_single(all_scales, scales, group=group)\n", "    all_scales.copy_(scales)\n"),
            ),
        ),
        Wrong(
            "summed in 32 bits, by a fallback",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do",
            body="""
                rounded = dequantise(*quantise(x, block, largest))
                received = torch.empty_like(rounded)
                dist.all_to_all_single(received, rounded, group=group)
                return received.view(dist.get_world_size(group), -1).sum(0)
                """,
        ),
        Wrong(
            "all chunks to all ranks",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do",
            body="""
                n, rank = dist.get_world_size(group), dist.get_rank(group)
                codes, scales = quantise(x, block, largest)
                all_codes = [torch.empty_like(codes) for _ in range(n)]
                all_scales = [torch.empty_like(scales) for _ in range(n)]
                dist.all_gather(all_codes, codes, group=group)
                dist.all_gather(all_scales, scales, group=group)
                numbers = [dequantise(*pair).chunk(n)[rank] for pair in zip(all_codes, all_scales)]
                return torch.stack(numbers).sum(0)
                """,
        ),
    ),
)
