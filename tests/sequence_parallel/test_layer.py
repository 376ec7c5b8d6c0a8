"""The classic transformer layer: the same on any number of ranks, in any kind of region, dropout included."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from reference.cluster import Cluster
from reference.collectives.default import over
from reference.models.dropout import token_seeds
from reference.sequence_parallel import RingRegion, SequenceRegion
from reference.sequence_parallel.lab.layer import LayerNorm, TransformerLayer
from reference.tensor_parallel import Region

from .conftest import EXACT, far, normal, on, share_of

BATCH, SEQUENCE, WIDTH, HEADS = 2, 12, 24, 12
REGIONS = pytest.mark.parametrize("make", [Region, SequenceRegion, RingRegion], ids=lambda make: make.__name__)
TWICE = 2 * EXACT  # two norms, four products and two sums, one after the other, there and back


def layer_of(make: Callable[[ProcessGroup], Region], group: ProcessGroup, probability: float) -> TransformerLayer:
    """Of random weights, norms and biases among them: the same whole layer on every rank, and this rank's part."""
    torch.manual_seed(3)
    layer = TransformerLayer(WIDTH, HEADS, make(group), probability, place=5).double()
    for index, parameter in enumerate(layer.outside()):
        nn.init.normal_(parameter, 0.5, 0.2, generator=torch.Generator().manual_seed(index))
    return layer


def trained(group: ProcessGroup, make: type[Region], probability: float = 0.2) -> dict[str, Tensor]:
    """What a layer makes of random tokens, and all gradients, as they lie on this rank."""
    layer = layer_of(make, group, probability)
    seeds = token_seeds(1, 2, torch.arange(BATCH * SEQUENCE).view(BATCH, SEQUENCE))
    x, gradient = (
        layer.region.local_tokens(normal(name, BATCH, SEQUENCE, WIDTH)).clone() for name in ("x", "gradient")
    )
    y = layer(x.requires_grad_(), seeds)
    y.backward(gradient)
    if layer.region.slices_tokens:
        for parameter in layer.outside():
            over(group).all_reduce(parameter.grad)
    return {"y": y.detach(), "x": x.grad} | {name: p.grad for name, p in layer.named_parameters()}


@pytest.fixture(scope="module")
def whole(ranks: Cluster) -> dict[str, Tensor]:
    """On one rank."""
    return on(ranks, 1, trained, Region)[0]


@pytest.mark.parametrize("t", [1, 2, 3, 4, 6])
@REGIONS
def test_any_number_of_ranks_computes_the_same(
    ranks: Cluster, whole: dict[str, Tensor], make: type[Region], t: int
) -> None:
    """Output and every gradient, with the same elements dropped."""
    for rank, found in enumerate(on(ranks, t, trained, make)):
        off = {name: far(own, share_of(whole[name], own, rank, t)) for name, own in found.items()}
        del off["attention.key.bias"]  # its true gradient is zero: all scores of a query move together
        assert max(off.values()) < TWICE, (rank, off)
        assert found["attention.key.bias"].abs().max() < EXACT


def test_dropout_drops(ranks: Cluster, whole: dict[str, Tensor]) -> None:
    """Else the same elements would be dropped in any layout, too."""
    (without,) = on(ranks, 1, trained, Region, 0.0)
    assert far(without["y"], whole["y"]) > 0.1


def attention_noise(group: ProcessGroup) -> Tensor:
    layer, seeds = layer_of(Region, group, 0.2), torch.arange(BATCH * SEQUENCE).view(BATCH, SEQUENCE)
    return layer.attention.seeds_of_heads(seeds, HEADS // group.size())


def test_each_head_of_each_query_has_its_own_noise(ranks: Cluster) -> None:
    heads = torch.cat(on(ranks, 4, attention_noise), 1)
    assert heads.shape == (BATCH, HEADS, SEQUENCE)
    assert len(heads.unique()) == heads.numel()


def changed_by_the_last_token(group: ProcessGroup) -> Tensor:
    """Which tokens' outputs."""
    layer, x = layer_of(Region, group, 0.0), normal("x", 1, SEQUENCE, WIDTH)
    seeds, other = torch.zeros(1, SEQUENCE, dtype=torch.int64), x.clone()
    other[:, -1] = 1.0
    return (layer(x, seeds) != layer(other, seeds)).any(-1)[0]


def test_no_token_sees_one_that_comes_later(ranks: Cluster) -> None:
    (changed,) = on(ranks, 1, changed_by_the_last_token)
    assert changed.nonzero().flatten().tolist() == [SEQUENCE - 1]


def normalised(norm: nn.LayerNorm) -> list[Tensor]:
    """What it makes of random tokens, and the gradients."""
    with torch.no_grad():
        for name, parameter in norm.named_parameters():
            parameter.copy_(normal(name, WIDTH))
    x = normal("x", BATCH, SEQUENCE, WIDTH).requires_grad_()
    y = norm(x)
    y.backward(normal("gradient", BATCH, SEQUENCE, WIDTH))
    return [y.detach(), x.grad, norm.weight.grad, norm.bias.grad]


def test_a_norm_that_keeps_less_is_torchs_norm() -> None:
    both = (normalised(norm(WIDTH, dtype=torch.float64)) for norm in (LayerNorm, nn.LayerNorm))
    assert all(torch.equal(*pair) for pair in zip(*both, strict=True))
