"""Context parallelism: long sequences over many ranks, each with some of the tokens.

Read `plain.py`, then `tokens.py` and `layouts.py`, `attention.py` and `ring.py`. Attention is the one layer in which
tokens see each other; so it is the only one that changes. A ring sends each rank's keys and values n - 1 times forward,
and 2n - 1 times backward; activations take an n-th of the memory.

    plain.py            attention of a block, the merge of two, a ring forward and backward, from sends and receives
    tokens.py           which tokens a rank holds, which of them see which, and the pieces that a kernel computes
    layouts.py          four ways to share out a sequence: contiguous, zigzag, striped, by documents
    kernels.py          attention with its logsumexp, and its backward: the operation of each device
    pieces.py           `plain.attend` and `plain.merge`, piece by piece and in place
    attention.py        `plain.ring_forward` as an autograd function, but for how blocks travel
    ring.py             `plain.ring_forward` with messages in flight, and no pair of tokens that the mask forbids
    all_gather.py       all blocks at once: Llama 3's way
    ulysses.py          heads instead of tokens: an all-to-all before attention, and one after it
    methods.py          the ways by name, and USP, which is two of them
    ops.py              the ops of a model whose tokens are shared out
    scan.py             attention without softmax: one state travels, by a prefix scan
    cost.py             what each way sends, computes and keeps
    lab/sleeping.py     a ring that sleeps instead of computing, measured and replayed
    lab/published.py    what others have measured and trained
    answers/places.py   zigzag and stripes as arithmetic: positions, masks, and what of a block is computed
    answers/balance.py  what the slowest rank has to do in each layout, and which layout is best
    answers/rings.py    a ring forward and backward, from sends and receives
    answers/blocks.py   attention block by block on one rank, through which autograd goes backward
    answers/gather.py   one all-gather of keys and values, and the reduce-scatter that is its backward
    answers/exchange.py  an all-to-all through which autograd goes back
    answers/heads.py    Ulysses in a page, and copies of heads of keys
    answers/losses.py   targets that are shifted before the cut, and a mean over tokens and not over ranks
    answers/share.py    whole documents for ranks, longest first
    answers/scan.py     an exclusive scan in one step less than `scan.tree`
    answers/train.py    the same ring in training, whose backward must read the right block
"""

from .all_gather import AllGatherAttention
from .attention import ContextAttention
from .layouts import Layout, layout
from .methods import context_attention
from .ring import RingAttention
from .scan import linear_attention
from .tokens import CAUSAL, Mask
from .ulysses import UlyssesAttention

__all__ = [
    "CAUSAL",
    "AllGatherAttention",
    "ContextAttention",
    "Layout",
    "Mask",
    "RingAttention",
    "UlyssesAttention",
    "context_attention",
    "layout",
    "linear_attention",
]
