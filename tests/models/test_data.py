"""Batches: a pure function of step, rank and number of ranks."""

import copy
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from reference.errors import BadInput
from reference.models.data import Batches, OwnBatches, ReplicaBatches, file_text, python_text, unigram_entropy
from reference.models.dropout import token_seeds


def numbered(tokens: int = 1000, sequence: int = 8, batch: int = 12, seed: int = 0) -> Batches:
    """A text in which every token is its own position, so that one sees which was read."""
    return Batches.of(np.arange(tokens, dtype=np.int64), sequence, batch, seed)


def targets_of_epoch(batches: Batches, epoch: int = 0, world_size: int = 1) -> list[int]:
    steps = batches.windows // batches.batch
    shards = [
        batches.of_step(epoch * steps + step, rank, world_size)[1].flatten()
        for step in range(steps)
        for rank in range(world_size)
    ]
    return torch.cat(shards).tolist()


def test_targets_are_the_next_tokens():
    tokens, targets = numbered().of_step(5)
    assert tokens.shape == targets.shape == (12, 8)
    assert tokens.dtype == torch.int64
    assert torch.equal(targets, tokens + 1)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6, 12])
def test_ranks_together_read_what_one_process_reads(world_size: int):
    whole = numbered().of_step(3)[0]
    shards = [numbered().of_step(3, rank, world_size)[0] for rank in range(world_size)]
    assert torch.equal(torch.cat(shards), whole)


def test_no_token_is_predicted_twice_in_a_pass():
    targets = targets_of_epoch(numbered(), world_size=4)
    assert len(targets) == len(set(targets)) == 9 * 12 * 8  # 124 windows, 12 held out: 9 whole batches


def test_what_is_held_out_is_never_predicted_in_training():
    batches = numbered()
    held_out = {t for _, targets in batches.validation() for t in targets.flatten().tolist()}
    assert len(held_out) == 12 * 8
    seen = {t for epoch in range(20) for t in targets_of_epoch(batches, epoch)}
    assert not seen & held_out
    assert len(seen) == batches.windows * 8  # other windows are left over in each pass: in time, all are read


@pytest.mark.parametrize("world_size", [1, 3, 5, 40])
def test_validation_is_dealt_out_without_overlap(world_size: int):
    batches = numbered(tokens=3000)
    dealt = [t for rank in range(world_size) for _, ts in batches.validation(rank, world_size) for t in ts.flatten()]
    whole = [t for _, ts in batches.validation() for t in ts.flatten()]
    assert sorted(map(int, dealt)) == sorted(map(int, whole))


def test_whoever_knows_the_step_goes_on_where_another_stopped():
    fresh = numbered()
    for step in (20, 7, 20):  # in any order, across passes
        assert torch.equal(fresh.of_step(step)[0], numbered().of_step(step)[0])


def test_each_pass_and_each_seed_has_an_order_of_its_own():
    first = targets_of_epoch(numbered())
    assert first == targets_of_epoch(numbered())
    assert first != targets_of_epoch(numbered(), epoch=1)
    assert first != targets_of_epoch(numbered(seed=1))
    assert first != sorted(first)


def test_seeds_follow_from_the_step_and_the_place_of_a_token_whoever_reads_it():
    batches = numbered()
    for world_size in (1, 2, 4):
        for rank in range(world_size):
            places, _ = batches.of_step(3, rank, world_size)  # in this text a token is its own place
            assert torch.equal(batches.dropout_seeds(3, rank, world_size), token_seeds(0, 3, places))


def test_noise_is_new_in_each_pass_and_for_each_seed():
    found = {s: torch.cat([numbered(seed=s).dropout_seeds(step) for step in range(18)]) for s in (0, 1)}  # two passes
    assert torch.cat(list(found.values())).unique().numel() == 2 * 18 * 12 * 8


def test_a_batch_must_divide_among_the_ranks():
    with pytest.raises(BadInput, match="12 windows does not divide among 5 ranks"):
        numbered().of_step(0, rank=0, world_size=5)


@pytest.mark.parametrize("step, rank, world_size", [(-1, 0, 1), (0, 2, 2), (0, -1, 2), (0, 0, 0), (0, 0, -1)])
def test_there_is_no_such_step_or_rank(step: int, rank: int, world_size: int):
    for read in (numbered().of_step, numbered().dropout_seeds):
        with pytest.raises(BadInput, match=f"there is no step {step} of rank {rank} of {world_size}"):
            read(step, rank, world_size)


@pytest.mark.parametrize(
    "batch, sequence, held_out", [(1, 1, 1), (3, 8, 1), (12, 8, 1), (5, 16, 1), (18, 4, 1), (19, 4, 2), (40, 4, 4)]
)
def test_the_shortest_text_is_one_batch_and_what_is_held_out(batch: int, sequence: int, held_out: int):
    needed = (batch + held_out) * sequence + 1
    batches = numbered(needed, sequence, batch)
    assert len(batches.held_out) == held_out
    assert batches.of_step(7)[0].shape == (batch, sequence)
    assert len(batches.validation()) == 1
    with pytest.raises(BadInput, match=f"needs {needed}:"):
        numbered(needed - 1, sequence, batch)


def test_python_text_is_english_and_long_enough():
    text = python_text()
    assert len(text) > 300_000
    assert b'The "for" statement' in text.tobytes()
    assert 3.0 < unigram_entropy(text) < 3.5


def test_entropy_of_a_fair_coin_is_ln_2():
    assert unigram_entropy(np.array([0, 1] * 50, dtype=np.uint8)) == pytest.approx(np.log(2), rel=1e-12)
    assert unigram_entropy(np.zeros(9, dtype=np.uint8)) == 0


def test_bytes_are_counted_a_piece_at_a_time():
    """Beside a mapped text of many gigabytes there is no memory for a number of 8 bytes for each of them."""
    text = np.tile(np.arange(256, dtype=np.uint8), 50_000)
    tracemalloc.start()
    entropy = unigram_entropy(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(text)
    assert entropy == pytest.approx(np.log(256), rel=1e-12)


def test_a_file_is_read_byte_by_byte(tmp_path: Path):
    file = tmp_path / "text"
    file.write_bytes(bytes(range(256)))
    assert file_text(file).tolist() == list(range(256))


def test_a_file_that_is_not_there_not_a_file_or_empty_is_refused_in_one_line(tmp_path: Path):
    (tmp_path / "empty").touch()
    for path, reason in ((tmp_path / "none", "no such file"), (tmp_path, "not a file"), (tmp_path / "empty", "empty")):
        with pytest.raises(BadInput, match=reason) as caught:
            file_text(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda batches: pickle.loads(pickle.dumps(batches))])
@pytest.mark.parametrize("kind", [ReplicaBatches, OwnBatches])
def test_the_windows_of_a_replica_can_be_copied(
    kind: type[ReplicaBatches], copied: Callable[[ReplicaBatches], ReplicaBatches]
) -> None:
    batches = kind(numbered(), 1, 2)
    assert torch.equal(copied(batches).of_step(3)[0], batches.of_step(3)[0])
