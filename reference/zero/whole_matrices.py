"""An optimizer of whole matrices under any plan: what needs all of a matrix is computed by the rank that owns it.

This is `plain_matrices.muon` with: matrices in pieces, wherever a plan has put them, replicas, experts, and AdamW for
all that is no matrix.

    before      on the pieces, where they are: what treats each element by itself, as momentum does
    whole       on the owner: Newton-Schulz, or roots
    after       on the pieces again: decay and update

So an optimizer's state is cut as its masters are, a checkpoint of one layout is one of every other, and what is learned
is what one process would learn. What each rank sends is `cost.whole_matrices`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from reference.collectives.communicator import Communicator
from reference.data_parallel.gradient_sync import ParameterShard

from .cost import newton_schulz_flops, shampoo_flops, soap_flops
from .matrix_routes import MatrixExchange, WholeMatrix, is_matrix
from .plain_matrices import MOMENTUM, muon_scale, newton_schulz, shampoo_direction, soap_direction, soap_memory

BUFFER = "momentum_buffer"  # as torch calls it
State = dict[str, Any]


class MatrixRule(Protocol):
    """How matrices are updated. Its class is what a checkpoint calls the optimizer."""

    def begin(self, owned: Sequence[WholeMatrix], dtype: torch.dtype, device: torch.device) -> list[ParameterShard]:
        """Make what an owner remembers of its matrices beside what is cut as they are: parts of a checkpoint."""

    def cost(self, rows: int, columns: int) -> float:
        """Of `whole`, in FLOPs."""

    def before(self, state: State, gradient: Tensor) -> Tensor:
        """What the owner needs of an element, from its gradient and `state`, which may change: of one shape."""

    def whole(self, matrix: WholeMatrix, x: Tensor) -> Tensor:
        """What the owner makes of a matrix (rows, columns)."""

    def after(self, state: State, direction: Tensor) -> Tensor:
        """By what an element moves, as a multiple of the learning rate."""


class Muon:
    """Momentum with Nesterov's look ahead, made orthogonal.

    Args:
        compute: the dtype of products; that of the masters by default. Jordan takes bfloat16.
        scale: of the update of a matrix of so many rows and columns.
    """

    def __init__(self, compute: torch.dtype | None = None, scale: Callable[[int, int], float] = muon_scale) -> None:
        self.compute, self.scale = compute, scale

    def begin(self, owned: Sequence[WholeMatrix], dtype: torch.dtype, device: torch.device) -> list[ParameterShard]:
        """Owners remember nothing."""
        return []

    def cost(self, rows: int, columns: int) -> float:
        """Five rounds of Newton-Schulz."""
        return newton_schulz_flops(rows, columns)

    def before(self, state: State, gradient: Tensor) -> Tensor:
        """Nesterov's momentum."""
        if BUFFER not in state:
            state[BUFFER] = torch.zeros_like(gradient)
        state[BUFFER].lerp_(gradient, 1 - MOMENTUM)
        return gradient.lerp(state[BUFFER], MOMENTUM)

    def whole(self, matrix: WholeMatrix, x: Tensor) -> Tensor:
        """Nearly orthogonal, and as large as updates of AdamW."""
        return newton_schulz(x.to(self.compute or x.dtype)).to(x.dtype) * self.scale(matrix.rows, matrix.columns)

    def after(self, state: State, direction: Tensor) -> Tensor:
        """As it is."""
        return direction


class Shampoo:
    """Gradients between inverse roots of what rows and columns have in common, then momentum.

    The owner keeps two squares of a matrix; a checkpoint has them under names of their own, and any owner loads them.

    Args:
        scale: of the update of a matrix of so many rows and columns.
    """

    def __init__(self, scale: Callable[[int, int], float] = muon_scale) -> None:
        self.scale = scale
        self._sums: dict[WholeMatrix, tuple[Tensor, Tensor]] = {}

    def begin(self, owned: Sequence[WholeMatrix], dtype: torch.dtype, device: torch.device) -> list[ParameterShard]:
        """The decaying sums of GGᵀ and of GᵀG."""
        parts = []
        for matrix in owned:
            sides = {"rows": matrix.rows, "columns": matrix.columns}
            sums = {side: torch.zeros(length, length, dtype=dtype, device=device) for side, length in sides.items()}
            parts += parts_of_owner(matrix, sums)
            self._sums[matrix] = sums["rows"], sums["columns"]
        return parts

    def cost(self, rows: int, columns: int) -> float:
        """Products, and eigenvectors of both squares."""
        return shampoo_flops(rows, columns)

    def before(self, state: State, gradient: Tensor) -> Tensor:
        """As it is."""
        return gradient

    def whole(self, matrix: WholeMatrix, x: Tensor) -> Tensor:
        """Between roots, and as large as updates of AdamW."""
        return shampoo_direction(x, *self._sums[matrix]) * self.scale(matrix.rows, matrix.columns)

    def after(self, state: State, direction: Tensor) -> Tensor:
        """Momentum."""
        if BUFFER not in state:
            state[BUFFER] = torch.zeros_like(direction)
        return state[BUFFER].lerp_(direction, 1 - MOMENTUM)


