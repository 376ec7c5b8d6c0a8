"""compression.eight_bit_state: Adam's moments in a quarter of the memory, and the same training."""

import torch

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, drawn
from reference.compression.answers.low_bits import adam_8_bit


def codes_and_scales(case, name):
    """Of moments, some of which are very small beside others; all are zeros before the first step."""
    values = case.normal(0, case.blocks, case.block, name=name) * torch.logspace(0, -4, case.blocks)[:, None].double()
    values = values.abs() if name == "second" else values
    values = values * (case.step > 1)
    scales = values.abs().amax(1) / 127
    return (values / scales.clamp(min=1e-30)[:, None]).round().to(torch.int8).flatten(), scales


def before_a_step(case, rank):
    """In the first step the second block has no gradient: its moments stay zeros."""
    numel = case.blocks * case.block
    gradient = case.normal(0, numel, name="gradient") * case.size
    if case.step == 1:
        gradient.view(case.blocks, case.block)[1:2] = 0
    return {
        "parameters": case.normal(0, numel, name="parameters"),
        "gradient": gradient,
        "first": codes_and_scales(case, "first"),
        "second": codes_and_scales(case, "second"),
        "rate": 0.01,
        "step": case.step,
    }


def with_whole_moments(case, inputs):
    """All blocks at once, as the paper of Adam writes it."""
    given, shape = inputs[0], (case.blocks, case.block)
    (m_codes, m_scales), (r_codes, r_scales) = given["first"], given["second"]
    g = given["gradient"]
    m = (m_codes.double().view(shape) * m_scales[:, None]).flatten()
    r = (r_codes.double().view(shape) * r_scales[:, None]).flatten()
    m = 0.9 * m + 0.1 * g
    v = 0.99 * r * r + 0.01 * g * g
    unbiased, square = m / (1 - 0.9**case.step), v / (1 - 0.99**case.step)
    found = {"parameters": given["parameters"] - 0.01 * unbiased / (square.sqrt() + 1e-8)}
    for name, values in (("first", m), ("second", v.sqrt())):
        scales = values.view(shape).abs().amax(1) / 127
        codes = (values.view(shape) / scales.clamp(min=1e-30)[:, None]).round().to(torch.int8).flatten()
        found[name] = (codes, scales)
    return [found]


PUZZLE = Puzzle(
    name="compression.eight_bit_state",
    title="Adam's moments in 8 bits",
    statement="""
        Adam keeps two moments of each parameter, 8 bytes in float32, which are more than anything else. In 8 bits they
        are 2 bytes. They are kept as whole numbers from -127 to 127, codes, and each block of them has a scale of its
        own, so that a large number spoils no other block. Of the second moment v the root is kept: v of small gradients
        is the square of something small, and would become zero, by which the update is divided.

        Take a step of Adam: of each block make m and v again, update them, and update the parameters *by these*, before
        they are rounded. Then keep them as codes: the scale is the largest absolute value of the block divided by 127,
        the code the nearest whole number to value / scale. A block of zeros has scale 0 and codes 0.

            m = 0.9 m + 0.1 g          v = 0.99 v + 0.01 g²
            parameters -= rate · m / (1 - 0.9^step)
                          / (sqrt(v / (1 - 0.99^step)) + 1e-8)

        Args:
            parameters: flat, in float64. Update them in place.
            gradient: as many.
            first: (codes, scales) of m: int8, as many as parameters, and a float64 for each block of neighbours; all
                blocks are equally long. Update both in place.
            second: (codes, scales) of the root of v. Update both in place.
            rate: of learning.
            step: counted from 1.

        Returns: None.

        Budget: room for some blocks in full, and never for the moments of all parameters: else nothing is saved.
        """,
    function=adam_8_bit,
    cases=cases(worlds=(1,), blocks=(3,), block=(8,), step=(2, 10), size=(1.0, 1e-3))
    + cases(worlds=(1,), blocks=(1, 4), block=(5,), step=(1,), size=(1.0,)),
    drawn=(drawn(worlds=(1,), blocks=range(1, 6), block=range(2, 12), step=(1, 3, 7), size=(1.0, 0.01)),),
    large=case(1, blocks=128, block=4096, step=3, size=1.0),
    inputs=before_a_step,
    oracle=with_whole_moments,
    tolerance=1e-12,
    budgets=(
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: 8 * (10 * case.block + 8),
            why="one block after another: a block in full is small, all of them are what was to be saved",
        ),
    ),
    hints=(
        "`codes.view(blocks, -1)` has a block in each row, and is a view: what is written there is written in `codes`.",
        "What is rounded first, and used then, adds an error to each update. In which order must two lines stand?",
        "`scales[number] = values.abs().amax() / 127`, then "
        "`codes.copy_((values / scales[number].clamp(min=1e-30)).round())`: copy_ makes integers of whole numbers.",
    ),
    wrong=(
        Wrong(
            "v itself in 8 bits",
            diagnosis=r"expected -?[\d.e-]+, got -?[\d.e-]+",
            edits=(
                ("(r_codes * second[1][number]).square()", "(r_codes * second[1][number])"),
                ("(v.sqrt_(), (r_codes", "(v, (r_codes"),
            ),
        ),
        Wrong(
            "codes are cut off, not rounded",
            diagnosis=r"expected -?\d+, got -?\d+",
            edits=((".clamp(min=1e-30)).round())", ".clamp(min=1e-30)))"),),
        ),
        Wrong(
            "the old scale with new codes",
            diagnosis=r"expected -?[\d.e-]+, got -?[\d.e-]+",
            edits=(("            scales[number] = values.abs().amax() / 127\n", ""),),
        ),
        Wrong(
            "a block of zeros has the scale 1",
            diagnosis=r"expected 0(\.0)?, got 1(\.0)?",
            edits=(("values.abs().amax() / 127", "(values.abs().amax() or 127) / 127"),),
        ),
        Wrong(
            "the largest without its sign",
            diagnosis=r"expected -?[\d.e-]+, got -?[\d.e-]+",
            edits=(("values.abs().amax()", "values.amax()"),),
        ),
        Wrong(
            "moments are not corrected for their beginning",
            diagnosis=r"parameters.*expected -?[\d.e-]+, got -?[\d.e-]+",
            edits=(("(m / (1 - 0.9**step))", "m"),),
        ),
        Wrong(
            "one scale for all blocks",
            diagnosis=r"expected -?[\d.e-]+, got -?[\d.e-]+",
            edits=(("m_codes * first[1][number]", "m_codes * first[1].amax()"),),
        ),
        Wrong(
            "all moments in full",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do",
            body="""
                blocks = len(first[1])
                shape = (blocks, len(parameters) // blocks)
                m = 0.9 * (first[0].view(shape) * first[1][:, None]) + 0.1 * gradient.view(shape)
                v = 0.99 * (second[0].view(shape) * second[1][:, None]) ** 2 + 0.01 * gradient.view(shape) ** 2
                update = (m / (1 - 0.9**step)) / ((v / (1 - 0.99**step)).sqrt() + 1e-8)
                parameters -= rate * update.flatten()
                for values, (codes, scales) in ((m, first), (v.sqrt(), second)):
                    scales.copy_(values.abs().amax(1) / 127)
                    codes.copy_((values / scales.clamp(min=1e-30)[:, None]).round().flatten())
                """,
        ),
    ),
)
