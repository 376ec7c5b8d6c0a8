"""A ring is as fast as the slowest rank of each step: shown with ranks that sleep, in virtual time."""

from collections.abc import Callable

import pytest

from reference.choices import ContextLayout
from reference.cluster import Cluster
from reference.context_parallel import cost
from reference.context_parallel.lab.published import EFFICIENCIES, LLAMA3_405B
from reference.context_parallel.lab.sleeping import BACKWARD, area, pairs, replayed
from reference.context_parallel.layouts import layout
from reference.context_parallel.tokens import CAUSAL, Mask
from reference.trace.activity import Doing

TOKENS = 12  # of a rank
UNIT = 1e-3  # seconds


@pytest.fixture
def eight(clusters: Callable[..., Cluster]) -> Cluster:
    return clusters(8)


@pytest.mark.parametrize("mask", [CAUSAL, Mask(causal=False), Mask(window=17)])
@pytest.mark.parametrize("kind", ContextLayout)
def test_ranks_work_as_much_of_the_time_as_the_formula_says(eight: Cluster, kind: ContextLayout, mask: Mask) -> None:
    """Never less: the formula lets all ranks wait for the slowest of each step, and here they wait for neighbours."""
    held = layout(kind, 8 * TOKENS, 8)
    slept = replayed(eight, held, pairs, UNIT, mask)
    work = UNIT * (1 + BACKWARD) * sum(cost.pairs(held, rank, mask) for rank in range(8))
    assert sum(a.end - a.begin for own in slept.ranks for a in own) == pytest.approx(work, rel=1e-9)
    assert slept.efficiency >= cost.ring_efficiency(held, mask) - 1e-9
    if kind is not ContextLayout.STRIPED and mask.window is None:
        assert slept.efficiency == pytest.approx(cost.ring_efficiency(held, mask), rel=1e-9)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_contiguous_ring_wastes_almost_half(clusters: Callable[..., Cluster], n: int) -> None:
    """(n + 1) / 2n where a block on the diagonal costs as much as any other, n / (2n - 1) where it costs half."""
    cluster = clusters(n)
    contiguous, zigzag = (layout(kind, n * TOKENS, n) for kind in (ContextLayout.CONTIGUOUS, ContextLayout.ZIGZAG))
    assert replayed(cluster, contiguous, area, UNIT).efficiency == pytest.approx((n + 1) / (2 * n), rel=1e-9)
    whole, diagonal = TOKENS**2, TOKENS * (TOKENS + 1) / 2
    exact = (n * diagonal + n * (n - 1) / 2 * whole) / (n * (diagonal + (n - 1) * whole))
    assert replayed(cluster, contiguous, pairs, UNIT).efficiency == pytest.approx(exact, rel=1e-9)
    assert exact == pytest.approx(n / (2 * n - 1), abs=0.03)
    assert replayed(cluster, zigzag, area, UNIT).efficiency == pytest.approx(1, rel=1e-9)
    assert replayed(cluster, zigzag, pairs, UNIT).efficiency == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("kernel", [area, pairs])
def test_zigzag_is_at_least_1_6_times_as_fast_on_eight_ranks(eight: Cluster, kernel: Callable) -> None:
    contiguous, zigzag = (
        replayed(eight, layout(kind, 8 * TOKENS, 8), kernel, UNIT).seconds
        for kind in (ContextLayout.CONTIGUOUS, ContextLayout.ZIGZAG)
    )
    assert contiguous / zigzag >= 1.6


def test_messages_hide_where_a_block_takes_longer_and_add_up_where_it_does_not(eight: Cluster) -> None:
    """Full attention, forward: n blocks, and n - 1 messages, of which a longer one sets the pace."""
    held, mask = layout(ContextLayout.CONTIGUOUS, 8 * TOKENS, 8), Mask(causal=False)
    block = UNIT * TOKENS**2

    def forward(message: float) -> float:
        slept = replayed(eight, held, pairs, UNIT, mask, message)
        return max(a.end for own in slept.ranks for a in own if a.doing is Doing.FORWARD)

    assert forward(0.9 * block) == pytest.approx(8 * block)
    assert forward(1.5 * block) == pytest.approx(7 * 1.5 * block + block)


def test_published_rings_lie_below_what_a_ring_can_reach_and_zigzag_above_it() -> None:
    """Eight ranks: whatever a kernel does on the diagonal, contiguous rings end at 9/16."""
    assert all(row.contiguous < 9 / 16 < row.zigzag < 1 for row in EFFICIENCIES)
    assert all((row.striped is None) == row.documents != (row.all_gather is None) for row in EFFICIENCIES)


def test_llama_s_axes_make_its_gpus_and_its_batch() -> None:
    assert all(row.tensor * row.context * row.pipe * row.data == row.gpus for row in LLAMA3_405B)
    assert {row.tokens for row in LLAMA3_405B} == {2**24}
