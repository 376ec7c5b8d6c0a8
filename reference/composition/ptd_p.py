"""How to split n GPUs into p · t · d, and what a step costs then: pipeline, tensor and data parallelism on paper.

| takeaway                                                    | because                                             |
|-------------------------------------------------------------|-----------------------------------------------------|
| 1 tensor parallelism up to the GPUs of a node, then         | its all-reduces are large, many, and waited for;    |
|   pipeline parallelism across nodes                         | a pipeline sends little, to a neighbour             |
| 2 as much p · t as memory asks for, and d for the rest      | d costs one all-reduce a step; t makes matrices     |
|                                                             | small, p makes bubbles                              |
| 3 the size of a micro-batch is to be tried out: it depends  | large ones compute faster, small ones fill the      |
|   on the model, on p, d and B                               | pipeline better                                     |

Letters: n ranks, p stages, t and d ranks of the other axes, v chunks; B windows of a batch, b of a micro-batch, m =
B/(d b) micro-batches of a pipeline; l layers, h width, a heads, s tokens of a window, V vocabulary.

Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using Megatron-LM" (PTD-P), sec. 3
and 5. The model is GPT-3's kind: a layer has 12 h² weights. Layers are recomputed in backward, as there (sec. 3.5).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from reference.errors import BadInput
from reference.memory.korthikanti import LayerShape
from reference.mesh import Mesh
from reference.networks import hierarchical_time
from reference.trace import Network

HALF = 2  # bytes of a number that is computed with
STATE = 16  # bytes for each parameter with Adam: ZeRO (Rajbhandari et al. 2020), sec. 3.1


@dataclass(frozen=True)
class Transformer:
    """A GPT as the paper has them."""

    layers: int  # l
    width: int  # h
    heads: int  # a
    sequence: int = 2048  # s
    vocabulary: int = 51_200  # V

    @property
    def layer(self) -> int:
        """Parameters of a layer: matrices, biases, norms."""
        return 12 * self.width**2 + 13 * self.width

    @property
    def parameters(self) -> int:
        """12 l h² (1 + 13/(12 h) + (V + s)/(12 l h)): layers, and the tables of tokens and positions (eq. 2)."""
        return self.layers * self.layer + (self.vocabulary + self.sequence) * self.width

    @property
    def layer_flops(self) -> int:
        """Of one layer's forward, for one window: two for each weight and token, and the matrices of attention."""
        return 24 * self.sequence * self.width**2 + 4 * self.sequence**2 * self.width

    @property
    def head_flops(self) -> int:
        """Of the logits' forward, for one window."""
        return 2 * self.sequence * self.width * self.vocabulary

    def flops(self, windows: int) -> int:
        """Of a step: 96 B s l h² (1 + s/(6h) + V/(16 l h)): backward is two forwards, layers are recomputed (eq. 3)."""
        return windows * (4 * self.layers * self.layer_flops + 3 * self.head_flops)


@dataclass(frozen=True)
class Machine:
    """What a rank computes with, and what it is linked by."""

    network: Network
    speed: float  # FLOP per second, in products of large matrices
    bandwidth: float  # bytes per second to and from its memory
    pause: float  # seconds that a layer takes however little it has to do: kernels start, processors fill up
    memory: float  # bytes of a rank


