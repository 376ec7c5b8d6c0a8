"""Optimizers that look at a whole matrix, in one process, as short as pseudocode: Muon, Shampoo and SOAP.

Adam treats each element by itself, so that a shard is as good as a tensor. Muon makes the momentum of a matrix nearly
orthogonal; Shampoo divides a gradient by roots of what rows, and columns, have in common; SOAP is Adam, seen from the
axes of what Shampoo divides by. All need all of it:

    orthogonal(whole)[: rows // 2]  is not  orthogonal(whole[: rows // 2])

So a matrix has an owner, to which all pieces travel, and from which they come back: `to_its_owner`. The cost of a
matrix grows with the cube of its sides and not with its elements, and owners get matrices by `deal`.

Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; Gupta, Koren and Singer 2018, "Shampoo:
preconditioned stochastic tensor optimization"; Vyas et al. 2024, "SOAP: improving and stabilizing Shampoo using Adam"
(2409.11321); Liu et al. 2025, "Muon is scalable for LLM training" (2502.16982).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

QUINTIC = (3.4445, -4.7750, 2.0315)  # Jordan's: steepest at zero; singular values end between 0.68 and 1.14
ROUNDS, MOMENTUM, TINY = 5, 0.95, 1e-7
DECAY, FLOOR = 0.95, 1e-6  # of Shampoo's sums; eigenvalues below this part of the largest count as that
EVERY, SHIFT, EPSILON = 10, 1e-3, 1e-8  # steps from one turn of SOAP's axes to the next; see `turned`; Adam's


def newton_schulz(matrix: Tensor, rounds: int = ROUNDS) -> Tensor:
    """Nearly U Vᵀ of a matrix U S Vᵀ: its singular values go to about 1. Zeros stay zeros.

    Args:
        matrix: (rows, columns), whole. Products are computed in its dtype.
        rounds: of X ← aX + b(XXᵀ)X + c(XXᵀ)²X.
    """
    a, b, c = QUINTIC
    x = matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix  # the smaller square
    x = x / x.norm().clamp(min=TINY)  # no singular value above 1
    for _ in range(rounds):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if matrix.shape[0] > matrix.shape[1] else x


def muon_scale(rows: int, columns: int) -> float:
    """What an orthogonal update is multiplied by, so that its elements are as large as AdamW's: 0.2 in the mean.

    Jordan takes sqrt(max(1, rows / columns)), and a learning rate of its own. Liu et al. 2025, section 2.2.
    """
    return 0.2 * max(rows, columns) ** 0.5


def muon(weight: Tensor, gradient: Tensor, momentum: Tensor, rate: float, decay: float) -> None:
    """One step of Muon on a whole matrix, in place on `weight` and `momentum`, with Nesterov's look ahead."""
    momentum.lerp_(gradient, 1 - MOMENTUM)
    ahead = gradient.lerp(momentum, MOMENTUM)
    weight.mul_(1 - rate * decay)
    weight.sub_(newton_schulz(ahead), alpha=rate * muon_scale(*weight.shape))


def inverse_root(square: Tensor, power: int = 4) -> Tensor:
    """The inverse `power`-th root of a symmetric matrix without negative eigenvalues; of zeros, the identity."""
    values, vectors = torch.linalg.eigh(square)
    if not values[-1] > 0:
        return torch.eye(len(square), dtype=square.dtype, device=square.device)
    return vectors * values.clamp(min=FLOOR * float(values[-1])) ** (-1 / power) @ vectors.mT


