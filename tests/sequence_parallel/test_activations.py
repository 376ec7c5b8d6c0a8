"""What a rank keeps of a layer for backward is what Korthikanti et al. 2022 count, to the byte."""

from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from reference.cluster import Cluster
from reference.memory.korthikanti import TERMS, LayerShape, LayerSplit
from reference.memory.recompute import recomputed
from reference.memory.saved import saved_tensors, total
from reference.models.dropout import token_seeds
from reference.sequence_parallel import RingRegion, SequenceRegion
from reference.sequence_parallel.lab.layer import TransformerLayer
from reference.tensor_parallel import Region

from .conftest import on


@dataclass(frozen=True)
class Case:
    """A layer, and in what it computes."""

    sequence: int
    batch: int
    width: int
    heads: int
    dtype: torch.dtype = torch.bfloat16

    def on(self, t: int) -> LayerShape:
        """The paper's letters."""
        return LayerShape(self.sequence, self.batch, self.width, self.heads, t)


CASES = [
    Case(12, 1, 24, 12),
    Case(24, 2, 48, 12, torch.float16),
    Case(12, 3, 12, 12),  # heads of one feature
    Case(60, 1, 24, 24),  # more bytes for pairs of tokens than for tokens
]
RANKS = [1, 2, 3, 4, 6]
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: "x".join(map(str, astuple(case)[:4])))
sizes = pytest.mark.parametrize("t", RANKS)
slicing = pytest.mark.parametrize("make", [SequenceRegion, RingRegion], ids=lambda make: make.__name__)


def kept(group: ProcessGroup, make: type[Region], case: Case, selective: bool = False) -> list[int]:
    """Bytes of each tensor that waits for backward. Parameters and the seeds of dropout are there anyway."""
    torch.manual_seed(0)
    layer = TransformerLayer(case.width, case.heads, make(group)).to(case.dtype)
    if selective:
        layer.attention.core = partial(recomputed, layer.attention.core)
    seeds = token_seeds(0, 0, torch.arange(case.batch * case.sequence).view(case.batch, case.sequence))
    x = layer.region.local_tokens(torch.randn(case.batch, case.sequence, case.width, dtype=case.dtype)).clone()
    saved = saved_tensors(lambda: layer(x.requires_grad_(), seeds), but=[*layer.parameters(), seeds])
    return [one.bytes for one in saved if one.bytes]


@cases
@sizes
def test_in_tensor_parallelism_ten_of_34_bytes_are_on_every_rank(ranks: Cluster, case: Case, t: int) -> None:
    """s b h (10 + 24/t + 5 a s / (h t))"""
    s, b, h, a = case.sequence, case.batch, case.width, case.heads
    assert case.on(t).tensor() == s * b * (10 * h + 24 * h / t + 5 * a * s / t)
    assert [sum(found) for found in on(ranks, t, kept, Region, case)] == [case.on(t).tensor()] * t


@cases
@sizes
@slicing
def test_in_sequence_parallelism_everything_is_shared_out(
    ranks: Cluster, make: type[Region], case: Case, t: int
) -> None:
    """s b h (34 + 5 a s / h) / t"""
    assert case.on(t).tensor_sequence() == case.on(1).everything() / t
    assert [sum(found) for found in on(ranks, t, kept, make, case)] == [case.on(t).tensor_sequence()] * t


@cases
@pytest.mark.parametrize("t", [1, 4])
def test_without_pairs_of_tokens_it_is_34_bytes(ranks: Cluster, case: Case, t: int) -> None:
    """Selective recomputation: attention's core is run again."""
    for make, formula in (
        (Region, LayerShape.tensor_selective),
        (SequenceRegion, LayerShape.tensor_sequence_selective),
    ):
        assert [sum(found) for found in on(ranks, t, kept, make, case, True)] == [formula(case.on(t))] * t


@cases
@pytest.mark.parametrize("t", [1, 3])
@pytest.mark.parametrize("make", [Region, SequenceRegion], ids=lambda make: make.__name__)
def test_it_keeps_the_papers_tensors_one_by_one(ranks: Cluster, make: type[Region], case: Case, t: int) -> None:
    """Queries and keys are one term there, and two tensors here."""
    tokens, pairs = case.sequence * case.batch * case.width, case.heads * case.sequence**2 * case.batch
    formula = []
    for term in TERMS:
        count = 2 if term.tensor == "queries and keys" else 1
        among = t if make.slices_tokens or term.split is LayerSplit.TENSOR_PARALLEL else 1
        formula += [(term.per_token * tokens + term.per_pair * pairs) // (count * among)] * count
    assert [sorted(found) for found in on(ranks, t, kept, make, case)] == [sorted(formula)] * t


def test_the_last_example_is_ruled_by_pairs() -> None:
    """So that what grows with the square of the sequence is looked at, too."""
    assert CASES[-1].on(1).everything() > 2 * CASES[-1].on(1).tensor_sequence_selective()


@pytest.fixture
def one_of_eight() -> Iterator[ProcessGroup]:
    """A group of which this process is one rank, and the others do not exist."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # and with it the backend

    dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=8)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize("case", [Case(2048, 1, 12288, 96), Case(2048, 1, 20480, 128)], ids=["GPT-3", "MT-NLG"])
def test_layers_of_the_paper_keep_what_the_paper_says(one_of_eight: ProcessGroup, case: Case) -> None:
    """Two models of its table 3, at their size, on the 8 ranks that it uses, without the memory."""
    with torch.device("meta"):
        assert sum(kept(one_of_eight, Region, case)) == case.on(8).tensor()
        assert sum(kept(one_of_eight, Region, case, selective=True)) == case.on(8).tensor_selective()
        for make in (SequenceRegion, RingRegion):
            assert sum(kept(one_of_eight, make, case)) == case.on(8).tensor_sequence()
            assert sum(kept(one_of_eight, make, case, selective=True)) == case.on(8).tensor_sequence_selective()


def kept_by_torchs_own(case: Case) -> int:
    """Bytes of torch's LayerNorm, for those of one here."""
    norm, x = torch.nn.LayerNorm(case.width, dtype=case.dtype), torch.randn(case.batch, case.sequence, case.width)
    return total(saved_tensors(lambda: norm(x.to(case.dtype).requires_grad_()), but=norm.parameters()))


@cases
def test_what_torchs_norm_would_keep_more(case: Case) -> None:
    """Mean and deviation of each token, in float32: the paper leaves them out."""
    case = replace(case, dtype=torch.float32)
    assert kept_by_torchs_own(case) == case.batch * case.sequence * (4 * case.width + 2 * 4)
