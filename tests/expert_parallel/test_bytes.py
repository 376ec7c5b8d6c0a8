"""What the formula says of whole and of cut experts is what a layer over ranks sends."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.collectives.communicator import Native
from reference.expert_parallel.answers.sharing import bytes_of_experts
from reference.expert_parallel.dispatch import Dispatch

TOKENS, TOP_K, WIDTH, EXPERTS, DOUBLE = 12, 2, 3, 4, 8
COUNT = 8  # bytes of a number of rows


def there_and_back(ep: int, etp: int) -> None:
    """A layer whose choices fall evenly on experts, forward and backward."""
    rank = dist.get_rank()
    whole = [dist.new_group([*range(first, ep * etp, etp)]) for first in range(etp)][rank % etp]
    cut = [dist.new_group([*range(first * etp, (first + 1) * etp)]) for first in range(ep)][rank // etp]
    dispatch = Dispatch(Native(whole), EXPERTS, Native(cut) if etp > 1 else None)
    x = torch.ones(1, TOKENS, WIDTH, dtype=torch.float64, requires_grad=True)
    chosen = (torch.arange(TOKENS * TOP_K) % EXPERTS).view(1, TOKENS, TOP_K)
    weights = torch.ones(1, TOKENS, TOP_K, dtype=torch.float64)
    dispatch.start(lambda rows, counts: rows * 2, x, chosen, weights)().sum().backward()


@pytest.mark.parametrize(("ep", "etp"), [(4, 1), (1, 4), (2, 2)])
def test_a_layer_sends_what_the_formula_says(clusters: Callable[..., Cluster], ep: int, etp: int) -> None:
    _, trace = clusters(4).trace(there_and_back, ep, etp)
    counts = COUNT * (EXPERTS // ep) * ((ep - 1) + (etp - 1) * ep * (etp > 1))
    assert set(trace.bytes_sent) == {sum(bytes_of_experts(TOKENS, TOP_K, WIDTH, DOUBLE, ep, etp)) + counts}


@pytest.mark.parametrize("ep", [2, 4, 8, 64])
def test_whole_experts_send_less_than_all_rows_and_cut_ones_more_with_each_rank(ep: int) -> None:
    rows = 4 * 4096 * 8 * 7168 * 2
    assert bytes_of_experts(4096, 8, 7168, 2, ep, 1)[0] < rows
    assert bytes_of_experts(4096, 8, 7168, 2, 1, ep)[1] == (ep - 1) * rows
