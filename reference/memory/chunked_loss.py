"""Cross entropy over a large vocabulary, a chunk of tokens at a time: the whole logits exist nowhere.

Logits are T x V, and are needed for two things: the loss, and from the same numbers its gradient, softmax - one-hot. So
a chunk of c tokens makes its logits, turns them into their gradient in place, spends that on the gradients of the
hidden states and of the head's weight, and is forgotten:

| for T tokens, V words, width D | peak beside the two gradients | matrix products of T · D · V |
|--------------------------------|-------------------------------|------------------------------|
| whole                          | 3 T · V                       | 3                            |
| here                           | c · V, and 2 in logsumexp     | 3                            |

Nothing is computed twice, since the gradient is made in forward; backward has only to multiply it by the gradient of
the loss. Chunks of the vocabulary with a running logsumexp do the same in a kernel, and keep less still.

Hsu et al. 2024, "Liger kernel: Efficient Triton kernels for LLM training", sec. 3.2; Wijmans et al. 2024, "Cut your
losses in large-vocabulary language models".
"""

import torch
from torch import Tensor

IGNORED = -100


def chunked_loss(
    hidden: Tensor, weight: Tensor, targets: Tensor, global_tokens: int, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of a head's logits, hidden weightᵀ, and its gradients.

    Args:
        hidden: what the head is given, [T, D].
        weight: of the head, [V, D].
        targets: [T], int64; -100 for a token that does not count.
        global_tokens: by which the sum of all losses is divided.
        chunk: c, of how many tokens logits may be there at once.

    Returns:
        The loss, a scalar; its gradient with respect to `hidden`, [T, D]; and with respect to `weight`, [V, D].
    """
    loss, of_hidden, of_weight = hidden.new_zeros(()), torch.empty_like(hidden), torch.zeros_like(weight)
    for x, target, gradient in zip(*(each.split(chunk) for each in (hidden, targets, of_hidden)), strict=True):
        counts = target != IGNORED
        word = target.where(counts, 0)[:, None]
        logits = x @ weight.T
        logits -= logits.logsumexp(1, keepdim=True)
        loss -= logits.gather(1, word)[:, 0][counts].sum()
        probabilities = logits.exp_()
        probabilities.scatter_add_(1, word, -torch.ones_like(word, dtype=logits.dtype))
        probabilities.mul_(counts[:, None]).div_(global_tokens)
        torch.matmul(probabilities, weight, out=gradient)
        of_weight.addmm_(probabilities.T, x)
        del logits, probabilities  # before the next chunk has its own
    return loss / global_tokens, of_hidden, of_weight
