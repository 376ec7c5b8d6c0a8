"""Text as bytes, cut into windows, dealt out to ranks.

A batch is a pure function of the step, the rank and the number of ranks:

- *deterministic*: the order of the windows is drawn anew for each pass over the text, from the seed and the pass;
- *resumable*: the step number tells the batch, so there is no reader's state to save;
- *sharded without overlap*: a step's windows are the same for any number of ranks, and rank r of n takes the r-th
  n-th of them. Together the ranks read what one process would have read.

A window of S tokens predicts S tokens: it reads one more than it starts with, the last window's last target being the
first input of the next. No token is predicted twice in a pass, nor both in training and in validation.
"""

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reference.errors import BadInput
from reference.models import files
from reference.models.dropout import token_seeds
from reference.models.files import Text
from reference.models.objective import NextToken, Objective

NEXT_TOKEN = NextToken()
VALIDATION = -1  # stands for a step: of held-out text the same tokens are hidden each time
HELD_OUT = 0.1  # of the windows, from the end of the text
PIECE = 1 << 20  # bytes that are counted at a time: numpy makes 8 of each while it counts


def python_text() -> Text:
    """Python's own language reference, as `help()` shows it: about half a megabyte of English.

    It ships with CPython, so it differs a little from one version of Python to the next.

    Raises:
        BadInput: if this Python was built without it.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise BadInput("this Python comes without pydoc_data; give a text with --data FILE") from error
    return np.frombuffer("\n".join(topics[name] for name in sorted(topics)).encode(), dtype=np.uint8)


def file_text(path: str | Path) -> Text:
    """The bytes of a text in a file, unpacked where need be: see `reference.models.files`.

    Raises:
        BadInput: if it is no file, is empty, damaged, cannot be read, or is something that is not read here.
    """
    return files.read(path)[0]


def unigram_entropy(text: Text) -> float:
    """Nats per byte of a model that knows how frequent each byte is, and nothing else."""
    pieces = (text[at : at + PIECE] for at in range(0, len(text), PIECE))
    frequency = sum(np.bincount(piece, minlength=256) for piece in pieces) / len(text)
    return float(-sum(p * math.log(p) for p in frequency if p > 0))


@lru_cache(maxsize=4)
def order(samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """A shuffle of range(samples): the same on every rank, another one in each epoch. It may not be written to."""
    shuffle = np.random.default_rng([seed, epoch]).permutation(samples)
    shuffle.setflags(write=False)
    return shuffle


def drawn(windows: int, batch: int, seed: int, step: int, rank: int, world_size: int) -> NDArray[np.int64]:
    """Which of so many windows `rank` of `world_size` reads in `step`: [B / world_size]."""
    if step < 0 or not 0 <= rank < world_size:
        raise BadInput(f"there is no step {step} of rank {rank} of {world_size}: both count from 0")
    if batch % world_size:
        raise BadInput(f"a batch of {batch} windows does not divide among {world_size} ranks")
    epoch, step_of_epoch = divmod(step, windows // batch)
    share = batch // world_size
    first = step_of_epoch * batch + rank * share
    return order(windows, seed, epoch)[first : first + share]


def _held_out(windows: int) -> int:
    """How many of all windows are held out."""
    return max(1, int(windows * HELD_OUT))


@dataclass(frozen=True, eq=False)
class Batches:
    """Which tokens each rank reads in each step."""

    text: Text
    sequence: int  # S, tokens that a window predicts
    batch: int  # windows of all ranks in one step
    seed: int = 0
    objective: Objective = NEXT_TOKEN

    @classmethod
    def of(cls, text: Text, sequence: int, batch: int, seed: int = 0, objective: Objective = NEXT_TOKEN) -> Self:
        """The same, after a look at whether the text is long enough.

        Raises:
            BadInput: if it does not hold one batch to train on and one window to validate on.
        """
        if sequence < 1 or batch < 1:
            raise BadInput(f"a batch has at least 1 window of at least 1 token, not {batch} of {sequence}")
        batches = cls(text, sequence, batch, seed, objective)
        if batches.windows < batch:
            needed = batch + 1
            while needed - _held_out(needed) < batch:  # a tenth of what is added is held out again
                needed = batch + _held_out(needed)
            raise BadInput(
                f"the text has {len(text):,} tokens, and one batch of {batch} windows of {sequence} tokens with "
                f"{needed - batch} more held out needs {needed * sequence + 1:,}: give a longer text, or a smaller "
                "batch or sequence"
            )
        return batches

    @cached_property
    def fingerprint(self) -> str:
        """Digits of a hash of the whole text."""
        return hashlib.sha256(self.text).hexdigest()[:16]

    @property
    def windows(self) -> int:
        """Windows to train on; those after them are held out."""
        total = (len(self.text) - 1) // self.sequence
        return total - _held_out(total)

    @property
    def held_out(self) -> range:
        """The windows that are never trained on."""
        return range(self.windows, (len(self.text) - 1) // self.sequence)

    @property
    def held_out_tokens(self) -> int:
        """Tokens that are predicted in all of those."""
        return len(self.held_out) * self.objective.counted(self.sequence)

    @property
    def tokens(self) -> int:
        """Tokens that all ranks together predict in one step."""
        return self.batch * self.objective.counted(self.sequence)

    def of_step(self, step: int, rank: int = 0, world_size: int = 1) -> tuple[Tensor, Tensor]:
        """What `rank` of `world_size` reads in `step`, counted from 0, and what it shall predict.

        Returns:
            Two tensors [B / world_size, S] of int64: tokens, and the token after each.

        Raises:
            BadInput: if there is no such step or rank, or the batch does not divide by the number of ranks.
        """
        return self.read(self._windows(step, rank, world_size), step)

    def dropout_seeds(self, step: int, rank: int = 0, world_size: int = 1) -> Tensor:
        """From what dropout follows for each token that `of_step` gives: [B / world_size, S] of int64.

        It depends on the seed, the step and where the token stands in the text: not on the rank that reads it.

        Raises:
            BadInput: as `of_step`.
        """
        return self.seeds(self._windows(step, rank, world_size), step)

    def validation(self, rank: int = 0, world_size: int = 1) -> list[tuple[Tensor, Tensor]]:
        """Every `world_size`-th held-out window from the `rank`-th on, in pieces of at most B of them.

        Returns:
            Pairs of tensors [at most B, S], as `of_step` gives them; none if there are more ranks than windows.
        """
        mine = np.array(self.held_out[rank::world_size])
        return [self.read(mine[i : i + self.batch], VALIDATION) for i in range(0, len(mine), self.batch)]

    def validation_rounds(self, world_size: int = 1) -> int:
        """How many pieces `validation` gives to the rank that has most."""
        return -(-len(self.held_out[::world_size]) // self.batch)

    def _windows(self, step: int, rank: int, world_size: int) -> NDArray[np.int64]:
        """Which windows `rank` of `world_size` reads in `step`: [B / world_size]."""
        return drawn(self.windows, self.batch, self.seed, step, rank, world_size)

    def _places(self, windows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the tokens of `windows` stand in the text, and one more: [len(windows), S + 1]."""
        return windows[:, None] * self.sequence + np.arange(self.sequence + 1)

    def seeds(self, windows: NDArray[np.int64], step: int) -> Tensor:
        """Of the tokens of `windows`: [len(windows), S]."""
        return token_seeds(self.seed, step, torch.from_numpy(self._places(windows)[:, :-1]))

    def read(self, windows: NDArray[np.int64], step: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets of `windows`, [len(windows), S] each."""
        tokens = torch.from_numpy(self.text[self._places(windows)].astype(np.int64))
        return self.objective.examples(tokens, self.seeds(windows, step))


@dataclass(frozen=True, eq=False)
class ReplicaBatches:
    """The windows of one of several replicas, which share each batch.

    Args:
        whole: what all replicas together read.
        replica, replicas: which of how many.
    """

    whole: Batches
    replica: int
    replicas: int

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python looks for to copy an object, which may have nothing yet
            raise AttributeError(name)
        return getattr(self.whole, name)

    @property
    def tokens(self) -> int:
        """Tokens that this replica predicts in a step: by these it divides its losses."""
        return self.whole.tokens // self.replicas

    def of_step(self, step: int, rank: int = 0, world_size: int = 1) -> tuple[Tensor, Tensor]:
        """As for `Batches`: of the ranks of this replica."""
        return self.whole.of_step(step, self.replica * world_size + rank, self.replicas * world_size)

    def dropout_seeds(self, step: int, rank: int = 0, world_size: int = 1) -> Tensor:
        """As for `Batches`."""
        return self.whole.dropout_seeds(step, self.replica * world_size + rank, self.replicas * world_size)


class OwnBatches(ReplicaBatches):
    """The windows of one of several replicas that read parts of the text: contiguous, and as equal as can be.

    In a step each reads as many windows as another, whatever the lengths of their parts, which differ by 1 at most. So
    a mean that is weighted by examples is the plain mean.
    """

    @property
    def part(self) -> range:
        """The windows of the text that this replica trains on."""
        begin, end = (self.whole.windows * k // self.replicas for k in (self.replica, self.replica + 1))
        return range(begin, end)

    def of_step(self, step: int, rank: int = 0, world_size: int = 1) -> tuple[Tensor, Tensor]:
        """As for `Batches`: of the ranks of this replica."""
        return self.whole.read(self._windows(step, rank, world_size), step)

    def dropout_seeds(self, step: int, rank: int = 0, world_size: int = 1) -> Tensor:
        """As for `Batches`."""
        return self.whole.seeds(self._windows(step, rank, world_size), step)

    def _windows(self, step: int, rank: int, world_size: int) -> NDArray[np.int64]:
        batch = self.whole.batch // self.replicas
        return self.part.start + drawn(len(self.part), batch, self.whole.seed, step, rank, world_size)
