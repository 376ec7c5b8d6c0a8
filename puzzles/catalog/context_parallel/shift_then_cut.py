"""context_parallel.shift_then_cut: what comes after a rank's last token, another rank holds."""

import torch

from puzzles.grading.drives import there_and_back
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, cases, on_any_ranks
from reference.choices import ContextLayout
from reference.context_parallel.answers.losses import next_token_loss
from reference.context_parallel.layouts import layout

BATCH, WORDS = 2, 7


def positions_of(case):
    """Where the tokens of each rank stand: [n, S / n], padding behind the last."""
    shared = layout(ContextLayout(case.layout), case.length, case.n)
    return torch.stack([shared.positions(rank) for rank in range(case.n)])


def whole_text_and_own_logits(case, rank):
    """The text is the same on every rank; logits are those of its own tokens."""
    positions = positions_of(case)[rank]
    generator = torch.Generator().manual_seed(case.seed)
    return {
        "logits": case.normal(rank, BATCH, len(positions), WORDS, name="logits"),
        "tokens": torch.randint(WORDS, (BATCH, case.length), generator=generator),
        "positions": positions,
        "upstream": torch.ones((), dtype=torch.float64),
    }


def token_by_token(case, inputs):
    """Each token that has a next one is asked for it; the mean is over all of them, on whichever rank they are."""
    said = []
    for each in inputs:
        logits, loss = each["logits"].clone().requires_grad_(), torch.zeros((), dtype=torch.float64)
        for place, position in enumerate(each["positions"].tolist()):
            if position + 1 < case.length:
                wanted = logits[:, place].gather(1, each["tokens"][:, position + 1, None])
                loss = loss + (logits[:, place].logsumexp(1) - wanted[:, 0]).sum()
        loss = loss / (BATCH * (case.length - 1))
        gradient = torch.autograd.grad(loss, logits)[0] if loss.requires_grad else torch.zeros_like(logits)
        said.append({"returns": loss.detach(), "logits.grad": gradient})
    return said


BROKEN = """
    batch, length = tokens.shape
    padded = torch.nn.functional.pad(tokens, (0, 1), value=-100)
    mine = padded[:, positions.clamp(max=length)]
    targets = torch.nn.functional.pad(mine[:, 1:], (0, 1), value=-100)
    logits, targets = logits.flatten(0, 1), targets.flatten()
    losses = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
    return losses / (batch * (length - 1))
    """

