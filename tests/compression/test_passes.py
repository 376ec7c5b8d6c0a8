"""What compressors do beside products and messages: passes over gradients, and rooms as large as these."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from reference.compression.low_rank import PowerSGD
from reference.compression.memory import Compressor, HalfPrecision, Known, side_by_side
from reference.data_parallel.flat_layout import FlatLayout

SHAPES = [torch.Size(shape) for shape in ((64, 48), (48,), (64, 48), (5,), (40, 64))]
VIEWS = ("view", "as_strided", "split", "transpose", "slice", "detach", "unsafe_view", "expand")


class Alone:
    """A communicator of one rank, which waits for nothing."""

    def start_all_reduce(self, x: Tensor) -> Callable[[], Tensor]:
        return lambda: x


class Passes(TorchDispatchMode):
    """Notes the operations that touch numbers, and how many elements each makes room for."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[SimpleNamespace] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.__name__.split(".")[0]
        if isinstance(result, Tensor) and name not in VIEWS:
            known = {x.untyped_storage().data_ptr() for x in (*args, *(kwargs or {}).values()) if isinstance(x, Tensor)}
            new = result.untyped_storage().data_ptr() not in known
            self.made.append(SimpleNamespace(name=name, numel=result.numel() if new else 0))
        return result


def passes(make: Callable[[Any], Compressor], gradients: list[Tensor]) -> list[SimpleNamespace]:
    """Of a sum of these, the second of its kind."""
    compressor = make(Alone())
    compressor.begin([[Known(str(k), x.shape, x.dtype, x.device) for k, x in enumerate(gradients)]])
    compressor.sum(0, gradients)
    with Passes() as seen:
        compressor.sum(0, gradients)
    return seen.made


def in_a_bucket() -> list[Tensor]:
    layout = FlatLayout(tuple(SHAPES))
    flat = torch.randn(layout.numel, generator=torch.Generator().manual_seed(0))
    return layout.views(flat)


def test_a_bucket_is_rounded_in_one_pass_and_back_in_one() -> None:
    """And not gradient by gradient, with as many kernels each way."""
    made = passes(lambda ranks: HalfPrecision(ranks, torch.float16), in_a_bucket())
    assert [each.name for each in made] == ["_to_copy", "copy_"]


def test_gradients_apart_are_rounded_too() -> None:
    gradients = [x.clone() for x in in_a_bucket()]
    wanted = [x.half().float() for x in gradients]
    assert side_by_side(gradients) is None and side_by_side(in_a_bucket()).numel() == sum(s.numel() for s in SHAPES)
    for given in (gradients, in_a_bucket()):
        HalfPrecision(Alone(), torch.float16).sum(0, given)
        assert all(torch.equal(x, y) for x, y in zip(given, wanted, strict=True))


@pytest.mark.parametrize("rank", [1, 4])
def test_powersgd_makes_no_room_as_large_as_a_gradient(rank: int) -> None:
    """P and Q are thin, residuals are there, and P Qᵀ is made where the gradient was."""
    made = passes(lambda ranks: PowerSGD(ranks, rank), in_a_bucket())
    thin = 2 * 4 * 64 + sum(shape.numel() for shape in SHAPES if len(shape) == 1)  # P of all, and what is small
    assert max(each.numel for each in made) <= rank * 64 * 3 + thin < 64 * 48
