"""The memory of a training step before it runs: the history that a gauge would measure, from formulas.

For any model, recipe, stage and number of ranks, of a step of one micro-batch. One row for each layer, forward and then
backward: the most that is in use while the layer computes. What is foreseen:

- the training state (`reference.memory.recipe`), with gradients that appear as backward comes to their layer; a
  tied table has one at the head, another at the embedding, and then their sum;
- what waits for backward (`reference.memory.activations`), and in backward what is recomputed of one block;
- gradients of activations, where they are largest: inside the SwiGLU, and at the logits;
- with ZeRO-3 the parameters of two units, the one that computes and the next; with ZeRO-2 and ZeRO-3 the gradients of
  two, one being made and one being reduced.

On the CPU the peak is within 1 % of what is measured, where the vocabulary is at least four times and the SwiGLU two
and a half times as wide as the model; of others the plan is some per cent too low. An allocator's fragments, the
scratch of kernels and of the optimizer, and what libraries keep for themselves come on top.
"""

from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace

import numpy as np
import torch

from reference.dtypes import accumulator
from reference.errors import BadInput
from reference.memory import activations
from reference.memory.history import History, Mark
from reference.memory.recipe import Breakdown, Recipe, Stage, state_bytes
from reference.memory.recompute import Recompute
from reference.memory.saved import total
from reference.models import GPTConfig, require_gpt


@dataclass(frozen=True)
class Workload:
    """A training step, as far as its memory goes.

    Raises:
        BadInput: if a number makes no sense, or no stage is called so.
    """

    model: GPTConfig
    recipe: Recipe
    stage: Stage = Stage.DDP
    ranks: int = 1
    batch: int = 1  # windows in the micro-batch of each rank
    sequence: int = 2048  # tokens in a window
    recompute: Recompute = Recompute.NONE

    def __post_init__(self) -> None:
        require_gpt(self.model)
        if min(self.batch, self.sequence) < 1:
            raise BadInput(f"a micro-batch has at least 1 window of 1 token, not {self.batch} of {self.sequence}")
        _ = self.state  # says what is wrong with the rest

    @property
    def dtype(self) -> torch.dtype:
        """Of activations: as wide as parameters are when the model computes with them, but never 8 bits."""
        return torch.float32 if self.recipe.gathered >= 4 else torch.bfloat16

    @property
    def units(self) -> tuple[int, ...]:
        """Parameters of the embedding, of each block, and of the last norm with the head."""
        config = self.model
        table = config.vocabulary * config.width
        behind = config.width + (0 if config.tied else table)
        return (table, *[config.block_parameters] * config.layers, behind)

    @property
    def state(self) -> Breakdown:
        """What each rank keeps from step to step: every unit is cut into shards by itself."""
        each = [state_bytes(unit, self.recipe, self.stage, self.ranks) for unit in self.units]
        return sum(each[1:], each[0])

    def history(self) -> History:
        """Bytes in use by kind, layer after layer."""
        forward, backward = list(_forward(self)), list(_backward(self))
        state = self.state
        rest = Usage(state.parameters, 0, state.optimizer)
        rows = [rest, *forward, *backward, replace(rest, gradients=state.gradients), rest]
        marks = Mark("forward", 1), Mark("backward", 1 + len(forward)), Mark("step", 1 + len(forward) + len(backward))
        usage = np.array([astuple(row) for row in rows], dtype=np.int64)
        return History(usage, marks, moment="layers")


