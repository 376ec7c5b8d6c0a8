"""What one rank keeps under a plan of five axes and experts: state by ZeRO's stages, activations of a pipeline.

| of a rank       | parameters                      | replicas, among which ZeRO shares out            |
|-----------------|---------------------------------|--------------------------------------------------|
| dense layers    | L/pp · dense / tp               | dp_shard · cp                                    |
| experts         | L/pp · E/ep · expert / etp      | edp = dp_shard · cp · tp / (ep · etp)            |

Rajbhandari et al. 2020, "ZeRO", sec. 3.1 for 2 + 2 + 12 bytes; `reference.memory.recipe` has other recipes, and
`reference.memory.korthikanti` what a token keeps in a layer.
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
    """Bytes of parameters, gradients, optimizer state and activations of a rank of the first stage.

    Args:
        layers, dense, experts, expert: L layers, each of `dense` parameters and E experts of `expert` parameters.
        pp, dp_replicate, dp_shard, cp, tp: ranks along each axis; pp divides the layers, tp `dense`.
        ep, etp: ranks along the experts' axes; ep divides the experts, etp `expert`.
        stage: of ZeRO, 0 to 3.
        micro_batches: m, of a step.
        tokens: in a micro-batch of a replica, before cp and tp share them.
        activation: bytes that a token keeps in a layer.
    """
    layers_here = layers // pp
    parts = (  # parameters that this rank computes with, and the ranks that hold the same ones
        (layers_here * dense // tp, dp_shard * cp),
        (layers_here * experts // ep * expert // etp, dp_shard * cp * tp // (ep * etp)),
    )

    def kept(size: int, shared_from: int) -> int:
        shared = stage >= shared_from
        return size * sum(-(-numel // replicas) if shared else numel for numel, replicas in parts)

    in_flight = min(pp, micro_batches)
    return kept(2, 3), kept(2, 2), kept(12, 1), in_flight * layers_here * activation * tokens // (cp * tp)
