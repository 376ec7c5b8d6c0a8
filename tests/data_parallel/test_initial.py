"""Replicas start from the same bits, and one bit is enough to say which is off."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.cluster import Cluster
from reference.data_parallel.initial import broadcast_state, find_drift, fingerprint, replicas_agree, together
from reference.trace import Op

Clusters = Callable[..., Cluster]


class Mixed(nn.Module):
    """State of many kinds: tied and frozen, not contiguous, empty, in seven dtypes, kept by no checkpoint."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.randn(shape, generator=generator).to(dtype)

        self.first, self.frozen = nn.Parameter(random(5, 3)), nn.Parameter(random(4), requires_grad=False)
        self.tied = self.first
        self.transposed = nn.Parameter(random(3, 4).t())
        self.brief, self.long = nn.Parameter(random(7).bfloat16()), nn.Parameter(random(2).double())
        self.nothing = nn.Parameter(random(0, 3))
        self.register_buffer("steps", torch.tensor(seed))
        self.register_buffer("table", random(3, dtype=torch.int16))
        self.register_buffer("scales", random(3, dtype=torch.float8_e4m3fn))
        self.register_buffer("mask", random(9) > 0)
        self.register_buffer("scratch", random(2, 2), persistent=False)


def state(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def broadcast_from(root: int, ranks: list[int]) -> dict[str, Tensor] | None:
    """This rank's state after a broadcast in a group; None outside of it."""
    group = dist.new_group(ranks)
    if dist.get_rank() not in ranks:
        return None
    module = Mixed(seed=dist.get_rank())
    broadcast_state(module, group, root)
    assert module.tied is module.first
    return {name: x.detach() for name, x in state(module).items()}


@pytest.mark.parametrize(("ranks", "root"), [([0], 0), ([0, 1], 1), ([0, 1, 2], 0), ([0, 2, 3], 1)])
def test_all_have_the_roots_state(clusters: Clusters, ranks: list[int], root: int) -> None:
    expected = state(Mixed(seed=ranks[root]))
    results = clusters(max(ranks) + 1).run(broadcast_from, root, ranks)
    for rank in ranks:
        assert results[rank].keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(results[rank][name], tensor), name


def test_tensors_of_a_dtype_travel_together(clusters: Clusters) -> None:
    _, trace = clusters(2).trace(broadcast_from, 0, [0, 1])
    assert [event.op for event in trace.events[0]] == [Op.BROADCAST] * len({x.dtype for x in state(Mixed(0)).values()})
    assert sum(event.bytes for event in trace.events[0]) == sum(x.nbytes for x in state(Mixed(0)).values())


@pytest.mark.parametrize(
    ("most", "lengths"), [(64, [[5, 3], [4], [9]]), (104, [[5, 3, 4], [9]]), (1, [[5], [3], [4], [9]])]
)
def test_messages_have_a_size_limit(most: int, lengths: list[list[int]]) -> None:
    """A large tensor travels alone; one of another dtype never with the others."""
    tensors = [torch.zeros(length, dtype=torch.float64) for length in (5, 3, 4, 9)]
    messages = list(together([*tensors, torch.zeros(2)], most))
    assert [[len(each) for each in message] for message in messages] == [*lengths, [2]]


def drift(changes: dict[int, tuple[str, int]]) -> tuple[str, list[int]] | None:
    """What is found where some ranks have flipped one bit: rank -> (tensor, element)."""
    tensors = {name: x.detach() for name, x in state(Mixed(seed=0)).items()}
    if dist.get_rank() in changes:
        name, element = changes[dist.get_rank()]
        bits = tensors[name].view(-1).view(torch.uint8)
        bits[element * tensors[name].element_size()] ^= 1
    found = find_drift(tensors, dist.group.WORLD)
    assert replicas_agree(tensors, dist.group.WORLD) == (found is None)
    return found


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({2: ("first", 14)}, ("first", [2])),
        ({0: ("mask", 3)}, ("mask", [0])),
        ({1: ("steps", 0), 2: ("long", 1)}, ("long", [2])),
        ({0: ("brief", 0), 2: ("brief", 1), 1: ("brief", 1)}, ("brief", [0, 3])),
        ({2: ("first", 1), 3: ("first", 1)}, ("first", [2, 3])),
    ],
    ids=["nothing", "a parameter", "the root's buffer", "the first of two", "the few", "as many: those after rank 0"],
)
def test_one_bit_is_found(clusters: Clusters, changes: dict, expected: tuple | None) -> None:
    assert clusters(4).run(drift, changes) == [expected] * 4


def test_the_value_that_the_largest_number_of_ranks_has_is_right(clusters: Clusters) -> None:
    """Two of five: no majority."""

    def on_rank() -> tuple[str, list[int]] | None:
        return find_drift({"x": torch.tensor([1, 2, 2, 3, 4][dist.get_rank()])}, dist.group.WORLD)

    assert clusters(5).run(on_rank) == [("x", [0, 3, 4])] * 5


def test_a_tensor_of_another_name_is_another_one(clusters: Clusters) -> None:
    def on_rank() -> tuple[str, list[int]] | None:
        return find_drift({"first" if dist.get_rank() else "second": torch.zeros(2)}, dist.group.WORLD)

    assert clusters(3).run(on_rank) == [("second", [0]), ("first", [0]), ("first", [0])]


def test_what_is_sent_is_eight_bytes_for_each_tensor(clusters: Clusters) -> None:
    _, trace = clusters(3).trace(drift, {})
    count = len(state(Mixed(0)))
    assert trace.bytes_sent == [2 * 8 * count * 2] * 3  # two questions, to two others


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])),
        (torch.tensor([1.0, -2.0]), torch.tensor([-1.0, 2.0])),
        (torch.tensor([0.0]), torch.tensor([-0.0])),
        (torch.tensor([1.0]), torch.tensor([1.0]).nextafter(torch.tensor([2.0]))),
        (torch.zeros(3), torch.zeros(4)),
        (torch.tensor([1j]), torch.tensor([-1j])),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(3), torch.zeros(3, dtype=torch.int32)),
    ],
    ids=["order", "two signs", "the sign of zero", "the last bit", "length", "complex", "shape", "dtype"],
)
def test_fingerprints_tell_what_sums_and_norms_do_not(one: Tensor, other: Tensor) -> None:
    assert fingerprint(one) == fingerprint(one.clone()) != fingerprint(other)


def test_a_nan_is_like_itself() -> None:
    assert fingerprint(torch.tensor([float("nan")])) == fingerprint(torch.tensor([float("nan")]))


def test_fingerprints_look_at_values_in_order_whatever_their_strides() -> None:
    x = torch.randn(6, 4)
    assert fingerprint(x.t()) == fingerprint(x.t().contiguous()) != fingerprint(x)


def test_a_tensor_is_hashed_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(100)
    whole = fingerprint(x)
    monkeypatch.setattr("reference.data_parallel.initial.BLOCK", 7)
    assert fingerprint(x) == whole


def test_no_tensors_agree(clusters: Clusters) -> None:
    assert clusters(2).run(lambda: replicas_agree({}, dist.group.WORLD)) == [True, True]
