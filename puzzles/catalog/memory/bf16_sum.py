"""memory.bf16_sum: a sum of gradients that has stalled, to be mended."""

import torch

from puzzles.grading.exact import tiled
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, drawn
from reference.memory.answers.bf16_sum import total


def positive_parts(case, rank):
    """Numbers from 1/2 to 1 times `size`: nothing cancels, so the sum outgrows each of them."""
    generator = torch.Generator().manual_seed(case.seed)
    shape = (case.parts, *case.shape)

    def positive(few):
        return ((torch.rand(tuple(few), generator=generator) + 1) / 2 * case.size).to(case.dtype)

    return {"parts": list(tiled(shape, positive))}


def exact(case, inputs):
    """The sum in float64, rounded once; and the parts, as they were."""
    parts = inputs[0]["parts"]
    total = torch.zeros_like(parts[0], dtype=torch.float64)
    for part in parts:
        total += part
    return [{"returns": total.to(parts[0].dtype), "parts": parts}]


def bytes_of(case, each):
    """`each` bytes for every element of one part."""
    return each * torch.Size(case.shape).numel()


PUZZLE = Puzzle(
    name="memory.bf16_sum",
    title="Mend a sum that stalls",
    statement="""
        The gradients of many micro-batches, in 16 bits, are added up in 16 bits. It works for a few of them. With
        hundreds, what comes later is lost: see `memory.bf16_stall`. Mend it, so that the sum is right to two
        units in the last place.

        Args:
            parts: at least one tensor, all of the same shape and dtype, torch.bfloat16 or torch.float16.

        Returns: a new tensor of that shape and dtype. The parts stay as they are.

        Budget: memory for a few tensors of this shape, however many parts there are.
        """,
    function=total,
    cases=cases(worlds=(1,), parts=(450,), shape=((3, 7),), dtype=(torch.bfloat16,), size=(1.0,))
    + cases(worlds=(1,), parts=(1, 3, 150), shape=((5,),), dtype=(torch.bfloat16,), size=(1.0, 1000.0))
    + cases(worlds=(1,), parts=(450,), shape=((5,),), dtype=(torch.float16,), size=(100.0, 0.01)),
    drawn=(
        drawn(
            worlds=(1,), parts=range(100, 400), shape=((4, 5), (9,)), dtype=(torch.bfloat16,), size=(0.25, 1.0, 30.0)
        ),
    ),
    large=case(1, parts=24, shape=(1 << 20,), dtype=torch.bfloat16, size=1.0),
    inputs=positive_parts,
    oracle=exact,
    new=True,
    budgets=(
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: bytes_of(case, 24),
            optimum=lambda case: bytes_of(case, 4 + 2),
            why="one accumulator is enough: add each part to it, and do not gather the parts first",
        ),
    ),
    hints=(
        "Print the sum after 100, 200, 300 and 400 parts of at most 1. Where does it stay, and how far apart are the "
        "numbers of bf16 there?",
        "The parts have only 8 significant bits, and that is fine. The sum needs more of them than a part has: about 9 "
        "more for 450 parts.",
        "`torch.zeros_like(parts[0], dtype=torch.float32)` is an accumulator with 24 bits. Round once, in the end.",
    ),
    body="""
        total = torch.zeros_like(parts[0])
        for part in parts:
            total += part
        return total
        """,
    wrong=(
        Wrong(
            "float32 for the addition, bf16 for the sum",
            diagnosis=r"parts=450.*expected 3\d\d, got 256",
            body="""
                total = torch.zeros_like(parts[0])
                for part in parts:
                    total = (total.float() + part.float()).to(part.dtype)
                return total
                """,
        ),
        Wrong(
            "bf16 is mended, and fp16 is not",
            diagnosis=r"right with dtype=bfloat16, wrong with dtype=float16",
            edits=(("dtype=torch.float32", "dtype=(torch.float32 if parts[0].dtype == torch.bfloat16 else None)"),),
        ),
        Wrong(
            "float32 when it is too late",
            diagnosis=r"expected a bfloat16 tensor of shape \(3, 7\), got a float32 tensor",
            edits=(("return accumulator.to(parts[0].dtype)", "return accumulator"),),
        ),
        Wrong(
            "float16, which has more digits and ends at 65,504",
            diagnosis=r"right with size=.*1, .*wrong with size=1000|expected -?[\d.]+, got inf",
            edits=(("dtype=torch.float32", "dtype=torch.float16"),),
        ),
        Wrong(
            "the mean",
            diagnosis=r"right with parts=1, wrong with parts=[\d, ]+",
            edits=(("return accumulator", "return accumulator.div(len(parts))"),),
        ),
        Wrong(
            "the sum of two halves",
            diagnosis=r"parts=450.*expected 3\d\d, got \d\d",
            body="""
                halves = [torch.zeros_like(parts[0]), torch.zeros_like(parts[0])]
                for index, part in enumerate(parts):
                    halves[index % 2] += part
                return halves[0] + halves[1]
                """,
        ),
        Wrong(
            "the parts are overwritten",
            diagnosis=r"parts\[0\]\[0, 0\]: expected",
            body="""
                accumulator = parts[0].float()
                for part in parts[1:]:
                    accumulator += part
                return parts[0].copy_(accumulator)
                """,
        ),
        Wrong(
            "all parts in a tensor that was empty",
            diagnosis=r"right, but it keeps alive [\d,]+ B where 504 must do",
            body="""
                together = torch.empty(0, dtype=parts[0].dtype)
                torch.stack(list(parts), out=together)
                return together.sum(0, dtype=torch.float32).to(parts[0].dtype)
                """,
        ),
        Wrong(
            "all parts in float32",
            diagnosis=r"right, but it keeps alive [\d,]+ B where 504 must do.*\n.*one accumulator",
            body="return torch.stack(parts).float().sum(0).to(parts[0].dtype)",
        ),
    ),
)
