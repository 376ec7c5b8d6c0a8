"""compression.two_level_bits: 8 bits within a node, 4 between nodes."""

import torch
import torch.distributed as dist

from puzzles.grading.drives import two_levels
from puzzles.grading.puzzle import Budget, Measure, Puzzle, Wrong, case, cases, divisors, drawn
from reference.compression.answers.bits import pack, reduce_scatter_on_nodes, unpack
from reference.compression.plain import dequantise, quantise

from .common import block_of, sent


def gradients(case, rank):
    """Blocks for all ranks, and how ranks fill nodes."""
    blocks = case.n * case.blocks
    few = [block_of(case, rank, number, 127, "even") for number in range(min(blocks, 32))]
    x = torch.cat([few[number % len(few)] for number in range(blocks)])
    return {"x": x, "block": case.block, "ranks_per_node": case.ranks_per_node}


def node_after_node(case, inputs):
    """What arrives of each rank's numbers, summed within nodes; what arrives of these sums, summed."""
    found, ranks = [], case.ranks_per_node
    chunks = [each["x"].chunk(case.n) for each in inputs]
    for mine in range(case.n):
        total = torch.zeros(case.blocks * case.block)
        for first in range(0, case.n, ranks):
            here = torch.stack(
                [dequantise(*quantise(chunks[rank][mine], case.block, 127)) for rank in range(first, first + ranks)]
            ).sum(0)
            total += dequantise(*quantise(here, case.block, 7))
        found.append({"returns": total, "x": inputs[mine]["x"]})
    return found


def bytes_sent(case):
    """In the node a chunk for each node, in 8 bits; between nodes one chunk, in 4."""
    numel, nodes = case.blocks * case.block, case.n // case.ranks_per_node
    inside = (case.ranks_per_node - 1) * nodes * sent(numel, case.block, 8)
    return inside + (nodes - 1) * sent(numel, case.block, 4)