@dataclass(frozen=True)
class Usage:
    """Bytes in use at one moment, in the order of kinds."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int = 0
    buffers: int = 0


def _forward(work: Workload) -> Iterator[Usage]:
    """Embedding, blocks, head and loss: what waits for backward grows."""
    state, layers, width, hidden = work.state, work.model.layers, _width(work), _hidden(work)
    kept, logits = _kept(work), _logits(work)
    inside = _inside(work)
    passing = {Recompute.NONE: 0, Recompute.SELECTIVE: inside * hidden, Recompute.FULL: 2 * inside * hidden + 2 * width}

    def usage(unit: int, waiting: int, buffers: int) -> Usage:
        return Usage(state.parameters + _gathered(work, unit, unit + 1), 0, state.optimizer, waiting, buffers)

    yield usage(0, width, 0)
    for unit in range(1, layers + 1):
        yield usage(unit, _shared(work) + unit * kept, passing[work.recompute])
    yield usage(layers + 1, _waiting(work) + logits, 0)  # the loss sees logits beside their logarithms


def _backward(work: Workload) -> Iterator[Usage]:
    """Loss and head, blocks from the last to the first, embedding: what waits shrinks, gradients appear."""
    state, layers, width, hidden = work.state, work.model.layers, _width(work), _hidden(work)
    kept, logits = _kept(work), _logits(work)
    whole = total(activations.block(work.model, work.batch, work.sequence, work.dtype))
    inside = _inside(work)
    again = {
        Recompute.NONE: kept - hidden,  # the product is given back when its gradient is known
        Recompute.SELECTIVE: kept + inside * hidden,  # what makes the product is made again
        Recompute.FULL: whole - hidden + width,  # everything, and what comes out
    }
    before = [state_bytes(unit, work.recipe, work.stage, work.ranks).gradients for unit in work.units]
    table = int(work.units[0] * work.recipe.gradients) if work.model.tied else 0  # one of the two gradients it has
    down = 0 if _shards_gradients(work) else int(work.model.width * work.model.hidden * work.recipe.gradients)

    def usage(unit: int, waiting: int, buffers: int, own: int) -> Usage:
        parameters = state.parameters + _gathered(work, unit, unit - 1)
        return Usage(parameters, sum(before[unit + 1 :]) + own, state.optimizer, waiting, buffers)

    yield usage(layers + 1, _waiting(work), 2 * logits, 0)  # gradients of logits and of their logarithms
    yield usage(layers + 1, _waiting(work) - logits, logits + table + _reducing(work, layers + 1), before[-1])
    for unit in range(layers, 0, -1):
        waiting = _shared(work) + (unit - 1) * kept + again[work.recompute]
        yield usage(
            unit, waiting, (1 + inside) * hidden + width + table + _reducing(work, unit), down
        )  # within the SwiGLU
    yield usage(0, 0, width + 2 * table + _reducing(work, 0), before[0])


def _gathered(work: Workload, *units: int) -> int:
    """Bytes of parameters that ZeRO-3 has gathered for these units, of those that there are."""
    if work.stage is not Stage.ZERO3 or work.ranks == 1:
        return 0
    numbers = sum(work.units[unit] for unit in set(units) if 0 <= unit < len(work.units))
    return int(numbers * work.recipe.gathered)


def _reducing(work: Workload, unit: int) -> int:
    """Bytes of whole gradients that come and go: of the unit at work, and of the one before it, in flight."""
    return int(sum(work.units[unit : unit + 2]) * work.recipe.gradients) if _shards_gradients(work) else 0


def _shards_gradients(work: Workload) -> bool:
    return work.stage in (Stage.ZERO2, Stage.ZERO3) and work.ranks > 1


def _width(work: Workload) -> int:
    """Bytes of the residual stream."""
    return work.batch * work.sequence * work.model.width * work.dtype.itemsize


def _hidden(work: Workload) -> int:
    """Bytes of a tensor inside the SwiGLU."""
    return work.batch * work.sequence * work.model.hidden * work.dtype.itemsize


def _inside(work: Workload) -> int:
    """How many tensors a feed-forward makes between its matrices: silu(gate) and the product, or silu(up)."""
    return 2 if work.model.gated else 1


def _logits(work: Workload) -> int:
    """Bytes of the logits as the loss sees them."""
    wide = accumulator(work.dtype).itemsize
    return work.batch * work.sequence * work.model.vocabulary * wide


def _kept(work: Workload) -> int:
    """Bytes that each block keeps for backward."""
    kept = activations.KEPT[work.recompute]
    return total(kept(work.model, work.batch, work.sequence, work.dtype))


def _shared(work: Workload) -> int:
    """Bytes that all blocks keep together."""
    return total(activations.cos_sin(work.model, work.sequence, work.dtype, work.recompute))


def _waiting(work: Workload) -> int:
    """Bytes that wait for backward when forward is over."""
    return total(activations.model(work.model, work.batch, work.sequence, work.dtype, work.recompute))
