"""What ZeRO++ keeps and sends, as formulas: Wang et al. 2023, "ZeRO++", arXiv 2306.10209."""


def second_copy(rank: int, ranks: int, node: int, numel: int, size: int) -> tuple[int, int, int, int]:
    """hpZ: what a rank keeps of the second copy that its node has, and what it is sent when that is gathered.

    Args:
        rank: of n, those of a node one after another.
        ranks: n, which `node` divides.
        node: s, ranks of a node.
        numel: Ψ, parameters, padded to a multiple of n.
        size: bytes of an element.

    Returns:
        Where its piece begins and ends among the padded parameters, its bytes, and bytes that the rank receives in a
        gather, all of them from its node.
    """
    piece = -(-numel // ranks) * ranks // node
    begin = rank % node * piece
    return begin, begin + piece, piece * size, (node - 1) * piece * size


def leaves_a_node(shard: int, nodes: int, ranks: int, block: int, weights: bool, second: bool, gradients: bool) -> int:
    """Bytes that leave a node in a step of FSDP of one micro-batch, with some parts of ZeRO++.

    Args:
        shard: m, elements of each of the n shards, in 16 bits; `block` divides it.
        nodes: N.
        ranks: L, of a node. n = N·L.
        block: numbers that share a scale of 4 bytes, where they are quantised.
        weights: qwZ, parameters travel in 8 bits.
        second: hpZ, backward gathers within the node.
        gradients: qgZ, sums within the node first, and 4 bits between nodes.
    """
    scales = 4 * shard // block
    gather = (nodes * ranks - 1) * (shard + scales if weights else 2 * shard)
    reduction = ranks * (nodes - 1) * (shard // 2 + scales) if gradients else (nodes * ranks - 1) * 2 * shard
    return (1 if second else 2) * gather + reduction
