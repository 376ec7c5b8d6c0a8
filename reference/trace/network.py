"""A modelled network: what a message of so many bytes costs between two ranks.

The α-β model (Hockney 1994): a message of m bytes takes `alpha + m / beta` seconds, α the latency in seconds and β the
bandwidth in bytes per second. A cluster has two classes of link: within a node and between nodes. A rank has, for each
class, one port out and one port in, all independent: it sends and receives at once, at full speed in both directions,
but two messages that leave through the same port go one after the other.

| preset           | α      | β, one direction | source                                                           |
|------------------|--------|------------------|------------------------------------------------------------------|
| `NVLINK4`        | 1.9 µs | 450 GB/s         | H100/H200: 18 links of 25 GB/s; α as in NCCL's tuning table       |
| `INFINIBAND_NDR` | 4 µs   | 50 GB/s          | 400 Gbit/s for each GPU; α as in NCCL's tuning table              |
| `ETHERNET_100G`  | 25 µs  | 12.5 GB/s        | 100 Gbit/s; α: TCP through two kernels, an order of magnitude     |
| `HOME_INTERNET`  | 20 ms  | 2.5 MB/s         | 20 Mbit/s up, FCC benchmark of 2024; α: same region, an assumption |

The β are what the hardware is sold as; NCCL measures about 80 % of NVLink's (368 GB/s of bus bandwidth, 8 H200, a
ring's all-reduce of 16 GiB). The α of NCCL are those of one ring step with protocol LL128 (`src/graph/tuning.cc`, table
`hwLat`). Full bandwidth comes with protocol Simple, whose steps take 3.4 µs on NVLink and 14 µs between nodes: no
protocol has both, so where latency and bytes count alike, times are too short, by up to 3.5 times between nodes.

What a link of a machine in an office has besides, as data:
- `packets`: a message is cut, and each piece has a header. `TCP_ON_ETHERNET` carries 1448 bytes in 1514.
- `burst`: a link whose rate a token bucket sets (as clouds do, and `tc tbf`) lets so many bytes pass at once after a
  pause: the bucket fills at the rate `beta`, up to `burst`, and each byte takes one token out of it.
- `buffer`: a kernel takes bytes before it has sent them, so a program may continue while the last of them wait there.
- `Network.shared`: all ranks of a node share one link to the others, as where there is one network card. Messages that
  are under way at the same time then share it evenly, as connections of TCP do.
"""

from dataclasses import dataclass
from math import ceil, isinf


@dataclass(frozen=True, slots=True)
class Packets:
    """How a link cuts a message: each packet carries `payload` bytes, and `header` bytes besides."""

    payload: int
    header: int

    def on_the_wire(self, size: int) -> int:
        """Bytes that a message of `size` bytes is on the link."""
        return size + ceil(size / self.payload) * self.header


TCP_ON_ETHERNET = Packets(payload=1500 - 20 - 32, header=14 + 20 + 32)
"""Of 1500 bytes, the largest that Ethernet carries (MTU), IPv4 takes 20, and TCP 32 with its clocks (RFC 7323); before
them stand Ethernet's own 14. A real cable adds 24 (preamble, checksum, gap), which no token bucket counts."""


@dataclass(frozen=True, slots=True)
class Link:
    """One class of link: latency `alpha` in seconds, bandwidth `beta` in bytes per second and direction."""

    name: str
    alpha: float
    beta: float
    burst: float = 0.0  # bytes that pass at once after a pause
    packets: Packets | None = None  # None: a message is sent as it is
    buffer: float = 0.0  # bytes of a message that its sender need not wait for

    def __post_init__(self) -> None:
        if not self.alpha >= 0 or isinf(self.alpha):
            raise ValueError(f"alpha of {self.name!r} is a latency in seconds, 0 or more, not {self.alpha}")
        if not self.beta > 0:
            raise ValueError(f"beta of {self.name!r} is a bandwidth in bytes per second, above 0, not {self.beta}")
        for name in ("burst", "buffer"):
            size = getattr(self, name)
            if not size >= 0 or isinf(size):
                raise ValueError(f"{name} of {self.name!r} is a number of bytes, 0 or more, not {size}")

    def time(self, size: int) -> float:
        """Seconds that a message of `size` bytes takes when no burst is left."""
        return self.alpha + (self.packets.on_the_wire(size) if self.packets else size) / self.beta


