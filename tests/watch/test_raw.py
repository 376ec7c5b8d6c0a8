"""What the watch reads of a tensor's memory: every byte counts, and torch's own answer is the oracle."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from reference.cluster.watch import raw

FLOATING = [torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128]


@pytest.mark.parametrize("start", [0, 1, 3])
@pytest.mark.parametrize("size", [1, 7, 8, 29])
def test_the_checksum_hears_of_every_byte(start: int, size: int) -> None:
    data = torch.arange(start + size, dtype=torch.uint8)[start:]
    before = raw.checksum(*raw.stretch(data))
    assert raw.checksum(*raw.stretch(data.clone())) == before, "it is of the bytes, wherever they are"
    for index in range(size):
        data[index] += 1
        assert raw.checksum(*raw.stretch(data)) != before
        data[index] -= 1
    assert raw.checksum(*raw.stretch(data)) == before


def test_the_checksum_hears_of_numbers_that_change_places() -> None:
    x = torch.arange(6.0, dtype=torch.float64)
    before = raw.checksum(*raw.stretch(x))
    x.numpy()[:] = x.numpy()[::-1].copy()
    assert raw.checksum(*raw.stretch(x)) != before


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_the_floats_are_the_tensor_s_own(dtype: torch.dtype) -> None:
    x = torch.randn(3, 5, dtype=dtype)[1:]
    numbers = raw.floats(x)
    assert numbers is not None
    assert torch.equal(torch.from_numpy(numbers.copy()), x.flatten())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(4, dtype=torch.bfloat16),
        torch.ones(4, dtype=torch.int64),
        torch.ones(4, 4).t()[1:],
        torch.ones(0),
        torch.ones(4, device="meta"),
        torch.eye(3).to_sparse(),
    ],
    ids=["bfloat16", "int64", "strided", "empty", "meta", "sparse"],
)
def test_what_it_can_t_read_it_leaves_to_torch(tensor: torch.Tensor) -> None:
    assert raw.floats(tensor) is None


def test_no_mode_hears_of_a_look_at_the_bytes() -> None:
    heard = []

    class Listen(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            heard.append(func)
            return func(*args, **(kwargs or {}))

    start, end = raw.stretch(torch.ones(100))
    with Listen():
        raw.checksum(start, end)
    assert not heard
