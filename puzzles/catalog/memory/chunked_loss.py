"""memory.chunked_loss: the logits of a large vocabulary, a few tokens at a time."""

import torch
import torch.nn.functional as F

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, drawn
from reference.memory.chunked_loss import chunked_loss

FLOAT, WIDTH = 8, 8  # bytes of a number; D
PADDED = 3  # each so many tokens one does not count, where there is padding


def a_head_and_its_tokens(case, rank):
    """Hidden states, a weight, and targets of which some do not count. Logits may be larger than exp can take."""
    hidden, weight = (case.normal(rank, size, WIDTH, name=name) for name, size in sizes_of(case).items())
    targets = torch.randint(case.vocabulary, (case.tokens,), generator=torch.Generator().manual_seed(case.seed))
    if case.padding:
        targets[::PADDED] = -100
    return {
        "hidden": hidden * case.scale,
        "weight": weight,
        "targets": targets,
        "global_tokens": 2 * case.tokens,
        "chunk": case.chunk,
    }


def sizes_of(case):
    return {"hidden": case.tokens, "weight": case.vocabulary}


def with_whole_logits(case, inputs):
    """By torch's own cross entropy, and its backward."""
    given = inputs[0]
    hidden, weight = (given[name].clone().requires_grad_() for name in ("hidden", "weight"))
    loss = F.cross_entropy(hidden @ weight.T, given["targets"], reduction="sum") / given["global_tokens"]
    loss.backward()
    return [[loss.detach(), hidden.grad, weight.grad]]


def gradients(case):
    """Those that are returned, in bytes."""
    return FLOAT * WIDTH * (case.tokens + case.vocabulary)


def logits(case):
    """Those of one chunk, in bytes."""
    return FLOAT * min(case.chunk, case.tokens) * case.vocabulary