class Soap:
    """Adam along axes that follow the eigenvectors of what rows, and columns, have in common.

    The owner keeps all of it, both moments and axes; a checkpoint has them by name, and any owner loads them.
    """

    def __init__(self) -> None:
        self._kept: dict[WholeMatrix, dict[str, Tensor]] = {}

    def begin(self, owned: Sequence[WholeMatrix], dtype: torch.dtype, device: torch.device) -> list[ParameterShard]:
        """Moments, sums, axes and a count."""
        self._kept = {each: soap_memory(each.rows, each.columns, dtype=dtype, device=device) for each in owned}
        return [part for matrix, kept in self._kept.items() for part in parts_of_owner(matrix, kept)]

    def cost(self, rows: int, columns: int) -> float:
        """Products, and now and then a turn of the axes."""
        return soap_flops(rows, columns)

    def before(self, state: State, gradient: Tensor) -> Tensor:
        """As it is."""
        return gradient

    def whole(self, matrix: WholeMatrix, x: Tensor) -> Tensor:
        """What Adam makes of it along the axes."""
        return soap_direction(x, self._kept[matrix])

    def after(self, state: State, direction: Tensor) -> Tensor:
        """As it is."""
        return direction


def parts_of_owner(matrix: WholeMatrix, kept: Mapping[str, Tensor]) -> list[ParameterShard]:
    """What an owner keeps of a matrix, as a checkpoint has it: views of these tensors, by name."""
    expert = "" if matrix.expert is None else f"[{matrix.expert}]"
    return [
        ParameterShard(f"{name} of {matrix.name}{expert}", x.shape, 0, x.numel(), nn.Parameter(x, requires_grad=False))
        for name, x in kept.items()
    ]


class WholeMatrices(Optimizer):
    """Matrices of hidden layers by a rule that sees them whole; AdamW for all else.

    Args:
        parts: that this rank updates.
        communicator: of all ranks of the plan. All of them make one together, and take steps together.
        rule: of matrices.
        options: of both: `lr` and `weight_decay`; of AdamW besides: `betas`.
        belongs: which parameters are matrices, by name and shape.
    """

    def __init__(
        self,
        parts: Iterable[ParameterShard],
        communicator: Communicator,
        rule: MatrixRule,
        options: Mapping[str, Any] = MappingProxyType({"lr": 1e-3}),
        belongs: Callable[[str, Sequence[int]], bool] = is_matrix,
    ) -> None:
        parts = list(parts)
        self.rule, self.matrices = rule, [part for part in parts if belongs(part.name, part.shape)]
        others = [part.master for part in parts if not belongs(part.name, part.shape)]
        self.exchange = MatrixExchange(self.matrices, communicator, rule.cost)
        like = next((part.master for part in parts), torch.empty(0))
        self.kind = type(rule)
        self.parts = rule.begin(self.exchange.owned, like.dtype, like.device)  # of a checkpoint, beside the form's
        spare = [] if others else [nn.Parameter(torch.empty(0))]  # a rank may have none, and AdamW wants one
        self._adamw = AdamW([*others, *spare], fused=True, **options)
        of_adamw = self._adamw.param_groups[0] | {"whole": False}
        of_matrices = {name: of_adamw[name] for name in ("lr", "weight_decay")} | {"whole": True}
        groups = [{"params": [part.master for part in self.matrices], **of_matrices}, of_adamw]
        super().__init__(groups, self._adamw.defaults | {"whole": False})

    def make(self, parameter: nn.Parameter) -> Optimizer:
        """What keeps of one parameter what this keeps of it, depending on the option `whole` of its group."""
        return _Kept(parameter, self.rule, self._adamw.defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update all that has a gradient; a matrix without one, as if it were zero. All ranks call this together."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        of_matrices, of_adamw = self.param_groups
        self._adamw.state, self._adamw.param_groups = self.state, [of_adamw]  # which loading makes anew
        self._adamw.step()
        masters = of_matrices["params"]
        gradients = (torch.zeros_like(each) if each.grad is None else each.grad for each in masters)
        values = [self.rule.before(self.state[m], gradient) for m, gradient in zip(masters, gradients, strict=True)]
        directions = self.exchange(values, self.rule.whole)
        for master, direction in zip(masters, directions, strict=True):
            master.mul_(1 - of_matrices["lr"] * of_matrices["weight_decay"])
            master.sub_(self.rule.after(self.state[master], direction), alpha=of_matrices["lr"])
        return loss


class _Kept(Optimizer):
    """Takes a step of one parameter, to show what is kept of it."""

    def __init__(self, parameter: nn.Parameter, rule: MatrixRule, options: Mapping[str, Any]) -> None:
        self._rule = rule
        super().__init__([parameter], dict(options))

    def step(self) -> None:
        """One step; the values mean nothing."""
        (group,) = self.param_groups
        (parameter,) = group["params"]
        if group["whole"]:
            state = self.state[parameter]
            self._rule.after(state, self._rule.before(state, parameter.grad))
        else:
            adamw = AdamW([parameter], amsgrad=group["amsgrad"])
            parameter.grad = torch.zeros_like(parameter)
            adamw.step()
            self.state = adamw.state
