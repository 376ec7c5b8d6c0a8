"""How n ranks divide a tensor: as `Tensor.tensor_split` does, the first `numel % n` chunks are longer by one."""

from functools import lru_cache
from itertools import accumulate

from torch import Tensor


def sizes(numel: int, n: int) -> list[int]:
    """Elements of each of the n chunks of `numel` elements. Some are 0 if there are fewer elements than ranks."""
    size, longer = divmod(numel, n)
    return [size + (rank < longer) for rank in range(n)]


@lru_cache
def offsets(numel: int, n: int) -> tuple[int, ...]:
    """Where each chunk begins, and as element n where the last one ends."""
    return (0, *accumulate(sizes(numel, n)))


def copy(source: Tensor, target: Tensor) -> None:
    """Copy all elements of `source` to `target`, whatever their shapes; nothing to do if they are the same memory."""
    target.view(-1).copy_(source.reshape(-1))
