"""Where a rank stands as experts see it: edp, ep and etp in the place of dp_shard, cp and tp, over the same ranks.

Megatron-LM's "parallel folding" (Liu et al. 2025, "MoE parallel folding"): what attention splits along tp and cp,
experts need not. The ranks of a stage and a replica are one row for both; each lays its own axes over it. `Mesh.view`
does it for any axes.
"""

from collections.abc import Mapping


def fold_the_experts_mesh(
    rank: int, sizes: Mapping[str, int], ep: int, etp: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """A rank's coordinates on (pp, dp_replicate, edp, ep, etp), and its groups along the last three.

    Args:
        rank: from 0 on.
        sizes: ranks along pp, dp_replicate, dp_shard, cp and tp, the outermost first.
        ep: ranks that share out the experts.
        etp: ranks that share each matrix of an expert.

    Returns:
        None where ep · etp does not divide the ranks of a stage and a replica.
    """
    row = sizes["dp_shard"] * sizes["cp"] * sizes["tp"]
    if row % (ep * etp):
        return None
    edp = row // (ep * etp)
    block, at = divmod(rank, row)
    pp, replica = divmod(block, sizes["dp_replicate"])
    rest, t = divmod(at, etp)
    d, e = divmod(rest, ep)
    first = block * row

    def rank_of(d: int, e: int, t: int) -> int:
        return first + (d * ep + e) * etp + t

    along_edp = tuple(rank_of(other, e, t) for other in range(edp))
    along_ep = tuple(rank_of(d, other, t) for other in range(ep))
    along_etp = tuple(rank_of(d, e, other) for other in range(etp))
    return (pp, replica, d, e, t), along_edp, along_ep, along_etp
