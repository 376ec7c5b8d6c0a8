"""planning.forgotten_recompute: A planner lets in what does not fit.

rankwise check planning.forgotten_recompute
rankwise hint planning.forgotten_recompute

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def activation_bytes(
    layers: int,
    tokens: int,
    kept: int,
    scores: int,
    inputs: int,
    recompute: str,
    every: int,
) -> int:
    """A planner lets in what does not fit.

    Before a job is admitted, a planner estimates its activations. One in use
    said 5.9 GB, let 32,710 tokens in, and the job ran out of memory above 107
    GB. This is what is known of such an estimate:

        a   where each layer is made again whole, it is right to the byte
        b   where attention alone is made again, it is far too low
        c   where nothing is made again, it is lower still
        d   with groups of four layers, it is too low for a model
            of 8 layers, and too high for one of 128

    What is alive at most? Forward leaves something of each layer, or of each
    group of layers; backward goes through them in reverse and may make more for
    a while:

    none        each layer keeps all its `kept` bytes for a token.
    selective   attention's scores, `scores` of these bytes, are not kept. They
                are made again for one layer at a time, when its backward comes.
    full        layers are in groups of `every`, which divides their number. Of
                each group its input alone is kept, `inputs` bytes. When its
                backward comes, the whole group is made again, with all `kept`
                bytes of each of its layers.

    Find what the estimate has forgotten, and mend it.

    Args:
        layers: of this rank.
        tokens: of the micro-batch.
        kept: bytes of a token in a layer, where all is kept; the scores are
            among them.
        scores: bytes of a token's scores in a layer.
        inputs: bytes of a token in the input of a layer; less than `scores`.
        recompute: "none", "selective" or "full".
        every: layers of a group, which divides `layers`; 1 and without a
            meaning unless `recompute` is "full".

    Returns: bytes that are alive at most, an int.

    Budget: a formula for each.
    """
    return tokens * (layers * inputs + kept)