PUZZLE = Puzzle(
    name="context_parallel.shift_then_cut",
    title="Shift before you cut",
    statement="""
        A language model is asked for the token that comes next. So the target of a token is the one after it in the
        text: the text, shifted by one. Here each rank takes its tokens out of the text and shifts these. It trains, and
        the loss looks much as it should. On one rank it is right.

        But what comes after the last token of a rank is on another rank; and a rank that holds a piece of the head and
        one of the tail has tokens side by side that are no neighbours. Only tokens at borders are wrong, a few in
        thousands: no curve shows it. The gradient of each token does. Mend the loss.

        Args:
            logits: [B, S/n, V], of this rank's tokens.
            tokens: [B, S], the whole text, the same on every rank.
            positions: [S/n], where this rank's tokens stand in the text, in whichever order. At positions from S on
                there is padding, which counts for nothing.

        Returns: this rank's part of the loss, a scalar: the parts of all ranks add up to the mean over all B(S-1)
        tokens of the text that have a next one. A rank that has none of these returns 0.

        Budget: no message.
        """,
    function=next_token_loss,
    body=BROKEN,
    cases=cases(worlds=(4,), layout=("contiguous", "zigzag"), length=(8,))
    + cases(worlds=(3,), layout=("zigzag", "striped"), length=(5, 12))
    + cases(worlds=(2, 1, 5), layout=("zigzag",), length=(11,))
    + cases(worlds=(8,), layout=("contiguous",), length=(16, 5)),
    drawn=on_any_ranks(layout=("zigzag", "striped", "contiguous"), length=range(2, 30)),
    inputs=whole_text_and_own_logits,
    oracle=token_by_token,
    drive=there_and_back,
    tolerance=1e-10,
    budgets=(
        Budget(
            Measure.CALLS,
            target=lambda case: 0,
            optimum=lambda case: 0,
            why="each rank has the whole text: it can look up what comes next, and need not ask another rank",
        ),
    ),
    hints=(
        "Print the targets of rank 0 and rank 1 for the text 0 1 2 3 4 5 6 7 on 4 ranks. Which ones does one process "
        "have?",
        "All ranks have the whole text. In which order must one shift and cut, so that the token after a rank's last "
        "one is still there?",
        "`shifted = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=-100)` has the target of each token, and "
        "`shifted[:, positions.clamp(max=S - 1)]` those of this rank; cross_entropy leaves out targets of -100.",
    ),
    wrong=(
        Wrong(
            "cut, then shifted, as it was",
            diagnosis=r"rank 0, .*expected -?[\d.]+, got",
            body=BROKEN + "    # a few tokens in thousands\n",
        ),
        Wrong(
            "cut, then shifted; divided by the tokens that are left on a rank",
            diagnosis=r"rank 0, .*expected -?[\d.]+, got",
            body=BROKEN.replace("(batch * (length - 1))", "(targets != -100).sum().clamp(min=1)"),
        ),
        Wrong(
            "shifted, then cut; the last token is asked for the first one",
            diagnosis=r"rank \d, (result|logits\.grad\[0, \d, \d\]): expected -?[\d.]+, got",
            edits=(("F.pad(tokens[:, 1:], (0, 1), value=IGNORED)", "tokens.roll(-1, 1)"),),
        ),
        Wrong(
            "shifted the other way: each is asked for the token before it",
            diagnosis=r"rank 0, (result|logits\.grad\[0, \d, \d\]): expected -?[\d.]+, got",
            edits=(("F.pad(tokens[:, 1:], (0, 1), value=IGNORED)", "F.pad(tokens[:, :-1], (1, 0), value=IGNORED)"),),
        ),
        Wrong(
            "shifted twice: before the cut and after it",
            diagnosis=r"rank \d, (result|logits\.grad\[0, \d, \d\]): expected -?[\d.]+, got",
            edits=(
                (
                    "shifted[:, positions.clamp(max=length - 1)]",
                    "F.pad(shifted[:, positions.clamp(max=length - 1)][:, 1:], (0, 1), value=IGNORED)",
                ),
            ),
        ),
        Wrong(
            "each rank holds a slice, whatever its positions say",
            diagnosis=r"right with layout=contiguous, wrong with layout=zigzag|rank \d, .*: expected",
            edits=(
                (
                    "positions.clamp(max=length - 1)",
                    "(positions.min() + positions.argsort().argsort()).clamp(max=length - 1)",
                ),
            ),
        ),
        Wrong(
            "divided by all tokens, with those that have no next one",
            diagnosis=r"rank 0, (result|logits\.grad\[0, \d, \d\]): expected -?[\d.]+, got",
            edits=(("(batch * (length - 1))", "(batch * length)"),),
        ),
        Wrong(
            "the mean over a rank's own tokens",
            diagnosis=r"rank \d, (result|logits\.grad\[0, \d, \d\]): expected -?[\d.]+, got",
            edits=((', reduction="sum") / (batch * (length - 1))', ")"),),
        ),
        Wrong(
            "right, after a sum over all ranks of how many tokens count",
            diagnosis=r"right, but a rank makes 1 call where 0 must do.*\neach rank has the whole text",
            body="""
                batch, length = tokens.shape
                shifted = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=-100)
                mine = shifted[:, positions.clamp(max=length - 1)]
                targets = mine.masked_fill(positions >= length, -100).flatten()
                counted = (targets != -100).sum().double()
                torch.distributed.all_reduce(counted)
                losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets, reduction="sum")
                return losses / counted
                """,
        ),
    ),
)
