"""A model on the meta device becomes shards: the same ones, and no rank ever has it whole."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.cluster import Cluster
from reference.memory.precision import PRECISIONS
from reference.models import GPT, GPTConfig, create, initial_value
from reference.zero import FullySharded

from ..data_parallel.conftest import in_group, members, records
from ..data_parallel.training import Case, same_bits
from .forms import from_meta
from .peak import Peak

CONFIG = GPTConfig(layers=6, width=32, heads=4, kv_heads=4, hidden=64, vocabulary=64)
EMBEDDING, BLOCK = 64 * 32, 4 * 32**2 + 3 * 32 * 64 + 2 * 32
LARGEST = 64 * 32  # parameter
FP32 = PRECISIONS["fp32"]
GIANT = GPTConfig(layers=18, width=8192, heads=64, kv_heads=8, hidden=28_672, vocabulary=128_256)


@pytest.mark.parametrize("n", [1, 3])
def test_it_trains_as_one_that_was_built_whole_to_the_last_bit(ranks: Cluster, n: int) -> None:
    cases = [Case("FSDP", make, precision="fp32") for make in (FullySharded, from_meta)]
    whole, meta = records(ranks, n, cases)
    assert same_bits(whole[0], meta[0])


def peak_of_building(group: ProcessGroup, device: str) -> int:
    """Bytes, of building a model there and sharding it."""
    with Peak() as peak:
        model = create(GPT, CONFIG, device=device)
        value = partial(initial_value, layers=CONFIG.layers, seed=0)
        FullySharded(model, group, FP32, value=value, device=torch.device("cpu"))
    return peak.bytes


def test_it_never_exists_whole(ranks: Cluster) -> None:
    """A rank has its shards, and at most: a unit's flat tensor that is about to be freed, and a whole value or two."""
    n = 4
    whole, share = 4 * CONFIG.parameters, 4 * CONFIG.parameters // n
    most = share + 4 * (BLOCK + 3 * LARGEST)
    assert most < 0.75 * whole
    found = ranks.run(in_group, n, peak_of_building, "meta")
    assert all(share < found[rank] < most for rank in members(n))
    found = ranks.run(in_group, n, peak_of_building, "cpu")
    assert all(found[rank] > whole + share for rank in members(n))  # one that is built first is there whole


def asked_for(group: ProcessGroup) -> tuple[list[str], list[str], list[str]]:
    """Names whose values a rank asks for, those of its parts, and those of parameters that still have no values."""
    asked: list[str] = []

    def value(name: str, shape: torch.Size) -> Tensor:
        asked.append(name)
        return torch.zeros(shape)

    model = create(GPT, CONFIG, device="meta")
    form = FullySharded(model, group, FP32, value=value, device=torch.device("cpu"))
    left = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    return asked, [part.name for part in form.parts], left


def test_a_rank_asks_for_what_it_has_a_part_of(ranks: Cluster) -> None:
    found = ranks.run(in_group, 8, asked_for)
    names = dict(create(GPT, CONFIG, device="meta").named_parameters()).keys()
    for asked, parts, left in found:
        assert sorted(asked) == sorted(parts)
        assert len(asked) < len(names) / 2
        assert left == []
    assert {name for asked, _, _ in found for name in asked} == names


def plan_of_a_giant(group: ProcessGroup) -> tuple[set[str], int]:
    """Devices of the shards, and elements of this rank's parts, of a model of 70 GB that stays on the meta device."""
    form = FullySharded(create(GPT, GIANT, device="meta"), group, PRECISIONS["bf16"])
    return {part.master.device.type for part in form.parts}, sum(part.master.numel() for part in form.parts)


def test_shards_may_stay_on_the_meta_device(ranks: Cluster) -> None:
    """A plan for a model that fits nowhere here."""
    found = ranks.run(in_group, 4, plan_of_a_giant)
    assert all(found[rank][0] == {"meta"} for rank in members(4))
    assert sum(found[rank][1] for rank in members(4)) == GIANT.parameters
