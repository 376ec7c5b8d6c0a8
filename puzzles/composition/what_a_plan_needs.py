"""composition.what_a_plan_needs: What a plan needs.

rankwise check composition.what_a_plan_needs
rankwise hint composition.what_a_plan_needs

A solution may import what is imported below, torch with its autograd,
distributed, linalg, nn, nn.functional and random, and of the standard library
abc, bisect, collections, collections.abc, contextlib, dataclasses, enum,
functools, heapq, itertools, math, statistics, time and typing; nothing else.
"""


def what_a_plan_needs(
    layers: int,
    dense: int,
    experts: int,
    expert: int,
    pp: int,
    dp_replicate: int,
    dp_shard: int,
    cp: int,
    tp: int,
    ep: int,
    etp: int,
    stage: int,
    micro_batches: int,
    tokens: int,
    activation: int,
) -> tuple[int, int, int, int]:
    """What a plan needs.

    Will a rank of this plan have room? Work out what it keeps, in mixed
    precision with Adam: 2 bytes for each parameter, 2 for its gradient, and 12
    of the optimizer.

    pp        shares out the layers, equally many for each stage.
    tp        shares out the `dense` parameters of a layer: all but those of its
              experts.
    ep, etp   share out the experts of a layer, and each matrix of an expert.
              They lie over the same ranks as dp_shard, cp and tp; edp is what
              remains of these: dp_shard cp tp / (ep etp).
    ZeRO      lets ranks that hold the same parameters share out what they keep:
              those along dp_shard and cp the dense ones, those along edp the
              experts. Stage 1 shares out the optimizer's state, stage 2
              gradients, too, stage 3 parameters, too. Shards are of equal size,
              rounded up: the dense parameters of a rank are one flat tensor,
              those of its experts another. Along dp_replicate nothing is shared
              out.
    1F1B      the first stage holds the activations of pp micro-batches, or of
              all, if there are fewer. A token keeps `activation` bytes in each
              layer. cp and tp (with sequence parallelism) share out the tokens.

    Embedding and head, what ZeRO gathers meanwhile, and what tokens keep in
    experts besides are left out.

    Args:
        layers, dense, experts, expert: how many layers there are; in each of
            them `dense` parameters, and so many experts of `expert` parameters.
        pp, dp_replicate, dp_shard, cp, tp: ranks along each axis.
        ep, etp: ranks along the axes of the experts. All of these divide what
            they share out.
        stage: of ZeRO, 0 to 3; 0 shares out nothing.
        micro_batches: in a step.
        tokens: of a micro-batch of a replica.
        activation: bytes for each token and layer.

    Returns: bytes of parameters, gradients, optimizer state and activations of
    a rank of the first stage, four ints.

    Budget: a formula for each.
    """
    raise NotImplementedError("not solved yet")
