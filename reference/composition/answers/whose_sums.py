"""Which ranks are added up: of gradients by what each axis does to a parameter, of a batch's loss, of its windows.

| axis                | "replicated"                   | "split"                           | "partial"           |
|---------------------|--------------------------------|-----------------------------------|---------------------|
| dp_replicate,       | other tokens: a part of the    | FSDP: gathered to compute with,   |                     |
| dp_shard, cp        | gradient on each, added up     | so added up as well, then cut     |                     |
| tp                  | the same gradient on each      | each finds that of its elements   | added up            |
| pp                  |                                | other layers on each stage        | both ends, added up |

`reference.sharding` has it with dims, for any mesh. Groups that lack an axis: Megatron-LM#779 (a loss averaged without
the experts' axis), VeOmni PR1115 (gradients without the ranks that share a sequence). The groups of a batch are those
of torchtitan's `parallel_dims.py`, whose loss mesh is dp x cp.
"""

from collections.abc import Mapping
from itertools import product
from math import prod

from reference.composition.plain import coordinates_of_a_rank, groups_along, rank_at


def whose_gradients_add_up(sizes: Mapping[str, int], does: Mapping[str, str]) -> list[tuple[int, ...]]:
    """By rank, the ranks whose gradients of a parameter are added up for it; () where a rank does not hold it.

    Args:
        sizes: ranks along pp, dp_replicate, dp_shard, cp and tp, the outermost first.
        does: what each of these axes does to the parameter: "replicated", "split" or "partial".
    """
    names, counts = list(sizes), tuple(sizes.values())
    added = {n for n, axis in enumerate(names) if axis in ("dp_replicate", "dp_shard", "cp") or does[axis] == "partial"}
    found: list[tuple[int, ...]] = [()] * prod(counts)
    for group in groups_along(added, counts):
        if does["pp"] == "partial":
            place, ends = names.index("pp"), (0, sizes["pp"] - 1)
            group = tuple(rank for rank in group if coordinates_of_a_rank(rank, counts)[place] in ends)
        for rank in group:
            found[rank] = group
    return found


def batch_loss_and_gradient_groups(
    rank: int, sizes: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Ranks that read other windows, whose losses add up, and whose gradients do, as one of these ranks sees them.

    Args:
        rank: from 0 on.
        sizes: ranks along each axis, the outermost first, in whatever order. An axis that is not there has one rank.
    """
    counts = tuple(sizes.values())
    here = coordinates_of_a_rank(rank, counts)

    def together(*axes: str) -> tuple[int, ...]:
        places = [range(size) if axis in axes else (at,) for (axis, size), at in zip(sizes.items(), here, strict=True)]
        return tuple(rank_at(place, counts) for place in product(*places))

    windows, tokens = ("dp_replicate", "dp_shard"), ("dp_replicate", "dp_shard", "cp")
    return together(*windows), together("pp", *tokens), together(*tokens)
