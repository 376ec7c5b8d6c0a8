"""memory.accumulate: the gradient of a batch that does not fit, from micro-batches that do."""

import torch
import torch.nn.functional as F

from puzzles.grading.drives.memory import gradients_of, on_a_model, small_model
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, drawn
from reference.memory.accumulation import accumulate

from .common import weights

WIDTH, HIDDEN, VOCABULARY, SEQUENCE = 6, 16, 5, 3
FLOAT = 8  # bytes
ELSEWHERE = 11  # tokens of the step that other ranks have

SOLUTION = """
    loss_of_all = torch.zeros(())
    for tokens, targets in batches:
        logits = model(tokens).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, targets.flatten(), reduction="sum") / global_tokens
        loss.backward()
        loss_of_all = loss_of_all + loss.detach()
    return loss_of_all
    """


def sizes_of(case):
    """Of the hidden layer, and of the vocabulary."""
    return case.get("hidden", HIDDEN), case.get("vocabulary", VOCABULARY)


def a_model_and_its_batch(case, rank):
    """Weights, and micro-batches of the case's sizes, of which the last `padding` tokens do not count."""
    batches, counted, (hidden, vocabulary) = [], ELSEWHERE, sizes_of(case)
    for number, (windows, padding) in enumerate(zip(case.windows, case.padding, strict=True)):
        tokens, targets = (
            case.tensor(rank, windows, SEQUENCE, dtype=torch.int64, name=f"{name} {number}") % vocabulary
            for name in ("tokens", "targets")
        )
        targets.view(-1)[targets.numel() - padding :] = -100
        counted += targets.numel() - padding
        batches.append((tokens, targets))
    table = {"embedding.weight": case.normal(0, vocabulary, WIDTH, name="embedding")}
    model = {**table, **weights(case, WIDTH, hidden, vocabulary)}
    return {"weights": model, "batches": batches, "global_tokens": counted}


def the_whole_batch_at_once(case, inputs):
    """One forward, one backward, on all tokens that count."""
    model = small_model(inputs[0]["weights"])
    tokens, targets = (torch.cat(parts).flatten() for parts in zip(*inputs[0]["batches"], strict=True))
    counts = targets != -100
    mean = F.cross_entropy(model(tokens[counts]), targets[counts])
    loss = mean * counts.sum() / (counts.sum() + ELSEWHERE)
    loss.backward()
    return [{"returns": loss.detach(), "the result has a history": False, **gradients_of(model)}]


def parameters(case):
    """How many the model has."""
    hidden, vocabulary = sizes_of(case)
    return vocabulary * WIDTH + WIDTH * hidden + hidden + hidden * vocabulary + vocabulary


def affordable(case):
    """Twice the gradients, for what backward has just found and what is there; and what one micro-batch takes."""
    hidden, vocabulary = sizes_of(case)
    a_token = 3 * WIDTH + 2 * hidden + 2 * vocabulary  # kept by forward, and gradients of some of it
    return FLOAT * (2 * parameters(case) + max(case.windows) * SEQUENCE * a_token)


def kept_at_least(case):
    """The gradients, and what forward keeps of one micro-batch."""
    hidden, vocabulary = sizes_of(case)
    a_token = WIDTH + 2 * hidden + vocabulary
    return FLOAT * (parameters(case) + max(case.windows) * SEQUENCE * a_token)


