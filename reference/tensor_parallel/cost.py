"""What tensor and sequence parallelism send. Exact, for any number of ranks and any length.

Ranks talk where tokens enter a region (`gather`) and where they leave it (`sum`), in backward the other way around. So
it is enough to count how often that happens, and to know what the two are:

| crossings    | forward           | backward          | forward again, where a block is recomputed |
|--------------|-------------------|-------------------|--------------------------------------------|
| a block      | 2 gathers, 2 sums | 4 gathers, 2 sums | 2 gathers, 2 sums                          |
| ... in halves|                   | 6 gathers, 2 sums |                                            |
| embedding    | 1 sum             | 1 gather          |                                            |
| head         | 1 gather          | 1 gather, 1 sum   |                                            |

| a crossing   | gather                                  | sum                                                 |
|--------------|-----------------------------------------|-----------------------------------------------------|
| TP           | nothing                                 | all-reduce of B·S·D: 2 passes                       |
| SP           | all-gather of B·S·D: 1 pass             | reduce-scatter of B·S·D: 1 pass                     |

In one *pass* over a tensor each rank sends (t-1)/t of it. A block makes 8 passes with TP and 10 with SP. Two of its six
gathers bring back what forward had gathered and did not keep, for the gradients of column-parallel weights; but for
these, both send the same (Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models",
sec. 4.2.2). Only full recomputation runs a region again; the selective form repeats what lies between the matrices.
Where a pipeline splits backward in halves, gradients of outputs are gathered in each half (`split_backward`).

What else is sent is small: the loss needs three numbers for each token, whatever the vocabulary; once a step, gradients
are summed of norms (SP, where each rank saw other tokens) and of key-value heads that several ranks have.

Tensor parallelism sends activations: passes grow with tokens and width, do not shrink with t, and are needed at once.
A micro-batch of 8,192 tokens through one block of Llama 3 8B (D = 4096, bf16), over 8 ranks: 470 MB from each with TP.
Shoeybi et al. 2019, "Megatron-LM", sec. 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from reference.memory.recompute import Recompute
from reference.models import GPTConfig, require_gpt
from reference.zero.cost import all_reduce, one_pass


@dataclass(frozen=True, slots=True)
class Crossings:
    """How often tokens enter regions and leave them, forward and backward together."""

    gathers: int = 0
    sums: int = 0

    def __add__(self, other: Crossings) -> Crossings:
        return Crossings(self.gathers + other.gathers, self.sums + other.sums)

    def __rmul__(self, times: int) -> Crossings:
        return Crossings(times * self.gathers, times * self.sums)

    def elements_sent(self, numel: int, ranks: int, sequence_parallel: bool, rank: int = 0) -> int:
        """Elements that a rank sends at these borders, around rings.

        Args:
            numel: B·S·D, of all tokens of a micro-batch.
            ranks: t.
            sequence_parallel: whether each rank has a slice of the sequence outside.
            rank: matters to all-reduces of a length that t does not divide.
        """
        if sequence_parallel:
            return (self.gathers + self.sums) * one_pass(numel, ranks)
        return self.sums * all_reduce(numel, ranks, rank)


COLUMNS = Crossings(gathers=2, sums=1)  # gather; in backward gather again for the weights, sum for the input
ROWS = Crossings(gathers=1, sums=1)  # sum; in backward gather
EMBEDDING = Crossings(gathers=1, sums=1)  # as rows
HEAD = COLUMNS


def block(recompute: Recompute = Recompute.NONE, regions: int = 2, halves: bool = False) -> Crossings:
    """Of a block: into attention and out of it, into the feed-forward and out of it.

    Args:
        recompute: only the full form runs a region again.
        regions: of the block: one where experts stand in the place of the feed-forward.
        halves: whether weights get their gradients in a second half of backward.
    """
    again = Crossings(gathers=1, sums=1) if recompute is Recompute.FULL else Crossings()
    once_more = Crossings(gathers=1) if halves else Crossings()
    return regions * (COLUMNS + ROWS + again + once_more)


def model(layers: int, recompute: Recompute = Recompute.NONE) -> Crossings:
    """Of a whole GPT, in each micro-batch."""
    return EMBEDDING + layers * block(recompute) + HEAD


def loss(tokens: int, ranks: int, rank: int = 0, smoothing: bool = False) -> int:
    """Elements that a rank sends for the loss of a micro-batch, in float32 or wider; backward sends nothing.

    For each token the maximum, then the sum of exponentials and the logit of the target; with smoothing the sum of all
    logits, too. Whole logits would be an all-gather of V numbers for each token.
    """
    return all_reduce(tokens, ranks, rank) + all_reduce((3 if smoothing else 2) * tokens, ranks, rank)


def norms(config: GPTConfig, ranks: int, rank: int = 0) -> int:
    """Elements that a rank sends once a step for the gradients of all norms, with sequence parallelism.

    And of biases that are added to a sum, which see a slice of the tokens likewise.

    Where data parallelism has left a rank a shard of its gradients, the sum is that of the shard.
    """
    require_gpt(config)
    return all_reduce(config.layers * config.unsplit_parameters + config.width, ranks, rank)


def kv_copies(config: GPTConfig, ranks: int, rank: int = 0) -> int:
    """Elements that a rank sends once a step for the gradients of key-value heads, where t/K ranks have the same one.

    Two projections in each layer, of one head. Nothing where each rank has heads of its own.
    """
    require_gpt(config)
    copies = max(1, ranks // config.kv_heads)
    return all_reduce(config.layers * config.kv_head_parameters, copies, rank % copies)
