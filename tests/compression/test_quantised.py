"""What a communicator with fewer bits gives is within the bounds of its formats, and what it sends is the formula."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.cluster import Cluster
from reference.collectives.default import over
from reference.compression import plain
from reference.compression.formats import FORMATS
from reference.compression.quantised import Quantised, QuantisedOnNodes
from reference.errors import BadInput
from reference.groups import Groups
from reference.mesh import Mesh

from ..data_parallel.conftest import in_group, members

M = 600  # numbers of a chunk: no multiple of a block
INT4, INT8 = FORMATS["int4"], FORMATS["int8"]


def brought(rank: int, n: int) -> Tensor:
    return torch.randn(n * M, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def on_nodes(group: ProcessGroup, node: int) -> QuantisedOnNodes:
    levels = Groups(group, Mesh({"node": group.size() // node, "inside": node}))
    pair = levels.communicator("inside"), levels.communicator("node")
    return QuantisedOnNodes(group, *pair, INT8, INT4, INT8)


def reduced(group: ProcessGroup, name: str) -> Tensor:
    own = torch.empty(M, dtype=torch.float64)
    Quantised(group, reduced=FORMATS[name]).reduce_scatter(brought(group.rank(), group.size()), own)
    return own


@pytest.mark.parametrize(("n", "name"), [(1, "int8"), (3, "mxfp8"), (5, "int4"), (8, "int8")])
def test_a_sum_is_of_numbers_each_rounded_once(ranks: Cluster, n: int, name: str) -> None:
    found, trace = ranks.trace(in_group, n, reduced, name)
    for place, rank in enumerate(members(n)):
        chunks = [brought(other, n).view(n, M)[place] for other in range(n)]
        bound = sum(FORMATS[name].error_bound(chunk) for other, chunk in enumerate(chunks) if other != place)
        assert ((found[rank] - sum(chunks)).abs() <= bound).all()
        assert trace.bytes_sent[rank] == (n - 1) * FORMATS[name].nbytes(M)


def test_it_is_the_plain_sum(ranks: Cluster) -> None:
    """But for a rank's own numbers, which the plain one rounds, too."""

    def both(group: ProcessGroup) -> tuple[Tensor, Tensor, Tensor]:
        x, own = torch.randn(group.size() * 512), torch.empty(512)
        Quantised(group, reduced=INT8).reduce_scatter(x, own)
        mine = x.view(-1, 512)[group.rank()]
        rounded = plain.dequantise(*plain.quantise(mine, 256, 127))
        return own, plain.reduce_scatter_once(x, 256, 127, group), mine - rounded

    found = ranks.run(in_group, 4, both)
    for rank in members(4):
        engine, short, own_error = found[rank]
        assert torch.allclose(engine, short + own_error, rtol=0, atol=1e-5)


def gathered(group: ProcessGroup, name: str) -> Tensor:
    out = torch.empty(group.size() * M, dtype=torch.float64)
    own = out.view(-1, M)[group.rank()]
    own.copy_(brought(group.rank(), 1))  # in its own place
    Quantised(group, gathered=FORMATS[name]).all_gather(own, out)
    return out


@pytest.mark.parametrize(("n", "name"), [(3, "nvfp4"), (4, "int8")])
def test_a_gather_gives_all_ranks_the_same(ranks: Cluster, n: int, name: str) -> None:
    found, trace = ranks.trace(in_group, n, gathered, name)
    expected = torch.cat([brought(rank, 1) for rank in range(n)])
    bound = torch.cat([FORMATS[name].error_bound(brought(rank, 1)) for rank in range(n)])
    for rank in members(n):
        assert torch.equal(found[rank], found[members(n)[0]])
        assert trace.bytes_sent[rank] == (n - 1) * FORMATS[name].nbytes(M)
    assert ((found[members(n)[0]] - expected).abs() <= bound).all()


@pytest.mark.parametrize(("n", "node"), [(4, 2), (6, 2), (8, 4), (4, 4), (3, 1)])
def test_two_levels_send_few_bits_between_nodes(ranks: Cluster, n: int, node: int) -> None:
    def on_rank(group: ProcessGroup) -> Tensor:
        communicator = on_nodes(group, node)
        return communicator.start_reduce_scatter(brought(group.rank(), n), torch.empty(M, dtype=torch.float64))()

    found, trace = ranks.trace(in_group, n, on_rank)
    of, nodes = {rank: place for place, rank in enumerate(members(n))}, n // node
    across = [0] * n
    for message in trace.messages:
        if of[message.src] // node != of[message.dst] // node:
            across[of[message.src]] += message.bytes
    assert across == [(nodes - 1) * INT4.nbytes(M)] * n
    for rank, place in of.items():
        assert trace.bytes_sent[rank] - across[place] == (node - 1) * nodes * INT8.nbytes(M)
        chunks = [brought(other, n).view(n, M)[place] for other in range(n)]
        sums = [sum(chunks[first : first + node]) for first in range(0, n, node)]
        bound = sum(INT8.error_bound(chunk) for chunk in chunks) + 1.1 * sum(INT4.error_bound(each) for each in sums)
        assert ((found[rank] - sum(chunks)).abs() <= bound).all()


@pytest.mark.parametrize("node", [1, 2])
def test_an_all_reduce_of_any_length(ranks: Cluster, node: int) -> None:
    """All ranks get the same; maxima and integers are exact."""

    def on_rank(group: ProcessGroup) -> tuple[Tensor, Tensor, Tensor]:
        communicator = on_nodes(group, 2) if node == 2 else Quantised(group, reduced=INT8)
        x, exact, whole = brought(group.rank(), 1)[:101], brought(group.rank(), 1), torch.arange(9)
        communicator.all_reduce(x)
        communicator.all_reduce(exact, dist.ReduceOp.MAX)
        communicator.all_reduce(whole)
        return x, exact, whole

    found = ranks.run(in_group, 4, on_rank)
    every = torch.stack([brought(rank, 1) for rank in range(4)])
    first = found[members(4)[0]]
    for rank in members(4):
        assert torch.equal(found[rank][0], first[0])
    assert ((first[0] - every.sum(0)[:101]).abs() <= (2.0 if node == 2 else 0.1)).all()
    assert torch.equal(first[1], every.amax(0))
    assert torch.equal(first[2], 4 * torch.arange(9))


def test_ranks_of_a_node_follow_each_other(ranks: Cluster) -> None:
    def on_rank(group: ProcessGroup) -> str:
        levels = Groups(group, Mesh({"node": 2, "inside": 2}))
        try:
            QuantisedOnNodes(over(group), levels.communicator("node"), levels.communicator("inside"), None, INT4, INT8)
        except BadInput as error:
            return str(error)
        return ""

    found = ranks.run(in_group, 4, on_rank)
    assert any("follow each other" in found[rank] for rank in members(4))
