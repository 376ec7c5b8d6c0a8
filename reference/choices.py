"""What a run can choose, as words, which a command line knows without torch."""

from enum import StrEnum


class Recompute(StrEnum):
    """What is made again in backward instead of being kept. See `reference.memory.recompute`."""

    NONE = "none"
    SELECTIVE = "selective"  # what is large and cheap: attention's core, norms, the product inside the SwiGLU
    FULL = "full"  # everything inside a block; its input alone is kept


class Offload(StrEnum):
    """Where the optimizer's state lives. See `reference.memory.offload_targets`."""

    NONE = "none"  # where the parameters are
    CPU = "cpu"
    DISK = "disk"


class PrecisionName(StrEnum):
    """In which numbers a model is trained. What each name means stands in `reference.memory.precision`."""

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    BF16_STOCHASTIC = "bf16-stochastic"
    FP16 = "fp16"
    FP64 = "fp64"


class WireFormat(StrEnum):
    """In which numbers parameters or gradients travel. See `reference.compression.formats`."""

    NONE = "none"  # as they are
    INT8 = "int8"
    INT4 = "int4"
    E4M3 = "e4m3"
    E5M2 = "e5m2"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"


class Optimizer(StrEnum):
    """How parameters are updated."""

    ADAMW = "adamw"
    ADAMW_8_BIT = "adamw-8bit"  # its moments in 8 bits, by `reference.compression.eight_bit_adam`
    MUON = "muon"  # matrices of hidden layers whole, by `reference.zero.whole_matrices`; AdamW for all else
    SHAMPOO = "shampoo"  # likewise
    SOAP = "soap"  # likewise
    SGD = "sgd"  # for signs, which say no more than a direction
    ONE_BIT_ADAM = "one-bit-adam"  # its momentum travels in 1 bit, by `reference.compression.one_bit_adam`
    ZERO_ONE_ADAM = "zero-one-adam"  # likewise
    ONE_BIT_LAMB = "one-bit-lamb"  # likewise


MOMENTUM_TRAVELS = (Optimizer.ONE_BIT_ADAM, Optimizer.ZERO_ONE_ADAM, Optimizer.ONE_BIT_LAMB)
FREEZES = (Optimizer.ONE_BIT_ADAM, Optimizer.ONE_BIT_LAMB)  # the variance, after some steps
"""Optimizers of replicas that bring their gradients into one momentum."""


BY_CHANCE = (Optimizer.ADAMW, Optimizer.ADAMW_8_BIT)
"""Optimizers that can round weights by chance."""


class LinearNumbers(StrEnum):
    """Of what numbers the products of linear layers are. See `reference.compression.low_bits`."""

    SAME = "same"  # as everything else: those of the precision
    FP8 = "fp8"
    FP8_DELAYED = "fp8-delayed"  # by scales from the steps before: `reference.compression.delayed`
    INT8 = "int8"


class ContextMethod(StrEnum):
    """How tokens on different ranks look at each other."""

    RING = "ring"  # keys and values travel around, block by block
    ALL_GATHER = "all-gather"  # each rank gets all keys and values
    ULYSSES = "ulysses"  # an all-to-all: all tokens, for some of the heads
    USP = "usp"  # Ulysses among neighbours, a ring across


class ContextLayout(StrEnum):
    """Which tokens of a sequence each rank holds."""

    CONTIGUOUS = "contiguous"
    ZIGZAG = "zigzag"
    STRIPED = "striped"
    DOCUMENTS = "documents"  # zigzag within each document


class Compress(StrEnum):
    """What is sent of gradients where replicas sum them. See `reference.compression.memory`."""

    NONE = "none"  # all, as it is
    BF16 = "bf16"  # all, rounded
    FP16 = "fp16"
    ONE_BIT = "one-bit"  # signs, in two stages; what is not sent is remembered, in these and all that follow
    TOP_K = "top-k"  # the largest elements, with their places
    RANDOM_K = "random-k"  # elements that a seed chooses
    POWER_SGD = "powersgd"  # two thin matrices
    DEMO = "demo"  # the largest cosine coefficients of the momentum; sums are signs, for sgd
    MAJORITY_VOTE = "majority-vote"  # signs, and no memory; sums are signs, for sgd


class Outer(StrEnum):
    """What islands that train by themselves do together at the end of a round. See `reference.decentralized`."""

    NONE = "none"  # there is one island, and no round
    LOCAL_SGD = "local-sgd"  # the mean of their parameters
    DILOCO = "diloco"  # a step of an outer optimizer with the mean of what they have changed
    STREAMING = "streaming"  # likewise, a fragment of the layers at a time, while they train on
    EAGER = "eager"  # likewise, all of it, and what an island has changed itself counts at once
    EASGD = "easgd"  # islands and a centre pull each other
    SPARTA = "sparta"  # the mean of a few parameters drawn anew each time
    NOLOCO = "noloco"  # in pairs drawn anew each time
    GOSSIP = "gossip"  # each with its neighbours in a topology
    ASYNC_DILOCO = "async-diloco"  # each with a server, when its own round ends, and none waits for another
    ASYNC_SGD = "async-sgd"  # likewise, without an outer optimizer
    FEDADAM = "fedadam"  # a step of an outer Adam with the mean of what they have changed
    FEDPROX = "fedprox"  # the mean of their parameters, which a spring has held near the last one
    SCAFFOLD = "scaffold"  # likewise, and the mean of gradients, which corrects each island's own
    BRANCHES = "branches"  # nothing, to the end: `reference.decentralized.merge` makes one model of them


class IslandText(StrEnum):
    """What islands read of the text that is trained on. What is held out is the same for all."""

    SHARED = "shared"  # a part of each batch, whose windows are from anywhere
    OWN = "own"  # windows of a contiguous part, which no other one reads


class LateRate(StrEnum):
    """How much a change counts that comes late."""

    CONSTANT = "constant"  # as much as any
    BY_STALENESS = "by-staleness"  # its share: one over the changes that came between


class GossipTopology(StrEnum):
    """Which islands average with which. See `reference.decentralized.topology`."""

    RING = "ring"  # two neighbours
    TORUS = "torus"  # four, in rows and columns
    EXPONENTIAL = "exponential"  # those 1, 2, 4, ... away, to both sides
    ONE_PEER = "one-peer"  # one of these, another one each time
    RANDOM_PAIRS = "random-pairs"  # one, drawn anew each time


class Wire(StrEnum):
    """In which numbers islands say what they have changed."""

    FULL = "full"  # those of the masters
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"


class Aggregation(StrEnum):
    """What islands agree on, of what each has changed. See `reference.decentralized.robust`."""

    MEAN = "mean"
    MEDIAN = "median"  # of each number; this and the others stand islands that lie
    TRIMMED_MEAN = "trimmed-mean"  # of each number, without the largest and the smallest
    KRUM = "krum"  # the change that is nearest to others


class Lie(StrEnum):
    """What an island says that lies, to try what becomes of the others."""

    SIGN_FLIP = "sign-flip"  # the way back, ten times as far
    LARGE = "large"  # a million, in each number


class RoundLength(StrEnum):
    """How the inner steps of a round change in the course of training."""

    CONSTANT = "constant"
    QSR = "qsr"  # longer as the learning rate falls
