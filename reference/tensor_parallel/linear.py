"""Linear layers of which each rank has a part: split by columns on the way into a region, by rows on the way out.

    Y = X A, Z = Y B        A = [A_1 | A_2]     columns: rank i makes Y_i = X A_i, the i-th part of Y's features
                            B = [B_1]           rows: rank i makes Y_i B_i, and Z is the sum of these
                                [B_2]

One after the other they need one sum, at the end. torch stores the transposed of A and B, so what is called a column
here is a row of `weight` [out, in]. What travels when, forward and backward, is a matter of the region.

Shoeybi et al. 2019, "Megatron-LM: Training multi-billion parameter language models using model parallelism", sec. 3.
"""

from torch import Tensor, nn

from reference.collectives.differentiable import Conjugate
from reference.errors import BadInput

from .region import Region


def require_shares(features: int, kind: str, ranks: int) -> None:
    """See whether features of this kind can be shared out. Raises BadInput that says how many could be."""
    if rest := features % ranks:
        would = [str(count) for count in (features - rest, features - rest + ranks) if count]
        raise BadInput(f"{features} {kind} features do not divide among {ranks} ranks; {' or '.join(would)} would do")


def _part(whole: nn.Parameter, index: int = 0, parts: int = 1, dim: int = 0) -> nn.Parameter:
    """A copy of one of so many equal parts; it learns if the whole does."""
    return nn.Parameter(whole.detach().tensor_split(parts, dim)[index].clone(), whole.requires_grad)


class ColumnParallelLinear(nn.Module):
    """A linear layer into a region: each rank has some of its output features.

    Args:
        whole: the layer, the same on every rank; of its parameters this rank copies its part.
        region: whose t ranks share the layer; its output features divide by t.
        join: put all ranks' features together after it, for work that is the same on every rank.

    Raises:
        BadInput: if the features do not divide.
    """

    def __init__(self, whole: nn.Linear, region: Region, join: bool = False) -> None:
        require_shares(whole.out_features, "output", region.ranks)
        super().__init__()
        self.region, self.join = region, join
        self.weight = _part(whole.weight, region.rank, region.ranks)
        self.bias = None
        if whole.bias is not None:  # each feature has its own: split like the features
            self.bias = _part(whole.bias, region.rank, region.ranks)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] as it lies outside -> [B, S, F / t], or [B, S, F] with `join`."""
        (y,) = self.region.column_linear(x, self.weight)
        y = y if self.bias is None else y + self.bias
        return Conjugate.apply(y, self.region.all_features, self.region.own_features) if self.join else y


class RowParallelLinear(nn.Module):
    """A linear layer out of a region: each rank has some of its input features, and all have the sum.

    The bias belongs to the sum: a bias added before the sum is added t times. Every rank keeps all of it.

    Args:
        whole: the layer, the same on every rank; of its weight this rank copies its part.
        region: whose t ranks share the layer; its input features divide by t.
        split: take this rank's features out of an input that is the same on every rank.

    Raises:
        BadInput: if the features do not divide.
    """

    def __init__(self, whole: nn.Linear, region: Region, split: bool = False) -> None:
        require_shares(whole.in_features, "input", region.ranks)
        super().__init__()
        self.region, self.split = region, split
        self.weight = _part(whole.weight, region.rank, region.ranks, dim=1)
        self.bias = None if whole.bias is None else _part(whole.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, F / t], or [B, S, F] with `split` -> [B, S, D] as it lies outside."""
        if self.split:
            x = Conjugate.apply(x, self.region.own_features, self.region.all_features)
        y = self.region.row_linear(x, self.weight)
        return y if self.bias is None else y + self.bias
