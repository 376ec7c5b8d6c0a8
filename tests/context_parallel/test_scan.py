"""Linear attention over ranks equals a loop over tokens in one process, through its backward."""

from math import ceil, log2

import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.cluster import Cluster
from reference.collectives.default import over
from reference.context_parallel.scan import Scan, chain, linear_attention, tree

from ..data_parallel.conftest import in_group
from .conftest import EXACT, normal, on

BATCH, HEADS, EACH, D, E = 2, 3, 4, 3, 5  # sequences, heads, tokens of a rank, features of keys and of values


DECAYS = {  # of numbers, for each token
    "some": lambda x: -x.abs(),
    "none": torch.zeros_like,
    "documents": lambda x: -x.abs().masked_fill(torch.arange(x.shape[-1]) % 3 == 0, torch.inf),  # of three tokens
}


def numbers(n: int, decays: str) -> list[Tensor]:
    """Queries, keys, values, logarithms of decays, and the gradient of what comes out, for all tokens."""
    shapes = {"q": (D,), "k": (D,), "v": (E,), "decay": (), "gradient": (E,)}
    q, k, v, decay, gradient = (normal(name, BATCH, HEADS, n * EACH, *last) for name, last in shapes.items())
    return [q, k, v, DECAYS[decays](decay), gradient]


def token_by_token(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor) -> Tensor:
    """As it is written: a state that each token decays, adds to and reads."""
    state, outs = torch.zeros(BATCH, HEADS, D, E, dtype=query.dtype), []
    for t in range(query.shape[2]):
        state = state * log_decay[..., t].exp()[..., None, None] + key[..., t, :, None] * value[..., t, None, :]
        outs.append((query[..., t, None, :] @ state).squeeze(-2))
    return torch.stack(outs, dim=2)


def on_a_rank(group: ProcessGroup, scan: Scan, n: int, decays: str) -> list[Tensor]:
    mine = [x.chunk(n, dim=2)[group.rank()].clone() for x in numbers(n, decays)]
    leaves = [x.requires_grad_() for x in mine[:4]]
    out = linear_attention(*leaves, over(group), scan)
    return [out.detach(), *torch.autograd.grad(out, leaves, mine[4])]


@pytest.mark.parametrize("decays", DECAYS)
@pytest.mark.parametrize("scan", [chain, tree])
@pytest.mark.parametrize("n", range(1, 9))
def test_any_number_of_ranks_equals_one_process(ranks: Cluster, n: int, scan: Scan, decays: str) -> None:
    *given, gradient = numbers(n, decays)
    leaves = [x.requires_grad_() for x in given]
    out = token_by_token(*leaves)
    expected = [out.detach(), *torch.autograd.grad(out, leaves, gradient)]
    parts = on(ranks, n, on_a_rank, scan, n, decays)
    for right, *found in zip(expected, *parts, strict=True):
        assert float((torch.cat(found, dim=2) - right).abs().max()) < EXACT * float(right.abs().max())


def with_strong_decay(group: ProcessGroup) -> bool:
    """Whether all gradients are numbers where a token leaves e^-1000 of what was before."""
    q, k, v, decay, _ = numbers(group.size(), "some")
    mine = [x.chunk(group.size(), dim=2)[group.rank()].clone().requires_grad_() for x in (q, k, v, 1000 * decay)]
    linear_attention(*mine, over(group)).sum().backward()
    return all(bool(x.grad.isfinite().all()) for x in mine)


def test_a_decay_that_forgets_all_gives_no_nan(ranks: Cluster) -> None:
    assert all(on(ranks, 4, with_strong_decay))


def in_float32(group: ProcessGroup) -> float:
    """How far float32 is from float64 over many tokens that each leave 1 / e or less: of the largest element."""
    q, k, v, decay = (
        normal(name, 1, 1, 1000, *last) for name, last in {"q": (D,), "k": (D,), "v": (E,), "a": ()}.items()
    )
    exact = linear_attention(q, k, v, -1 - decay.abs(), over(group))
    found = linear_attention(*(x.float() for x in (q, k, v, -1 - decay.abs())), over(group))
    return float((found - exact).abs().max() / exact.abs().max())


def test_many_tokens_with_strong_decays_keep_their_digits(ranks: Cluster) -> None:
    """Ten units in the last place: products of a few numbers, in which no sum of thousands of logarithms is left."""
    assert on(ranks, 1, in_float32)[0] < 10 * torch.finfo(torch.float32).eps


def only_forward(group: ProcessGroup, scan: Scan) -> None:
    state = normal("state", BATCH, HEADS, D, E)
    scan(torch.ones(BATCH, HEADS, dtype=state.dtype), state, over(group), False)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_a_tree_takes_as_many_steps_as_distances_double(ranks: Cluster, n: int) -> None:
    """And a chain as many as there are ranks but one; a rank of a chain sends one state, and no decay."""
    state, decay = BATCH * HEADS * D * E, BATCH * HEADS
    _, trace = ranks.trace(in_group, n, only_forward, tree)
    assert trace.steps == ceil(log2(n))
    assert max(trace.bytes_sent) <= ceil(log2(n)) * (state + decay) * 8
    _, trace = ranks.trace(in_group, n, only_forward, chain)
    assert trace.steps == n - 1 and max(trace.bytes_sent) == state * 8