PUZZLE = Puzzle(
    name="memory.accumulate",
    title="A batch that does not fit",
    statement="""
        The whole batch does not fit into memory: forward keeps something for every token until backward. So it comes in
        micro-batches, of different sizes, and you send each of them forward and backward by itself.

        Afterwards every parameter must have in `.grad` exactly what one backward of the whole batch would have put
        there. The loss is the sum of `torch.nn.functional.cross_entropy` over all tokens that count, divided by
        `global_tokens`, the number of such tokens in the whole step: in all micro-batches, here and on other ranks.
        Then gradients of micro-batches, and of ranks, simply add up.

        A target of -100 is padding: it does not count, and `cross_entropy` leaves it out by itself. A micro-batch may
        hold nothing but padding.

        Args:
            model: from tokens [B, S] to logits [B, S, V]. No parameter has a gradient yet.
            batches: micro-batches, pairs of tokens and targets, int64 [B, S] each. B differs from pair to pair.
            global_tokens: how many tokens count, in the whole step.

        Returns: these micro-batches' part of the loss, a scalar without history.

        Budget: memory for gradients, and for the activations of the largest micro-batch.
        """,
    function=accumulate,
    answer=SOLUTION,
    cases=tuple(
        case
        for windows, padding in (
            ((5, 3, 1), (0, 5, 0)),
            ((2, 2, 2, 2, 2), (0, 0, 0, 0, 0)),
            ((1, 8), (0, 0)),
            ((3, 1, 4, 2), (4, 3, 1, 0)),
            ((9,), (0,)),
        )
        for case in cases(worlds=(1,), windows=(windows,), padding=(padding,))
    ),
    drawn=(drawn(worlds=(1,), windows=((4, 2, 3), (1, 1, 6), (7, 2, 1)), padding=((1, 2, 3), (0, 0, 3))),),
    large=case(1, windows=(26,) * 8, padding=(0,) * 8, hidden=64, vocabulary=6000),
    inputs=a_model_and_its_batch,
    oracle=the_whole_batch_at_once,
    drive=on_a_model,
    tolerance=1e-10,
    budgets=(
        Budget(
            Measure.PEAK_BYTES,
            target=affordable,
            optimum=kept_at_least,
            why="go backward after each micro-batch's forward: what it keeps is gone then, and `.grad` holds the sum; "
            "the last micro-batch's own gradients beside it would be a third copy",
        ),
    ),
    hints=(
        "`loss.backward()` adds to `.grad`, and frees what its forward has kept. Which losses of micro-batches add up "
        "to the loss of the batch?",
        "The loss of the batch is a sum over its tokens, divided by one number. The sum can be cut at will; the "
        "divisor belongs to the whole step, however long a micro-batch is.",
        'One by one: `cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / global_tokens`, then '
        "backward, then add up `loss.detach()`.",
    ),
    wrong=(
        Wrong(
            "the mean of the micro-batches' means",
            diagnosis=r"windows=\(5, 3, 1\).*result: expected",
            edits=((', reduction="sum") / global_tokens', ") / len(batches)"),),
        ),
        Wrong(
            "an exponential average",
            diagnosis=r"right with windows=\(9,\), wrong with windows=",
            edits=(
                (
                    "        loss.backward()\n",
                    "        before = [parameter.grad for parameter in model.parameters()]\n"
                    "        model.zero_grad()\n"
                    "        loss.backward()\n"
                    "        for parameter, old in zip(model.parameters(), before):\n"
                    "            parameter.grad = parameter.grad if old is None else (old + parameter.grad) / 2\n",
                ),
            ),
        ),
        Wrong(
            "summed, and divided once more by the number of micro-batches",
            diagnosis=r"right with windows=\(9,\), wrong with windows=",
            edits=(("/ global_tokens\n", "/ global_tokens / len(batches)\n"),),
        ),
        Wrong(
            "never divided",
            diagnosis=r"windows=\(5, 3, 1\).*result: expected",
            edits=(("/ global_tokens\n", "\n"),),
        ),
        Wrong(
            "means weighted by their counts, where padding alone has no mean",
            diagnosis=r"padding=\(4, 3, 1, 0\).*got nan",
            edits=((', reduction="sum") / global_tokens', ") * (targets != -100).sum() / global_tokens"),),
        ),
        Wrong(
            "the gradients of the last micro-batch alone",
            diagnosis=r"right with windows=\(9,\), wrong with windows=",
            edits=(("        loss.backward()\n", "        model.zero_grad()\n        loss.backward()\n"),),
        ),
        Wrong(
            "the loss still has its graph",
            diagnosis=r"the result has a history: expected False, got True",
            edits=((".detach()", ""),),
        ),
        Wrong(
            "the gradients of the last micro-batch are held while the next ones are made",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*would be a third copy",
            edits=(
                (
                    "        loss.backward()\n",
                    "        parameters = list(model.parameters())\n"
                    "        gradients = torch.autograd.grad(loss, parameters)\n"
                    "        for parameter, gradient in zip(parameters, gradients):\n"
                    "            old = parameter.grad\n"
                    "            parameter.grad = gradient if old is None else old + gradient\n",
                ),
            ),
        ),
        Wrong(
            "one backward in the end",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*backward after each",
            edits=(
                ("        loss.backward()\n", ""),
                ("loss_of_all + loss.detach()\n", "loss_of_all + loss\n"),
                ("    return loss_of_all", "    loss_of_all.backward()\n    return loss_of_all.detach()"),
            ),
        ),
        Wrong(
            "the batch put together again",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do",
            edits=(
                (
                    "    for tokens, targets in batches:\n",
                    "    whole = [torch.cat(parts) for parts in zip(*batches)]\n    for tokens, targets in [whole]:\n",
                ),
            ),
        ),
    ),
)
