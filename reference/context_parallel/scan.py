"""Linear attention over ranks: what the tokens before a rank come to is one state, found by a prefix scan.

Without a softmax, attention is a state that each token decays, adds to and reads (Katharopoulos et al. 2020,
"Transformers are RNNs"; with a decay that each token chooses, Dao and Gu 2024, "Transformers are SSMs"):

    S_t = a_t S_(t-1) + k_t v_tᵀ         out_t = S_tᵀ q_t

So the tokens of a rank do two things to a state: they multiply it by A, the product of their a, and add S, what they
make of nothing. Two ranks in a row are (A, S) then (A', S'): together (A A', A' S + S'). That is associative, so the
states before all ranks are an exclusive prefix scan. A rank sends one state of d x d numbers for each head: no matter
how many tokens there are, and no block of keys.

| scan   | steps       | states that a rank sends |                                                     |
|--------|-------------|--------------------------|-----------------------------------------------------|
| chain  | n - 1       | 1                        | each rank waits for the one before                  |
| tree   | ⌈log₂ n⌉    | at most ⌈log₂ n⌉         | distances double (Hillis and Steele 1986)           |

Backward is the same scan from the other end. Ranks hold contiguous tokens, in their order.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from reference.collectives.communicator import Communicator

Scan = Callable[[Tensor, Tensor, Communicator, bool], Tensor]
"""From each rank's (decay, state) to the state before it; after it, where the scan runs backwards."""


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    communicator: Communicator,
    scan: Scan | None = None,
) -> Tensor:
    """Causal linear attention of this rank's tokens to all tokens up to them.

    Args:
        query, key: [B, H, S, d], of this rank's tokens.
        value: [B, H, S, e].
        log_decay: [B, H, S], the logarithm of a_t, at most 0: how much each token leaves of the state before it. All
            zeros is linear attention as it was first written; -inf forgets all, as where a document begins.
        communicator: n ranks, which hold consecutive slices of the sequence.
        scan: how states travel; `tree` by default.

    Returns:
        [B, H, S, e].
    """
    left = log_decay.cumsum(-1).exp()  # of what came before this rank, after each of its tokens
    between = _between(log_decay)
    kept = between[..., -1, :]  # of what each token added, at the end
    state = (key * kept[..., None]).mT @ value
    before = _Scan.apply(scan or tree, communicator, left[..., -1], state)
    return (query @ key.mT * between) @ value + (query * left[..., None]) @ before


def _between(log_decay: Tensor) -> Tensor:
    """What token t has left of what token s added: [B, H, S] -> [B, H, S, S], zeros where s comes later.

    Each is a sum of its own. A difference of two sums from the first token on would lose its digits where these are
    large, and be no number where both are -inf.
    """
    tokens = log_decay.shape[-1]
    later = torch.ones(tokens, tokens, dtype=torch.bool, device=log_decay.device).triu()
    after = log_decay[..., :, None].expand(*log_decay.shape, tokens).masked_fill(later, 0.0)  # those after token s
    return after.cumsum(-2).exp().tril()


class _Scan(Function):
    """`apply(scan, communicator, decay, state)`: decay [B, H], state [B, H, d, e] -> the state before this rank."""

    @staticmethod
    def forward(ctx: Any, scan: Scan, communicator: Communicator, decay: Tensor, state: Tensor) -> Tensor:
        before = scan(decay, state, communicator, False)
        ctx.scan, ctx.communicator = scan, communicator
        ctx.save_for_backward(decay, before)
        return before

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor, Tensor]:
        decay, before = ctx.saved_tensors
        of_state = ctx.scan(decay, gradient, ctx.communicator, True)
        return None, None, (before * of_state).sum(dim=(-2, -1)), of_state


def chain(decay: Tensor, state: Tensor, communicator: Communicator, backwards: bool = False) -> Tensor:
    """Each rank waits for the state before it, adds its own, and sends that on."""
    place, last, toward = _place(communicator, backwards)
    before = torch.zeros_like(state, memory_format=torch.contiguous_format)
    if place > 0:
        communicator.start_receive(before, communicator.rank() - toward)()
    if place < last:
        after = before * decay[..., None, None] + state
        communicator.start_send(after.contiguous(), communicator.rank() + toward)()
    return before


def tree(decay: Tensor, state: Tensor, communicator: Communicator, backwards: bool = False) -> Tensor:
    """After step i a rank knows what the 2^i ranks up to it come to, and what those before it do."""
    place, last, toward = _place(communicator, backwards)
    up_to_it = decay[..., None, None], state
    before_it = torch.ones_like(up_to_it[0]), torch.zeros_like(state)
    distance = 1
    while distance <= last:
        finish = None
        if place + distance <= last:
            packed = torch.cat([x.flatten() for x in up_to_it])
            finish = communicator.start_send(packed, communicator.rank() + toward * distance)
        if place >= distance:
            incoming = state.new_empty(decay.numel() + state.numel())
            communicator.start_receive(incoming, communicator.rank() - toward * distance)()
            others_decay, others = incoming.split([decay.numel(), state.numel()])
            earlier = others_decay.view_as(up_to_it[0]), others.view_as(state)
            up_to_it, before_it = _then(earlier, up_to_it), _then(earlier, before_it)
        if finish:
            finish()
        distance *= 2
    return before_it[1]


def _place(communicator: Communicator, backwards: bool) -> tuple[int, int, int]:
    """How many ranks come before this one; the last one's number; and in which direction the next one is."""
    last = communicator.size() - 1
    return (last - communicator.rank(), last, -1) if backwards else (communicator.rank(), last, 1)


def _then(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """What two runs of tokens in a row do to a state: each multiplies it, and adds something."""
    return one[0] * other[0], one[1] * other[0] + other[1]
