"""Every sample once in an epoch, in an order that does not depend on which rank reads it, and on from anywhere."""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader

from reference.cluster import Cluster
from reference.data_parallel.answers.sampler import ShardedSampler, places, share
from reference.errors import BadInput
from reference.models.data import Batches, order

sizes = st.integers(1, 60)


def ranks_of(sampler: ShardedSampler, world_size: int) -> list[ShardedSampler]:
    return [replace(sampler, rank=rank, world_size=world_size) for rank in range(world_size)]


def steps_of(sampler: ShardedSampler, world_size: int) -> list[list[int]]:
    """What all ranks together read in each step of what is left of the epoch, rank by rank."""
    rounds = itertools.zip_longest(*ranks_of(sampler, world_size), fillvalue=[])
    return [chain(shares) for shares in rounds]


def chain(lists: Iterable[list]) -> list:
    return list(itertools.chain.from_iterable(lists))


@given(sizes, st.integers(0, 20), st.integers(1, 8), st.integers(0, 3))
def test_an_epoch_reads_every_sample_once(samples: int, more: int, n: int, seed: int) -> None:
    read = chain(steps_of(ShardedSampler(samples, n + more, seed=seed), n))
    assert sorted(read) == list(range(samples))


@given(sizes, st.integers(0, 20), st.integers(1, 8))
def test_what_a_step_reads_does_not_depend_on_the_number_of_ranks(samples: int, more: int, n: int) -> None:
    sampler = ShardedSampler(samples, n + more)
    assert steps_of(sampler, n) == steps_of(sampler, 1)


@given(sizes, st.lists(st.tuples(st.integers(1, 8), st.integers(0, 9), st.integers(0, 12)), min_size=1, max_size=5))
@settings(max_examples=60)
def test_a_run_that_changes_ranks_and_batch_loses_and_repeats_nothing(samples: int, parts: list) -> None:
    """Parts of a run on (n ranks, a batch of n + more, so many steps) read one uninterrupted stream."""
    consumed, read = 0, []
    for n, more, steps in parts:
        sampler = ShardedSampler(samples, n + more, consumed=consumed)
        epochs, stop = [sampler], sampler.after(steps)
        while epochs[-1].epoch < stop.epoch:
            epochs.append(epochs[-1].next_epoch())
        read += chain(chain(steps_of(each, n) for each in epochs)[:steps])
        consumed = stop.consumed
    epochs = (order(samples, 0, epoch).tolist() for epoch in range(consumed // samples + 1))
    assert read == chain(epochs)[:consumed]


@given(sizes, st.integers(1, 20), st.integers(0, 12), st.integers(1, 8))
def test_shares_of_a_step_differ_by_at_most_one(samples: int, batch: int, step: int, n: int) -> None:
    lengths = [end - begin for begin, end in (places(samples, batch, step, rank, n) for rank in range(n))]
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1


def test_epochs_and_seeds_are_shuffled_differently() -> None:
    epochs = [order(40, seed, epoch).tolist() for seed in range(2) for epoch in range(2)]
    assert len({tuple(each) for each in epochs}) == 4
    assert order(40, 0, 0).tolist() == epochs[0]


def test_nobody_can_change_the_order_for_all() -> None:
    with pytest.raises(ValueError, match="read-only"):
        order(40, 0, 0).sort()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_it_deals_out_the_windows_that_training_reads(n: int) -> None:
    """`reference.models.data` has the arithmetic of equal shares; where shares are equal, both say the same."""
    batches = Batches.of(np.arange(256, dtype=np.uint8), sequence=3, batch=6, seed=5)
    for rank, sampler in enumerate(ranks_of(ShardedSampler(batches.windows, 6, seed=5), n)):
        for step, windows in zip(range(batches.windows // 6), sampler, strict=False):
            tokens, _ = batches.of_step(step, rank, n)
            assert (tokens[:, 0] // 3).tolist() == windows


def test_it_does_not_go_back() -> None:
    with pytest.raises(BadInput, match="by 0 steps or more, not by -1"):
        ShardedSampler(10, 4, consumed=8).after(-1)


def test_a_data_loader_takes_it() -> None:
    data = torch.arange(100, 111)
    for rank in range(2):
        sampler = ShardedSampler(len(data), batch=4, rank=rank, world_size=2)
        loader = DataLoader(data, batch_sampler=sampler)
        assert len(loader) == len(list(sampler)) == 3
        assert [batch.tolist() for batch in loader] == [[100 + i for i in indices] for indices in sampler]


def test_a_rank_without_a_share_of_the_last_step_ends_earlier() -> None:
    assert [len(each) for each in ranks_of(ShardedSampler(12, batch=5), 3)] == [3, 3, 2]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"samples": 0}, "nothing to read"),
        ({"batch": 3, "world_size": 4}, "3 samples in a step leave some of 4 ranks without any"),
        ({"rank": 2, "world_size": 2}, "ranks of 2 are 0 to 1, not 2"),
        ({"consumed": -1}, "consumed and seed are 0 or more, not -1 and 0"),
        ({"seed": -1}, "consumed and seed are 0 or more, not 0 and -1"),
    ],
)
def test_what_cannot_work_is_refused(changed: dict, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        ShardedSampler(**{"samples": 10, "batch": 5} | changed)


def shared() -> tuple[Tensor, bool]:
    """This rank's rows of ten, and whether they are a view."""
    batch = torch.arange(20).view(10, 2)
    mine = share(batch, dist.group.WORLD)
    return mine, mine.untyped_storage().data_ptr() == batch.untyped_storage().data_ptr()


@pytest.mark.parametrize("n", [1, 3, 4])
def test_a_batch_is_shared_by_views(clusters: Callable[..., Cluster], n: int) -> None:
    results = clusters(n).run(shared)
    assert torch.equal(torch.cat([mine for mine, _ in results]), torch.arange(20).view(10, 2))
    assert all(view for _, view in results)
    assert max(len(mine) for mine, _ in results) == -(-10 // n)
