"""context_parallel.mean_of_means: a loss to mend, in which ranks count alike and tokens do not."""

import torch
import torch.distributed as dist

from puzzles.grading.drives.context_heads import backward_of_a_part
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.context_parallel.answers.losses import IGNORED, mean_over_ranks

TOKENS, WORDS = 5, 4
COUNTED = {  # of n ranks: how many tokens count on each
    "different": lambda n: [(2 * rank + 1) % TOKENS + 1 for rank in range(n)],
    "equal": lambda n: [3] * n,
    "none on the first rank": lambda n: [0] + [TOKENS - rank % 3 for rank in range(1, n)],
    "all on the last rank": lambda n: [0] * (n - 1) + [TOKENS],
    "a single one": lambda n: [1] + [0] * (n - 1),
    "none": lambda n: [0] * n,
}


def prompt_and_answer(case, rank):
    """The last tokens of a rank count: an answer, after a prompt that does not."""
    generator = torch.Generator().manual_seed(case.seed + rank)
    targets = torch.randint(WORDS, (TOKENS,), generator=generator)
    targets[: TOKENS - COUNTED[case.counted](case.n)[rank]] = IGNORED
    return {"logits": case.normal(rank, TOKENS, WORDS, name="logits"), "targets": targets}


def one_process(case, inputs):
    """All tokens in one process; a rank's part of the mean are its own tokens' terms."""
    counted = sum(COUNTED[case.counted](case.n))
    parts, gradients = [], []
    for each in inputs:
        logits, part = each["logits"].clone().requires_grad_(), torch.zeros((), dtype=torch.float64)
        for place, target in enumerate(each["targets"].tolist()):
            if target != IGNORED:
                part = part + (logits[place].logsumexp(0) - logits[place, target]) / counted
        gradients.append(torch.autograd.grad(part, logits)[0] if part.requires_grad else torch.zeros_like(logits))
        parts.append(part.detach())
    return [
        {"this rank's part": part, "the loss": sum(parts), "logits.grad": gradient}
        for part, gradient in zip(parts, gradients, strict=True)
    ]


BROKEN = """
    mean = torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100)
    part = mean / dist.get_world_size(group)
    loss = part.detach().clone()
    dist.all_reduce(loss, group=group)
    return part, loss
    """
DIFFERS = r"(this rank's part|the loss|logits\.grad\[\d, \d\]): expected -?[\d.]+, got -?[\d.]+"

PUZZLE = Puzzle(
    name="context_parallel.mean_of_means",
    title="A mean of means",
    statement="""
        A long conversation lies on n ranks, and only its answers count: the targets of the prompt are -100. Each rank
        takes the mean over its own tokens, and the mean of these is what goes backward and into the log. One process
        says that the loss on held-out text is 3.31. Four ranks say 0.41. And from time to time the loss is NaN.

        Both have one cause. Mend it: each token that counts must count the same, on whichever rank it is. A rank may
        hold none that counts; it takes part all the same, and its part is 0, with a gradient of zeros. Where no rank
        holds any, the loss is 0, too.

        Args:
            logits: [T, V], of this rank's tokens. Gradients flow back through them.
            targets: [T], the wanted token; -100 where a token does not count.
            group: n ranks. Any n.

        Returns: two scalars. First this rank's part of the loss, with a gradient: the parts of all ranks add up to the
        mean over all tokens of all ranks that count. (Gradients are summed over ranks later, and never divided.) Then
        the loss itself, the same on every rank, for the log.

        Budget: one all-reduce of two numbers.
        """,
    function=mean_over_ranks,
    body=BROKEN,
    cases=cases(worlds=(4,), counted=("different", "equal", "none on the first rank", "none"))
    + cases(worlds=(3, 2), counted=("different", "all on the last rank", "a single one"))
    + cases(worlds=(1,), counted=("different", "none"))
    + cases(worlds=(5, 8), counted=("none on the first rank",))
    + cases(worlds=(4,), members=(0, 2, 3), counted=("different",)),
    drawn=on_any_ranks(counted=[each for each in COUNTED if each != "none"]),
    inputs=prompt_and_answer,
    oracle=one_process,
    drive=backward_of_a_part,
    tolerance=1e-10,
    calls=(dist.all_reduce,),
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: 1,
            why="the sum of losses and the number of tokens fit into one tensor: torch.stack",
        ),
        Budget(
            Measure.BYTES_SENT,
            target=lambda case: cost.of(ring).most(case.n, 2, 8),
            why="two numbers: the sum of all losses, and how many tokens count",
        ),
    ),
    hints=(
        "Two ranks: one has 9 tokens that count, of a loss of 1 each, the other a single one, of 11. What is the mean "
        "over the tokens, and what is the mean of the means? What is a mean over nothing?",
        "A mean is a sum, divided by a number. Each rank knows its part of both. So sum both over the ranks first, and "
        'divide then: `cross_entropy(..., reduction="sum")`.',
        "`both = torch.stack([own.detach(), (targets != -100).sum().to(own.dtype)])`, then "
        "`dist.all_reduce(both, group=group)`. The part is `own / counted`, the loss `total / counted`; with "
        "`counted.clamp(min=1)`, nothing divided by one is nothing.",
    ),
    wrong=(
        Wrong(
            "a mean of means, as it was",
            diagnosis=DIFFERS,
            body=BROKEN + "    # NaN now and then\n",
        ),
        Wrong(
            "a mean of means, with zeros for what is no number",
            diagnosis=DIFFERS,
            body=BROKEN.replace("    loss =", "    part = part.nan_to_num()\n    loss ="),
        ),
        Wrong(
            "tokens that do not count are divided by, too",
            diagnosis=DIFFERS,
            edits=(("(targets != IGNORED).sum().to(own.dtype)", "own.new_tensor(float(len(targets)))"),),
        ),
        Wrong(
            "nothing divided by nothing",
            diagnosis=r"wrong with counted=none|expected 0(\.0)?, got nan",
            edits=(("    counted = counted.clamp(min=1)\n", ""),),
        ),
        Wrong(
            "each rank divides by its own tokens",
            diagnosis=DIFFERS,
            edits=(("return own / counted,", "return own / (targets != IGNORED).sum().clamp(min=1),"),),
        ),
        Wrong(
            "the whole loss on every rank: what is summed later is n times as large",
            diagnosis=DIFFERS,
            edits=(("return own / counted,", "return (own - own.detach() + total) / counted,"),),
        ),
        Wrong(
            "averaged, although gradients are summed",
            diagnosis=r"off by exactly the world size, too little",
            edits=(("return own / counted,", "return own / counted / dist.get_world_size(group),"),),
        ),
        Wrong(
            "without a gradient",
            diagnosis=r"logits\.grad: expected a float64 tensor of shape \(5, 4\), got None",
            edits=(("return own / counted,", "return own.detach() / counted,"),),
        ),
        Wrong(
            "a rank that has nothing stays away",
            diagnosis=r"finished without it|rank \d never|deadlock|waits",
            edits=(
                (
                    "    dist.all_reduce(both, group=group)\n",
                    "    if not both[1]:\n        return own, own.detach()\n    dist.all_reduce(both, group=group)\n",
                ),
            ),
        ),
        Wrong(
            "two numbers in two calls",
            diagnosis=r"right, but a rank makes 2 calls where 1 must do.*\n.*fit into one tensor",
            edits=(
                (
                    "    dist.all_reduce(both, group=group)\n    total, counted = both\n",
                    "    total, counted = both.unbind()\n    for each in (total, counted):\n"
                    "        dist.all_reduce(each, group=group)\n",
                ),
            ),
        ),
    ),
)
