"""compression.sends_as_much: it trains, and sends as much as before."""

import torch
import torch.distributed as dist

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, on_any_ranks
from reference.compression.answers.bits import gather_quantised
from reference.compression.plain import dequantise, quantise

from .common import KINDS, block_of, sent


def a_shard(case, rank):
    """Blocks of all kinds."""
    few = [block_of(case, rank, number, 127, KINDS[(number + rank) % 4]) for number in range(min(case.blocks, 32))]
    x = torch.cat([few[number % len(few)] for number in range(case.blocks)])
    return {"x": x, "block": case.block}


def as_they_arrive(case, inputs):
    """Each shard rounded in one process, one after the other."""
    whole = torch.cat([dequantise(*quantise(each["x"], case.block, 127)) for each in inputs])
    return [{"returns": whole, "x": each["x"]} for each in inputs]


BROKEN = """
    n = dist.get_world_size(group)
    out = x.new_empty(n * len(x))
    rounded = dequantise(*quantise(x, block, 127))
    dist.all_gather(list(out.chunk(n)), rounded, group=group)
    return out
    """
SENT = r"right, but rank \d sent [\d,]+ B where [\d,]+ must do"

PUZZLE = Puzzle(
    name="compression.sends_as_much",
    title="It trains, and sends as much as before",
    statement="""
        Parameters are to be gathered in 8 bits. Someone has switched it on, and this is what is seen:

            a   the loss is a little off, as it should be with 8 bits
            b   all ranks compute with the same numbers
            c   what arrives has 255 values to a block at most
            d   on a slow link a step takes exactly as long as before

        So a test of the loss passes, and so does one of the values. Count bytes, and mend it: the same numbers, and
        little more than a quarter of what is sent now.

        Given are `quantise(x, block, largest)`, which returns integers in int8 and a scale for each block, and
        `dequantise(codes, scales)`, which returns numbers in float32.

        Args:
            x: [m] in float32, where `block` divides m, on each of n ranks. It stays as it is.
            block: numbers that share a scale.
            group: n ranks. Any n.

        Returns: [n·m] in float32: what has arrived of all ranks' `x`, in order, the same on each of them.

        Budget: a byte for each number, and 4 for each scale, to each of the other ranks.
        """,
    function=gather_quantised,
    body=BROKEN,
    cases=cases(worlds=(2, 3, 4, 1, 5, 8), blocks=(3,), block=(8,))
    + cases(worlds=(4,), members=(0, 2, 3), blocks=(2,), block=(8,)),
    drawn=on_any_ranks(blocks=range(1, 5), block=(4, 8, 12)),
    large=case(4, blocks=4096, block=256),
    inputs=a_shard,
    oracle=as_they_arrive,
    tolerance=1e-6,
    calls=(dist.all_gather, dist.all_gather_into_tensor, dist.broadcast),
    given=(quantise, dequantise),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: (case.n - 1) * sent(case.blocks * case.block, case.block, 8),
            why="what travels must be the codes and the scales; numbers are made where they arrive",
        ),
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: (10 * case.n + 14) * case.blocks * case.block + 256,
            optimum=lambda case: 5 * case.n * case.blocks * case.block,
            why="beside the result only codes and scales are needed, and a few tensors like `x`",
        ),
    ),
    hints=(
        "By c, something is quantised. In which dtype is the tensor that is given to torch.distributed?",
        "Two all-gathers: one of the codes, which are int8, and one of the scales.",
        "Dequantise what has arrived of all ranks at once: codes [n·m] and scales [n·m / block].",
    ),
    wrong=(
        Wrong("rounded, and sent in 32 bits", diagnosis=SENT, body=BROKEN + "    # and it trains\n"),
        Wrong(
            "codes in 32 bits",
            diagnosis=SENT,
            body="""
                n = dist.get_world_size(group)
                codes, scales = quantise(x, block, 127)
                codes = codes.to(torch.int32)
                all_codes, all_scales = codes.new_empty(n * len(codes)), scales.new_empty(n * len(scales))
                dist.all_gather(list(all_codes.chunk(n)), codes, group=group)
                dist.all_gather(list(all_scales.chunk(n)), scales, group=group)
                return dequantise(all_codes, all_scales)
                """,
        ),
        Wrong(
            "a scale for each number",
            diagnosis=SENT,
            body="""
                n = dist.get_world_size(group)
                codes, scales = quantise(x, block, 127)
                scales = scales.repeat_interleave(block)
                all_codes, all_scales = codes.new_empty(n * len(codes)), scales.new_empty(n * len(scales))
                dist.all_gather(list(all_codes.chunk(n)), codes, group=group)
                dist.all_gather(list(all_scales.chunk(n)), scales, group=group)
                return dequantise(all_codes, all_scales[::block].contiguous())
                """,
        ),
        Wrong(
            "one's own scales for all",
            diagnosis=r"expected -?[\d.e+-]+, got",
            edits=(
                (
                    "    dist.all_gather(list(all_scales.chunk(n)), scales, group=group)\n",
                    "    all_scales.copy_(scales.repeat(n))\n",
                ),
            ),
        ),
        Wrong(
            "nothing is quantised any more",
            diagnosis=r"expected -?[\d.e+-]+, got",
            body="""
                n = dist.get_world_size(group)
                out = x.new_empty(n * len(x))
                dist.all_gather(list(out.chunk(n)), x, group=group)
                return out
                """,
        ),
        Wrong(
            "one's own shard as it is: ranks compute with other numbers",
            diagnosis=r"expected -?[\d.e+-]+, got",
            edits=(
                (
                    "    return dequantise(all_codes, all_scales)",
                    "    whole = dequantise(all_codes, all_scales)\n"
                    "    whole.chunk(n)[dist.get_rank(group)].copy_(x)\n    return whole",
                ),
            ),
        ),
    ),
)