def shampoo_direction(gradient: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """L^(-1/4) G R^(-1/4), as long as Muon's direction; `rows` and `columns`, which are L and R, are updated in place.

    Args:
        gradient: G, (m, n), whole.
        rows, columns: decaying sums of GGᵀ, (m, m), and of GᵀG, (n, n).
    """
    rows.lerp_(gradient @ gradient.mT, 1 - DECAY)
    columns.lerp_(gradient.mT @ gradient, 1 - DECAY)
    direction = inverse_root(rows) @ gradient @ inverse_root(columns)
    return direction * (min(gradient.shape) ** 0.5 / direction.norm().clamp(min=TINY))


def shampoo(
    weight: Tensor, gradient: Tensor, momentum: Tensor, rows: Tensor, columns: Tensor, rate: float, decay: float
) -> None:
    """One step of Shampoo on a whole matrix, in place on all but the gradient."""
    momentum.lerp_(shampoo_direction(gradient, rows, columns) * muon_scale(*weight.shape), 1 - MOMENTUM)
    weight.mul_(1 - rate * decay).sub_(momentum, alpha=rate)


def soap_memory(rows: int, columns: int, **options: Any) -> dict[str, Tensor]:
    """What SOAP keeps of a matrix of so many rows and columns, before its first step; `options` are of tensors."""
    squares = {"rows": rows, "columns": columns}
    return {
        "momentum": torch.zeros(rows, columns, **options),
        "variance": torch.zeros(rows, columns, **options),  # along the axes
        **{side: torch.zeros(length, length, **options) for side, length in squares.items()},
        **{f"axes of {side}": torch.eye(length, **options) for side, length in squares.items()},
        "steps": torch.zeros(1, **options),
    }


def turned(axes: Tensor, square: Tensor) -> Tensor:
    """`axes` nearer to the eigenvectors of `square`: a step of orthogonal iteration, both (n, n).

    A small part of the identity is added, which has the same eigenvectors. Without it those of eigenvalue zero, of
    which a matrix that is not square has many, would be what rounding says: other ranks would find other ones.
    """
    shift = SHIFT * square.diagonal().mean()
    q, r = torch.linalg.qr(square @ axes + shift * axes)
    return q * torch.where(r.diagonal() < 0, -1, 1)  # axes must not turn round: the variance along them is kept


def soap_direction(gradient: Tensor, kept: dict[str, Tensor]) -> Tensor:
    """What Adam makes of a gradient (m, n), whole, along the axes of before; `kept` is updated in place."""
    m, v, left, right = (kept[name] for name in ("momentum", "variance", "axes of rows", "axes of columns"))
    step = int(kept["steps"].add_(1))
    m.lerp_(gradient, 1 - MOMENTUM)
    v.lerp_((left.mT @ gradient @ right).square(), 1 - DECAY)
    root = (v / (1 - DECAY**step)).sqrt() + EPSILON
    direction = left @ (left.mT @ m @ right / (1 - MOMENTUM**step) / root) @ right.mT
    kept["rows"].lerp_(gradient @ gradient.mT, 1 - DECAY)
    kept["columns"].lerp_(gradient.mT @ gradient, 1 - DECAY)
    if step <= EVERY or step % EVERY == 0:
        left.copy_(turned(left, kept["rows"]))
        right.copy_(turned(right, kept["columns"]))
    return direction


def soap(weight: Tensor, gradient: Tensor, kept: dict[str, Tensor], rate: float, decay: float) -> None:
    """One step of SOAP on a whole matrix, in place on `weight` and `kept`."""
    direction = soap_direction(gradient, kept)
    weight.mul_(1 - rate * decay).sub_(direction, alpha=rate)


def deal(costs: Sequence[float], owners: int) -> list[int]:
    """The owner of each matrix: the most expensive first, each to the owner with least to do.

    Among equals, the lowest number. None has more than 4/3 of the best that can be done (Graham 1969, "Bounds on
    multiprocessing timing anomalies").
    """
    load, found = [0.0] * owners, [0] * len(costs)
    for number in sorted(range(len(costs)), key=lambda number: -costs[number]):
        owner = min(range(owners), key=load.__getitem__)
        found[number], load[owner] = owner, load[owner] + costs[number]
    return found


def to_its_owner(
    shards: Sequence[Tensor],
    shapes: Sequence[tuple[int, int]],
    owner: Sequence[int],
    compute: Callable[[Tensor], Tensor],
    group: ProcessGroup,
) -> None:
    """Replace each matrix, of which each rank has a shard, by what its owner computes from the whole; in place.

    Args:
        shards: of each matrix, this rank's n-th of the flat matrix; n divides the number of its elements.
        shapes: (rows, columns) of each.
        owner: of each, a rank of the group. It alone has it whole, and not for longer than it computes.
        compute: from a whole matrix to one of the same shape.
        group: n ranks.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    for shard, shape, its in zip(shards, shapes, owner, strict=True):
        pieces = [torch.empty_like(shard) for _ in range(n)] if rank == its else None
        dist.gather(shard, pieces, group=group, group_dst=its)
        made = [*compute(torch.cat(pieces).view(shape)).flatten().chunk(n)] if rank == its else None
        dist.scatter(shard, made, group=group, group_src=its)
