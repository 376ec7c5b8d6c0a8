"""What the watch reads of a tensor's memory: every byte counts, and torch's own answer is the oracle."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from reference.cluster.watch import raw
from reference.cluster.watch.flights import Flights
from reference.cluster.watch.order import Order
from reference.trace import Op
from reference.trace.calls import Call

FLOATING = [torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128]


@pytest.mark.parametrize("start", [0, 1, 3])
@pytest.mark.parametrize("size", [1, 7, 8, 29])
def test_the_checksum_hears_of_every_byte(start: int, size: int) -> None:
    data = torch.arange(start + size, dtype=torch.uint8)[start:]
    before = raw.checksum(data)
    assert raw.checksum(data.clone()) == before, "it is of the bytes, wherever they are"
    for index in range(size):
        data[index] += 1
        assert raw.checksum(data) != before
        data[index] -= 1
    assert raw.checksum(data) == before


def test_the_checksum_hears_of_numbers_that_change_places() -> None:
    x = torch.arange(6.0, dtype=torch.float64)
    before = raw.checksum(x)
    x.numpy()[:] = x.numpy()[::-1].copy()
    assert raw.checksum(x) != before


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_the_floats_are_the_tensor_s_own(dtype: torch.dtype) -> None:
    x = torch.randn(3, 5, dtype=dtype)[1:]
    numbers = raw.floats(x)
    assert numbers is not None
    assert torch.equal(torch.from_numpy(numbers.copy()), x.flatten())


def test_a_tensor_in_one_piece_is_read_in_whatever_order_it_lies() -> None:
    x = torch.arange(24.0).view(2, 3, 4)
    numbers = raw.floats(x.permute(2, 0, 1))
    assert numbers is not None and sorted(numbers) == list(range(24))
    assert raw.stretch(x.permute(2, 0, 1)) == raw.stretch(x)
    assert raw.stretch(x[:, ::2]) == raw.stretch(x[:, :, :3]) == raw.stretch(x[:, :1].expand(2, 3, 4)) == (0, 0)


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


def test_no_dispatch_mode_hears_of_a_look_at_the_bytes() -> None:
    heard = []

    class Listen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            heard.append(func)
            return func(*args, **(kwargs or {}))

    x = torch.ones(100)
    with Listen():
        raw.checksum(x)
        raw.floats(x)
        assert not heard
        x.sum()
    assert heard


def test_a_buffer_that_gets_other_memory_on_its_way_was_changed() -> None:
    x, flights = torch.ones(1 << 20), Flights(Order())
    call = Call(Op.SEND, (0, 1), [x], [], 1)
    flights.begin(call, lend=True)
    x.data = torch.zeros(1 << 20)  # the old memory is gone: reading it would end the process
    flight = flights.settle(call)
    assert flight is not None
    assert flight.call is call
