"""Micro-batches add up to the batch that they were cut from."""

import pytest
import torch
from torch import Tensor, nn

from reference.errors import BadInput
from reference.memory.accumulation import MicroBatch, accumulate, micro_batches
from reference.memory.history import MemoryKind
from reference.memory.lab.gauge import Gauge
from reference.models import GPT, PRESETS, create, token_loss
from reference.oracle import relative_difference

BATCH, SEQUENCE = 7, 12
TOKENS, TARGETS = torch.randint(256, (2, BATCH, SEQUENCE), generator=torch.Generator().manual_seed(0))


def double() -> GPT:
    return create(GPT, PRESETS["tiny"], dtype=torch.float64)


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters()]


def of_the_whole(batch: MicroBatch) -> tuple[Tensor, list[Tensor]]:
    """Loss and gradients of a batch that goes through at once."""
    model = double()
    loss = token_loss(model(batch[0]), batch[1], batch[0].numel())
    loss.backward()
    return loss.detach(), gradients(model)


@pytest.mark.parametrize("count", range(1, BATCH + 1))
def test_any_number_of_micro_batches_gives_the_gradient_of_the_batch(count: int):
    model = double()
    loss = accumulate(model, micro_batches(TOKENS, TARGETS, count), TOKENS.numel())
    whole_loss, whole = of_the_whole((TOKENS, TARGETS))
    assert relative_difference(loss, whole_loss) < 1e-14
    assert max(map(relative_difference, gradients(model), whole)) < 1e-12


def test_windows_of_different_lengths_weigh_by_their_tokens():
    batches = [(TOKENS[:1], TARGETS[:1]), (TOKENS[1:2, :3], TARGETS[1:2, :3]), (TOKENS[2:, :5], TARGETS[2:, :5])]
    total = sum(tokens.numel() for tokens, _ in batches)
    model, oracle = double(), double()
    loss = accumulate(model, batches, total)
    losses = [token_loss(oracle(tokens), targets, 1) for tokens, targets in batches]  # sums over tokens
    (sum(losses) / total).backward()
    assert relative_difference(loss, sum(losses).detach() / total) < 1e-14
    assert max(map(relative_difference, gradients(model), gradients(oracle))) < 1e-12

    means = [loss / tokens.numel() for loss, (tokens, _) in zip(losses, batches, strict=True)]
    assert relative_difference(loss, sum(means).detach() / 3) > 1e-4  # the mean of the means is another number


@pytest.mark.parametrize("count", range(1, BATCH + 1))
def test_a_batch_is_cut_evenly_in_order_and_without_a_copy(count: int):
    pieces = micro_batches(TOKENS, TARGETS, count)
    assert len(pieces) == count
    assert torch.equal(torch.cat([tokens for tokens, _ in pieces]), TOKENS)
    assert torch.equal(torch.cat([targets for _, targets in pieces]), TARGETS)
    sizes = [len(tokens) for tokens, _ in pieces]
    assert max(sizes) - min(sizes) <= 1
    assert all(piece.untyped_storage().data_ptr() == TOKENS.untyped_storage().data_ptr() for piece, _ in pieces)


@pytest.mark.parametrize("count", [0, -1, BATCH + 1])
def test_there_are_at_most_as_many_micro_batches_as_windows(count: int):
    with pytest.raises(BadInput, match=rf"7 windows cannot be cut into {count} micro-batches; 1 to 7"):
        micro_batches(TOKENS, TARGETS, count)


def peak_activations(count: int) -> int:
    model = double()
    tokens = TOKENS[:6]
    with Gauge({MemoryKind.PARAMETERS: model.parameters}) as gauge:
        accumulate(model, micro_batches(tokens, tokens, count), tokens.numel())
        return gauge.history.peak_of(MemoryKind.ACTIVATIONS)


def test_three_micro_batches_need_a_third_of_the_activations():
    assert peak_activations(3) == pytest.approx(peak_activations(1) / 3, rel=0.02)  # positions are as many in each


def test_what_cannot_be_is_said():
    with pytest.raises(BadInput, match=r"\(4, 2\) tokens, \(5, 2\) targets"):
        micro_batches(torch.zeros(4, 2), torch.zeros(5, 2), 2)
    with pytest.raises(BadInput, match="not 0 and 5"):
        accumulate(double(), [], 5)
    with pytest.raises(BadInput, match="not 1 and 0"):
        accumulate(double(), [(TOKENS, TARGETS)], 0)