PUZZLE = Puzzle(
    name="compression.two_level_bits",
    title="Eight bits within a node, four between nodes",
    statement="""
        Links between nodes are slow, so 4 bits should cross them, and once: the sum of a node, not what each of its
        ranks has. Within a node there is room for 8 bits. Rank i of all wants the sum of chunk i; ranks of a node
        follow each other.

        Each rank quantises what it has in 8 bits, and sends each rank of its node all that this one and its neighbours
        on other nodes (the ranks with its number) are to sum. These are made numbers again and summed. The sums travel
        in 4 bits, each to the neighbour whose chunk it is, and are summed there. So each number is rounded twice,
        however many ranks there are.

        Given are `quantise(x, block, largest)`, which returns integers in int8 and a scale for each block,
        `dequantise(codes, scales)`, and for integers of 4 bits (largest 7) `pack(codes)`, two to a byte, and its
        reverse `unpack(payload)`.

        Args:
            x: [N·L·m] in float32, where `block` divides m, and is even. It stays as it is.
            block: numbers that share a scale.
            intra: the L ranks of this node, in order.
            inter: the ranks that have this one's number, on each of the N nodes, in order.

        Returns: [m] in float32: the sum of this rank's chunk.

        Budget: (L-1)·N chunks in 8 bits within the node and N-1 chunks in 4 bits to other nodes, scales included.
        """,
    function=reduce_scatter_on_nodes,
    cases=cases(worlds=(4,), blocks=(2,), block=(8,), ranks_per_node=(2,))
    + cases(worlds=(6,), blocks=(1,), block=(8,), ranks_per_node=(3, 2))
    + cases(worlds=(3,), blocks=(1,), block=(6,), ranks_per_node=(1, 3))
    + cases(worlds=(1,), blocks=(2,), block=(4,), ranks_per_node=(1,))
    + cases(worlds=(8,), blocks=(1,), block=(8,), ranks_per_node=(4,)),
    drawn=(
        drawn(worlds=(4, 6, 8), blocks=(1, 2), block=(4, 8, 10), ranks_per_node=lambda so_far: divisors(so_far.n)),
        drawn(worlds=(9, 10), blocks=(1,), block=(8,), ranks_per_node=lambda so_far: divisors(so_far.n)),
    ),
    large=case(4, blocks=2048, block=256, ranks_per_node=2),
    inputs=gradients,
    oracle=node_after_node,
    drive=two_levels,
    tolerance=1e-5,
    calls=(dist.all_to_all_single, dist.all_gather, dist.all_reduce),
    given=(quantise, dequantise, pack, unpack),
    budgets=(
        Budget(
            Measure.BYTES_SENT,
            target=bytes_sent,
            why="in the node codes of 8 bits; between nodes the node's sum of one chunk for each, two codes to a byte",
        ),
        Budget(
            Measure.PEAK_BYTES,
            target=lambda case: 24 * case.n * case.blocks * case.block + 512,
            optimum=lambda case: 4 * case.n * case.blocks * case.block,
            why="numbers of the node's ranks take as much as `x`; of what is sent there are codes and scales",
        ),
    ),
    hints=(
        "Which chunks does rank l of this node need, so that what crosses nodes afterwards is one chunk for each node?",
        "Chunk (node, l) of x goes to rank l of this node, for all nodes: view x as [N, L, m] and exchange the first "
        "two dims, then it is an all-to-all within the node.",
        "What has arrived, dequantised and viewed as [L, N·m], is summed over L. Quantise [N·m] with 7, pack, "
        "all-to-all over `inter`, unpack, dequantise, and sum over N.",
    ),
    wrong=(
        Wrong(
            "chunks in the order of ranks, not of numbers",
            diagnosis=r"expected -?[\d.e+-]+, got",
            edits=(("x.view(nodes, ranks, -1).transpose(0, 1).reshape(-1)", "x"),),
        ),
        Wrong(
            "four bits in the node, eight between",
            diagnosis=r"expected -?[\d.e+-]+, got|sent",
            body="""
                nodes, ranks = dist.get_world_size(inter), dist.get_world_size(intra)

                def exchanged(x, group):
                    received = torch.empty_like(x)
                    dist.all_to_all_single(received, x, group=group)
                    return received

                codes, scales = quantise(x.view(nodes, ranks, -1).transpose(0, 1).reshape(-1), block, 7)
                codes = unpack(exchanged(pack(codes), intra))
                here = dequantise(codes, exchanged(scales, intra)).view(ranks, -1).sum(0)
                codes, scales = quantise(here, block, 127)
                return dequantise(exchanged(codes, inter), exchanged(scales, inter)).view(nodes, -1).sum(0)
                """,
        ),
        Wrong(
            "codes of 4 bits, a byte for each",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do.*\n.*two codes to a byte",
            edits=(("unpack(_exchanged(pack(codes), inter))", "_exchanged(codes, inter)"),),
        ),
        Wrong(
            "the node's sum as numbers, by a fallback",
            diagnosis=r"right, but rank \d sent [\d,]+ B where [\d,]+ must do",
            edits=(
                (
                    "    codes = unpack(_exchanged(pack(codes), inter))\n"
                    "    return dequantise(codes, _exchanged(scales, inter)).view(nodes, -1).sum(0)",
                    "    return _exchanged(dequantise(codes, scales), inter).view(nodes, -1).sum(0)",
                ),
            ),
        ),
        Wrong(
            "integers of the node are summed",
            diagnosis=r"expected -?[\d.e+-]+, got|shape|size",
            edits=(
                (
                    "dequantise(_exchanged(codes, intra), _exchanged(scales, intra)).view(ranks, -1).sum(0)",
                    "dequantise(_exchanged(codes, intra).view(ranks, -1).sum(0).to(torch.int8), "
                    "_exchanged(scales, intra).view(ranks, -1)[0])",
                ),
            ),
        ),
        Wrong(
            "the groups exchanged",
            diagnosis=r"expected -?[\d.e+-]+, got|shape|size|split",
            edits=(
                (
                    "dist.get_world_size(inter), dist.get_world_size(intra)",
                    "dist.get_world_size(intra), dist.get_world_size(inter)",
                ),
            ),
        ),
    ),
)
