"""Compressed sums of gradients with memory, in their smallest forms: all ranks in one process, a tensor for each.

What a rank does not send, it does not lose: it adds it to the next gradient (error feedback). So what it has sent so
far, and what it still holds, are together all its gradients.

| form          | a rank sends, of N elements (or a matrix A x B) | remembers                            |
|---------------|--------------------------------------------------|--------------------------------------|
| majority_vote | a bit each                                       | nothing                              |
| two_stages    | a bit each, and a scale, twice                   | what it did not send, on both ways   |
| top_k         | k values and where they are                      | what it did not send                 |
| power_step    | R (A + B) numbers                                | what it did not send, and B x R of Q |

Seide et al. 2014, "1-bit stochastic gradient descent" (error feedback); Bernstein et al. 2018, "signSGD"
(arXiv:1802.04434); Tang et al. 2021, "1-bit Adam" (arXiv:2102.02888); Stich et al. 2018, "Sparsified SGD with memory"
(arXiv:1809.07599); Vogels et al. 2019, "PowerSGD" (arXiv:1905.13727).
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def sum_with_feedback(
    gradients: Sequence[Tensor], residuals: Sequence[Tensor], compressed: Callable[[Tensor], Tensor]
) -> Tensor:
    """The sum over ranks of what each sends of its gradient and its residual. The rest is its next residual, in place.

    Args:
        gradients, residuals: a tensor for each rank.
        compressed: what arrives of a tensor.
    """
    sent = []
    for gradient, residual in zip(gradients, residuals, strict=True):
        wanted = gradient + residual
        sent.append(compressed(wanted))
        residual.copy_(wanted - sent[-1])
    return torch.stack(sent).sum(0)


def top_k(x: Tensor, k: int) -> Tensor:
    """`x` with zeros in all places but those of its k largest magnitudes."""
    flat = x.flatten()
    places = flat.abs().topk(k).indices
    kept = torch.zeros_like(flat)
    kept[places] = flat[places]
    return kept.view_as(x)


def signs(x: Tensor) -> Tensor:
    """1 where `x` is 0 or more, else -1: a bit cannot say zero."""
    return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)


def scaled_signs(x: Tensor) -> Tensor:
    """`x` as signs times one float32: the mean magnitude, which is nearest of all such to `x`."""
    return signs(x) * x.abs().mean().float() if x.numel() else x.clone()


def majority_vote(gradients: Sequence[Tensor]) -> Tensor:
    """In each place the sign that most ranks have there; 1 where they are even."""
    return signs(torch.stack([signs(gradient) for gradient in gradients]).sum(0))


def two_stages(
    gradients: Sequence[Tensor], residuals: Sequence[Tensor], of_servers: Sequence[Tensor], length: int
) -> Tensor:
    """The sum of 1-bit gradients in 1 bit: rank j is the server of chunk j.

    Args:
        gradients, residuals: a tensor [N] for each rank; residuals are updated in place, like those of servers.
        of_servers: what each server did not send of its chunk.
        length: of a chunk; the last ones may be shorter, or empty.
    """

    def by_chunk(x: Tensor) -> Tensor:
        return torch.cat([scaled_signs(chunk) for chunk in x.split(length)])

    summed = sum_with_feedback(gradients, residuals, by_chunk)
    chunks = [summed[i * length : (i + 1) * length] for i in range(len(gradients))]
    return torch.cat([sum_with_feedback([c], [e], scaled_signs) for c, e in zip(chunks, of_servers, strict=True)])


def orthogonalise(columns: Tensor) -> None:
    """Make the columns of matrices [..., A, R] orthonormal, in place (Gram-Schmidt).

    A column that depends on those before it becomes zeros.
    """
    for i in range(columns.shape[-1]):
        column, before = columns[..., i : i + 1], columns[..., :i]
        length = column.norm(dim=-2, keepdim=True)
        for _ in range(2):  # the second time removes what rounding has left of the first
            column -= before @ (before.mT @ column)
        left = column.norm(dim=-2, keepdim=True)
        column.mul_(torch.where(left > 1e-6 * length, 1 / left, 0))


def power_step(matrix: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """An approximation of rank R to a matrix [A, B], and its Q [B, R], from which the next step begins (warm start)."""
    p = matrix @ q
    orthogonalise(p)
    q = matrix.mT @ p
    return p @ q.mT, q
