"""Sequence parallelism: between the regions of tensor parallelism, each rank has a slice of the sequence.

This is `plain.gather` and `plain.scatter` with: messages that travel while a product is computed, and nothing kept that
can be gathered again.

Tensor parallelism shares out what is inside a region. Norms, dropout and the residual stream lie outside: every rank
does the same there with the same tokens, and keeps the same activations. But these treat each token by itself, so each
rank may do its share of the tokens (Korthikanti et al. 2022, "Reducing activation recomputation in large transformer
models", sec. 4.2.2):

    gather      all-gather: every rank's slices, one after another          backward: reduce-scatter
    sum         reduce-scatter: the sum, and of it this rank's slice        backward: all-gather

A reduce-scatter and an all-gather are the two halves of an all-reduce. So the same bytes travel as before, but for two
gathers that backward repeats in each block, and what lies outside takes a t-th of the memory and of the work.
"""

from torch import Tensor

from reference.collectives.communicator import Finish
from reference.errors import BadInput
from reference.tensor_parallel.region import Region


class SequenceRegion(Region):
    """A region with a slice of the sequence on each rank at its borders. The sequence divides by t.

    Arguments as for `Region`. What is whole outside (a norm's weight, a bias after a row-parallel layer) sees a slice
    of the tokens on each rank, so its gradients are parts: they must be summed over the group.
    """

    slices_tokens = True

    def start_gather(self, x: Tensor) -> Finish:
        """Begin to make all tokens of every rank's slices: [B, S / t, D] -> [B, S, D]."""
        x, slices = x.contiguous(), x.new_empty(self.ranks, *x.shape)
        finish = _done(slices)
        if self.overlap:
            finish = self.communicator.start_all_gather(x, slices)
        else:
            self.communicator.all_gather(x, slices)
        return lambda: finish().movedim(0, -3).flatten(-3, -2)

    def start_sum(self, x: Tensor) -> Finish:
        """Begin to add up this rank's slice of what each rank made of all tokens: [B, S, D] -> [B, S / t, D].

        Raises:
            BadInput: if S does not divide by t.
        """
        parts = cut(x, self.ranks).movedim(-3, 0).contiguous()
        own = x.new_empty(parts.shape[1:])
        if self.overlap:
            return self.communicator.start_reduce_scatter(parts, own)
        self.communicator.reduce_scatter(parts, own)
        return _done(own)

    def local_tokens(self, x: Tensor) -> Tensor:
        """This rank's slice of the sequence: [B, S, ...] -> [B, S / t, ...].

        Raises:
            BadInput: if S does not divide by t.
        """
        return cut(x, self.ranks, dim=1)[:, self.rank]


def cut(x: Tensor, ranks: int, dim: int = -2) -> Tensor:
    """Cut a sequence among ranks, as a view: [..., S, D] -> [..., t, S / t, D].

    Args:
        x: all tokens.
        ranks: t.
        dim: of the tokens.

    Raises:
        BadInput: if S does not divide by t.
    """
    tokens = x.shape[dim]
    if left := tokens % ranks:
        fitting = f"{tokens - left} or {tokens - left + ranks}" if tokens > ranks else f"{ranks}"
        raise BadInput(f"a sequence of {tokens} tokens does not divide among {ranks} ranks; {fitting} would do")
    return x.unflatten(dim, (ranks, tokens // ranks))


def _done(x: Tensor) -> Finish:
    return lambda: x
