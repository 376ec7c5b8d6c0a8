"""planning.flops_of_a_step: FLOPs of a step.

rankwise check planning.flops_of_a_step
rankwise hint planning.flops_of_a_step

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def flops_of_a_step(
    layers: int,
    width: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    hidden: int,
    gated: bool,
    vocabulary: int,
    sequence: int,
    batch: int,
    experts: int,
    top_k: int,
    expert_hidden: int,
    shared_experts: int,
    dense_layers: int,
) -> int:
    """FLOPs of a step.

    How much must be computed for one step of training? It follows from the
    sizes of the model, and every estimate of time begins with it. A product [m,
    k] x [k, n] takes 2 m k n FLOPs: each number is multiplied and added. What
    is no product of matrices is not counted.

    attention      queries are made by a matrix [D, H d], keys and values by one
                   of [D, K d] each, and the output comes through one of [H d,
                   D]. Between them, each head of queries multiplies its [S, d]
                   with keys [d, S], and the scores [S, S] with values [S, d].
                   All pairs count, also those that a causal mask hides: so do
                   most papers, and so numbers can be compared.
    feed-forward   up [D, F] and down [F, D]; one with a gate has another [D,
                   F].
    experts        layers from `dense_layers` on have experts instead, if the
                   model has any: a token meets k of them and all shared ones.
                   Each is a feed-forward of `expert_hidden` features. The
                   router is small, and left out.
    head           [D, V]. The table of tokens is looked up, and multiplies
                   nothing.
    backward       two products for each of forward, of the same size: for the
                   gradient of the input and for that of the weight; or of both
                   factors.

    Args:
        layers: L.
        width: D, of the stream.
        heads, kv_heads, head_dim: H heads of queries, K of keys and values, d
            numbers each.
        hidden: F.
        gated: whether feed-forwards have a gate, those of experts, too.
        vocabulary: V.
        sequence: S, tokens of a window.
        batch: windows of a step.
        experts: of a layer; 0 if there are none, and then the other four are 0
            and mean nothing.
        top_k: k.
        expert_hidden: features of an expert.
        shared_experts: experts that all tokens meet.
        dense_layers: the first so many layers have no experts.

    Returns: FLOPs of forward and backward of the whole batch, an int.

    Budget: a formula.
    """
    raise NotImplementedError("not solved yet")