@dataclass(frozen=True)
class Split:
    """How n ranks and a batch are split.

    Raises:
        BadInput: if a size is below 1, or the batch does not divide.
    """

    pipeline: int  # p
    tensor: int  # t
    data: int  # d
    batch: int  # B, windows
    micro_batch: int = 1  # b, windows
    chunks: int = 1  # v, stages on a rank
    scatter_gather: bool = True  # between stages, each of t ranks sends a part of what all of them have

    def __post_init__(self) -> None:
        sizes = self.pipeline, self.tensor, self.data, self.batch, self.micro_batch, self.chunks
        if min(sizes) < 1:
            raise BadInput(f"a split has at least 1 of everything, not {self} of {self.batch} with v = {self.chunks}")
        if self.batch % (self.data * self.micro_batch):
            together = f"{self.data} replicas with micro-batches of {self.micro_batch}"
            raise BadInput(f"a batch of {self.batch} windows does not divide among {together}")
        if self.chunks > 1 and self.micro_batches % self.pipeline:
            raise BadInput(f"{self.micro_batches} micro-batches do not go in groups of {self.pipeline} between chunks")

    @property
    def ranks(self) -> int:
        """n."""
        return self.pipeline * self.tensor * self.data

    @property
    def micro_batches(self) -> int:
        """m, that a pipeline computes in a step."""
        return self.batch // (self.data * self.micro_batch)

    @property
    def bubble(self) -> float:
        """Time that a rank waits over time that it computes: (p-1)/(v m) (sec. 2.2)."""
        return (self.pipeline - 1) / (self.chunks * self.micro_batches)

    @property
    def mesh(self) -> Mesh:
        """Tensor-parallel ranks are neighbours, stages are far apart."""
        return Mesh({"pipe": self.pipeline, "data": self.data, "tensor": self.tensor})

    def __str__(self) -> str:
        return f"p = {self.pipeline}, t = {self.tensor}, d = {self.data}, b = {self.micro_batch}"


def batch_seconds(model: Transformer, split: Split, machine: Machine) -> float:
    """A step: (m + (p-1)/v) times what a micro-batch takes on a rank (eq. 1), and then the gradients' all-reduce."""
    return sum(parts(model, split, machine).values())


def parts(model: Transformer, split: Split, machine: Machine) -> dict[str, float]:
    """Where a rank's seconds go in a step: computing, talking along each axis, waiting in the bubble."""
    each = micro_batch_parts(model, split, machine)
    found = {name: split.micro_batches * seconds for name, seconds in each.items()}
    bubble = split.bubble * sum(found.values())
    return found | {"data": data_seconds(model, split, machine), "bubble": bubble}


def micro_batch_parts(model: Transformer, split: Split, machine: Machine) -> dict[str, float]:
    """Forward, forward again and backward of a rank's layers, and what these wait for.

    Nothing is hidden behind anything: neither all-reduces nor messages between stages. The head is spread over the
    stages, as if it could be cut.
    """
    layers = model.layers / split.pipeline
    head = 3 * split.micro_batch * model.head_flops / (split.pipeline * split.tensor) / machine.speed
    return {
        "computing": 4 * layers * layer_seconds(model, split, machine) + head,
        "tensor": layers * layer_traffic_seconds(model, split, machine),
        "pipe": border_seconds(model, split, machine),
    }


def layer_seconds(model: Transformer, split: Split, machine: Machine) -> float:
    """What a rank computes for a layer's forward: products, and between them what is written and read again."""
    products = split.micro_batch * model.layer_flops / split.tensor / machine.speed
    return products + 2 * _activations(model, split) / machine.bandwidth + machine.pause


def layer_traffic_seconds(model: Transformer, split: Split, machine: Machine) -> float:
    """Six all-reduces of b s h numbers: two forward, two forward again, two backward."""
    return 6 * _all_reduce_seconds(split.mesh, "tensor", HALF * _stream(model, split), machine.network)


def border_seconds(model: Transformer, split: Split, machine: Machine) -> float:
    """What a micro-batch waits for at the borders of a rank's stages: v messages in, in each direction.

    With scatter/gather a message is a t-th of b s h (sec. 4.1): the ranks of the next stage gather the parts among each
    other.
    """
    if split.pipeline == 1:
        return 0.0
    size = HALF * _stream(model, split)
    here, there, *_ = split.mesh.group_of(0, "pipe")
    once = machine.network.link(here, there).time(size / _senders(split))
    if _senders(split) > 1:  # an all-gather is half an all-reduce
        once += _all_reduce_seconds(split.mesh, "tensor", size, machine.network) / 2
    return 2 * split.chunks * once