NVLINK4 = Link("NVLink 4", alpha=1.9e-6, beta=450e9)
INFINIBAND_NDR = Link("InfiniBand NDR", alpha=4e-6, beta=50e9)
ETHERNET_100G = Link("100 GbE", alpha=25e-6, beta=12.5e9)
HOME_INTERNET = Link("home internet", alpha=20e-3, beta=2.5e6)


@dataclass(frozen=True, slots=True)
class Network:
    """Ranks in nodes: `intra` links two ranks of one node, `inter` two ranks of different nodes.

    Ranks fill nodes in order: rank r lives in node `r // ranks_per_node`. Each rank has its own port to the network
    between nodes, as in a cluster with one network card for each GPU; where the network is `shared`, each node has one
    for all of its ranks.
    """

    intra: Link
    inter: Link
    ranks_per_node: int | None = None  # None: all ranks in one node
    world_size: int | None = None  # None: as many as the trace has
    shared: bool = False  # True: a node has one port out and one in, towards other nodes

    def __post_init__(self) -> None:
        for name in ("ranks_per_node", "world_size"):
            number = getattr(self, name)
            if number is not None and not (isinstance(number, int) and number >= 1):
                raise ValueError(f"{name} of a network is a whole number, 1 or more, or None, not {number!r}")

    @classmethod
    def uniform(cls, alpha: float, beta: float, world_size: int | None = None, name: str = "link") -> "Network":
        """Every pair of ranks is linked alike: `alpha` seconds, `beta` bytes per second."""
        return cls.of(Link(name, alpha, beta), world_size)

    @classmethod
    def of(cls, link: Link, world_size: int | None = None) -> "Network":
        """Every pair of ranks is linked by `link`: `Network.of(NVLINK4)` is one node of H100s."""
        return cls(link, link, None, world_size)

    @classmethod
    def cluster(cls, nodes: int, ranks_per_node: int, intra: Link = NVLINK4, inter: Link = INFINIBAND_NDR) -> "Network":
        """`nodes` nodes of `ranks_per_node` ranks; by default H100 nodes on InfiniBand, with a card for each GPU."""
        if not all(isinstance(number, int) and number >= 1 for number in (nodes, ranks_per_node)):
            raise ValueError(f"a cluster is whole nodes of whole ranks, 1 or more, not {nodes} x {ranks_per_node}")
        return cls(intra, inter, ranks_per_node, nodes * ranks_per_node)

    @property
    def nodes(self) -> int | None:
        """How many nodes; None if the world size is open and nodes are bounded."""
        if self.ranks_per_node is None:
            return 1
        return None if self.world_size is None else -(-self.world_size // self.ranks_per_node)

    def node(self, rank: int) -> int:
        """The node that `rank` lives in."""
        return 0 if self.ranks_per_node is None else rank // self.ranks_per_node

    def link(self, src: int, dst: int) -> Link:
        """The class of link between two ranks."""
        return self.intra if self.node(src) == self.node(dst) else self.inter

    def time(self, src: int, dst: int, size: int) -> float:
        """Seconds that a message of `size` bytes takes from `src` to `dst` when its ports are free."""
        return self.link(src, dst).time(size)

    def ports(self, src: int, dst: int) -> tuple[tuple[str, int, bool], tuple[str, int, bool]]:
        """The two ports that a message keeps busy: out of `src` and into `dst`, of the class of their link."""
        inside = self.node(src) == self.node(dst)
        if self.shared and not inside:
            return ("out of node", self.node(src), inside), ("into node", self.node(dst), inside)
        return ("out", src, inside), ("in", dst, inside)

    def flows(self, src: int, dst: int) -> bool:
        """Whether a message shares its ports with others that are under way, instead of waiting until they are free."""
        link = self.link(src, dst)
        return link.burst > 0 or link.buffer > 0 or (self.shared and self.node(src) != self.node(dst))

    def __str__(self) -> str:
        if self.nodes == 1:
            return self.intra.name
        return f"{self.nodes or 'any number of'} nodes of {self.ranks_per_node} ({self.intra.name} / {self.inter.name})"
