"""What `FullySharded` cannot shard is refused when it is made, in one line that says what would work."""

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from reference.cluster import Cluster
from reference.errors import BadInput
from reference.zero import FullySharded, units_of

from ..data_parallel.conftest import in_group

Units = Sequence[Sequence[nn.Module]]


class Net(nn.Module):
    """A list of blocks with a layer each, and a layer after them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(2))
        self.head = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def refusal(
    group: ProcessGroup,
    units: Callable[[Net], Units] = units_of,
    device: str = "cpu",
    times: int = 1,
    codes: torch.dtype = torch.float32,
) -> str:
    """What is said of a `Net` with these units, on this device, sharded so many times, and with codes of this dtype."""
    model = Net().to(device)
    model.codes = nn.Parameter(torch.ones(2, dtype=codes), requires_grad=False)
    with pytest.raises(BadInput) as error:
        for _ in range(times):
            FullySharded(model, group, units=units(model), device=torch.device("cpu"))
    return str(error.value)


@pytest.mark.parametrize(
    ("units", "said"),
    [
        (lambda net: [[net.blocks]], "a ModuleList computes nothing, so no hook can tell when to gather it"),
        (lambda net: [[nn.Linear(3, 3)]], "a Linear in units is no module of the model"),
        (lambda net: [net.blocks[0], net.head], "a unit is a list of modules that are gathered together: units="),
        (lambda net: [[net.blocks[0]], [net.blocks[0][0]]], "a Linear lies within a unit before it"),
    ],
)
def test_units_that_no_rank_could_gather(ranks: Cluster, units: Callable[[Net], Units], said: str) -> None:
    assert ranks.run(in_group, 1, refusal, units)[-1].startswith(said)


def test_a_model_that_is_sharded_already(ranks: Cluster) -> None:
    assert "has no memory" in ranks.run(in_group, 1, partial(refusal, times=2))[-1]


def test_a_model_without_values(ranks: Cluster) -> None:
    assert "is on the meta device" in ranks.run(in_group, 1, partial(refusal, device="meta"))[-1]


def test_frozen_integers(ranks: Cluster) -> None:
    said = ranks.run(in_group, 1, partial(refusal, codes=torch.int64))[-1]
    assert said == "codes is torch.int64, and a unit holds floating point: make it a buffer"


def ignoring_complex(group: ProcessGroup) -> str:
    model = Net()
    model.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(BadInput) as error:
        FullySharded(model, group, ignored=[model.phase])
    return str(error.value)


def test_what_is_ignored_and_learns_is_real(ranks: Cluster) -> None:
    """The masters are real, so the imaginary part would be lost."""
    said = ranks.run(in_group, 1, ignoring_complex)[-1]
    assert said == "phase is complex: make its real and its imaginary part two parameters"


def test_a_block_may_be_used_twice_and_containers_are_left_to_the_model(ranks: Cluster) -> None:
    def on_rank(group: ProcessGroup) -> Tensor:
        model = Net()
        model.blocks[1], model.scales = model.blocks[0], nn.ParameterList([torch.ones(3)])
        expected = model(torch.ones(1, 3))
        assert len(units_of(model)) == 3
        FullySharded(model, group)
        return model(torch.ones(1, 3)) - expected

    assert ranks.run(in_group, 2, on_rank)[-1] == 0