def data_seconds(model: Transformer, split: Split, machine: Machine) -> float:
    """An all-reduce of the gradients that a rank has."""
    own = HALF * model.parameters / (split.pipeline * split.tensor)
    return _all_reduce_seconds(split.mesh, "data", own, machine.network)


def _all_reduce_seconds(mesh: Mesh, axis: str, size: float, network: Network) -> float:
    """Within nodes, between them, within them."""
    group = mesh.group_of(0, axis)
    together = sum(network.node(rank) == network.node(0) for rank in group)
    intra, inter = ((link.alpha, link.beta) for link in (network.intra, network.inter))
    return hierarchical_time(-(-len(group) // together), together, size, intra, inter)


def _stream(model: Transformer, split: Split) -> int:
    """b s h."""
    return split.micro_batch * model.sequence * model.width


def _senders(split: Split) -> int:
    return split.tensor if split.scatter_gather else 1


def _activations(model: Transformer, split: Split) -> float:
    """Bytes that one layer makes for backward on a rank, of a micro-batch."""
    return float(LayerShape(model.sequence, split.micro_batch, model.width, model.heads, split.tensor).tensor())


def rank_flops(model: Transformer, split: Split, machine: Machine) -> float:
    """FLOP per second of a rank, recomputation counted: what the paper's tables call achieved teraFLOP/s."""
    return model.flops(split.batch) / batch_seconds(model, split, machine) / split.ranks


def memory_bytes(model: Transformer, split: Split) -> float:
    """Of the rank that needs most: 16 bytes for each parameter, inputs of layers in flight, and one layer at work.

    1F1B holds p micro-batches on the first stage, with v chunks (1 + (p-1)/(p v)) times as many (Korthikanti et al.
    2022, sec. 4.2.3), and never more than there are.
    """
    p, t = split.pipeline, split.tensor
    flying = min(split.micro_batches, p if split.chunks == 1 else p + (p - 1) / split.chunks)
    held = flying * model.layers / p * HALF * _stream(model, split)
    return STATE * model.parameters / (p * t) + held + _activations(model, split)


def splits(model: Transformer, ranks: int, batch: int) -> list[Split]:
    """All ways to split ranks and batch that divide, without chunks; micro-batches of 1, 2, 4, ... windows."""
    found = []
    for p in divisors(ranks):
        for t in divisors(ranks // p):
            d = ranks // p // t
            if model.layers % p == 0 and model.heads % t == 0 and batch % d == 0:
                sizes = (b for b in (1, 2, 4, 8, 16, 32) if batch // d % b == 0)
                found += [Split(p, t, d, batch, b) for b in sizes]
    return found


def fastest(model: Transformer, ranks: int, batch: int, machine: Machine) -> Split:
    """The one of all splits whose step is shortest among those that fit.

    Raises:
        BadInput: if nothing divides, or nothing fits.
    """
    found = splits(model, ranks, batch)
    if not found:
        sizes = f"{model.layers} layers, {model.heads} heads and {batch} windows"
        raise BadInput(f"{ranks} ranks cannot be split so that {sizes} divide")
    return fastest_of(found, model, machine)


def fastest_of(candidates: Sequence[Split], model: Transformer, machine: Machine) -> Split:
    """The one of these splits whose step is shortest among those that fit.

    Raises:
        BadInput: if none fits.
    """
    fitting = [split for split in candidates if memory_bytes(model, split) <= machine.memory]
    if not fitting:
        billions = model.parameters / 1e9
        raise BadInput(f"no split of {candidates[0].ranks} ranks has room for {billions:.1f}B parameters")
    return min(fitting, key=lambda split: batch_seconds(model, split, machine))


def divisors(n: int) -> list[int]:
    """In order."""
    return [k for k in range(1, n + 1) if n % k == 0]