PUZZLE = Puzzle(
    name="memory.chunked_loss",
    title="A loss without its logits",
    statement="""
        The head of a language model makes a logit for each token and each word: `hidden @ weight.T`, [T, V]. That is
        the largest tensor of a model with a large vocabulary; `cross_entropy` keeps another one like it, and backward
        makes a third. Never hold more of them than those of `chunk` tokens.

        The loss of a token is logsumexp(its logits) minus the logit of its target. With respect to the logits, its
        gradient is softmax(logits), with 1 subtracted at the target. The loss is the sum over all tokens that count,
        divided by `global_tokens`, and so are the gradients. A target of -100 is padding: it adds nothing to the loss,
        and its hidden state has a gradient of zero.

        Logits may be as large as thousands: `exp` of those is inf.

        Args:
            hidden: what the head is given, float64 [T, D].
            weight: of the head, [V, D].
            targets: int64 [T].
            global_tokens: how many tokens count, in the whole step.
            chunk: how many tokens may have logits at once. T may leave a last chunk that is smaller.

        Returns: three new tensors without history: the loss, a scalar, and its gradients with respect to hidden and
        weight.

        Budget: memory for the two gradients, and for the logits of a chunk three times.
        """,
    function=chunked_loss,
    cases=cases(worlds=(1,), tokens=(23,), vocabulary=(40,), chunk=(5,), padding=(False, True), scale=(1.0,))
    + cases(worlds=(1,), tokens=(12,), vocabulary=(31,), chunk=(4, 1, 12, 50), padding=(True,), scale=(1.0,))
    + cases(worlds=(1,), tokens=(9,), vocabulary=(33,), chunk=(2,), padding=(False,), scale=(1000.0,)),
    drawn=(
        drawn(
            worlds=(1,),
            tokens=range(10, 30),
            vocabulary=range(30, 50),
            chunk=range(2, 7),
            padding=(True, False),
            scale=(1.0, 300.0),
        ),
    ),
    large=case(1, tokens=1024, vocabulary=6000, chunk=32, padding=False, scale=1.0),
    inputs=a_head_and_its_tokens,
    oracle=with_whole_logits,
    new=True,
    tolerance=1e-10,
    budgets=(
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: gradients(case) + 3 * logits(case) + 64 * FLOAT * WIDTH,
            optimum=lambda case: gradients(case) + logits(case),
            why="a chunk's logits become probabilities, and these its gradient: spend it on both results and forget it",
        ),
    ),
    hints=(
        "Each token's loss depends on its own row of logits alone. What of a row is still needed when its loss and its "
        "gradient are known?",
        "With p = softmax(logits) minus one-hot of a chunk, over global_tokens: the gradient of the chunk's hidden "
        "states is p @ weight, and what it adds to the weight's is p.T @ x.",
        "`logits.logsumexp(1, keepdim=True)` is safe for large logits; `(logits - it).exp()` is the softmax.",
        "`of_weight.addmm_(p.T, x)` adds a product to a tensor, without a second one of its size.",
    ),
    wrong=(
        Wrong(
            "the whole logits, by torch",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do.*\n.*a chunk's logits become",
            body="""
                with torch.enable_grad():
                    x, w = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
                    loss = torch.nn.functional.cross_entropy(x @ w.T, targets, reduction="sum") / global_tokens
                    loss.backward()
                return loss.detach(), x.grad, w.grad
                """,
        ),
        Wrong(
            "logits of all chunks are kept for a second pass",
            diagnosis=r"right, but it keeps alive [\d,]+ B where [\d,]+ must do",
            body="""
                rows = [x @ weight.T for x in hidden.split(chunk)]
                loss, of_hidden, of_weight = hidden.new_zeros(()), [], torch.zeros_like(weight)
                for x, logits, target in zip(hidden.split(chunk), rows, targets.split(chunk)):
                    counts = target != -100
                    word = target.where(counts, 0)[:, None]
                    logits -= logits.logsumexp(1, keepdim=True)
                    loss -= logits.gather(1, word)[counts].sum()
                    logits.exp_().scatter_add_(1, word, -torch.ones_like(word, dtype=logits.dtype))
                    logits.mul_(counts[:, None]).div_(global_tokens)
                    of_hidden.append(logits @ weight)
                    of_weight += logits.T @ x
                return loss / global_tokens, torch.cat(of_hidden), of_weight
                """,
        ),
        Wrong(
            "padding counts",
            diagnosis=r"right with padding=False, wrong with padding=True",
            edits=(
                (
                    "        probabilities.mul_(counts[:, None]).div_(global_tokens)\n",
                    "        probabilities /= global_tokens\n",
                ),
            ),
        ),
        Wrong(
            "exp of the logits themselves",
            diagnosis=r"scale=1000.*(got nan|got inf|got -inf)",
            edits=(
                ("logits -= logits.logsumexp(1, keepdim=True)", "logits -= logits.exp().sum(1, keepdim=True).log()"),
            ),
        ),
        Wrong(
            "the softmax alone",
            diagnosis=r"expected",
            edits=(
                (
                    "        probabilities.scatter_add_(1, word, -torch.ones_like(word, dtype=logits.dtype))\n",
                    "",
                ),
            ),
        ),
        Wrong(
            "the gradient of the weight is that of the last chunk",
            diagnosis=r"right with .*chunk=.*, wrong with|expected",
            edits=(("of_weight.addmm_(probabilities.T, x)", "of_weight = probabilities.T @ x"),),
        ),
        Wrong(
            "the mean of a chunk",
            diagnosis=r"expected",
            edits=((".div_(global_tokens)", ".div_(len(x))"),),
        ),
        Wrong(
            "a factor in float32, which a mask divided by a whole number is",
            diagnosis=r"expected 0\.[\d]+, got 0\.[\d]+",
            edits=((".mul_(counts[:, None]).div_(global_tokens)", ".mul_(counts[:, None] / global_tokens)"),),
        ),
        Wrong(
            "gradients are not divided",
            diagnosis=r"expected",
            edits=((".div_(global_tokens)", ""),),
        ),
    ),
)
