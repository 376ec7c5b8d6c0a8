"""Layouts that were published, rebuilt with their own numbers: what talks along each axis, how much, over which link.

Of a rank in the middle of everything, in one step. What a paper does not say stands in `silent`, and is not guessed.

| axis | what travels                     | bytes that a rank sends in a step                                         |
|------|----------------------------------|---------------------------------------------------------------------------|
| tp   | activations and their gradients  | 2 · 8 (t-1)/t of [tokens, D], for each of its layers                      |
| cp   | keys and values, and gradients   | (2 + 2 + 4) (c-1) of a rank's block of them, for each of its layers       |
| ep   | rows to experts, and back, twice | (bytes there + back) · 2 · copies of [tokens, D], for each such layer     |
| pp   | activations one way, then back   | 2 · 2 of [tokens, D], a t-th of it                                        |
| dp   | parameters; gradients in float32 | (2 gathers + 4) (d-1)/d of this rank's parameters                         |

Numbers have 2 bytes if nothing else is said. A ring goes through all ranks of a node before it leaves it: of g ranks of
a group on one node, one sends to another node, so a rank's own network card carries a g-th of what a rank sends.

Numbers were compared with the texts of the papers, as public repositories hold them:

| of          | read in                                                                                              |
|-------------|------------------------------------------------------------------------------------------------------|
| Llama 3     | tables 3 and 4; sec. 3.3.2: [TP, CP, PP, DP], the innermost first, and gradients reduced in float32  |
| DeepSeek-V3 | sec. 3.1, 3.2.2, 3.3.3 and 4.2; the rows of its tables, the width of its dense layers, the groups of |
|             | its experts and the scale of its gates in the config.json of its weights                             |
| OLMo 7B     | sec. 2.1, 3.1 and 3.4, tables 1 to 5; not the links within a node, which are NVLink 3 as sold        |
| Gemma 2 27B | tables 1 to 3, sec. 3.3; both counts of table 2 come out                                             |
| Yi          | sec. 4: ZeRO-1, "tensor parallel combined with pipeline parallel within each compute node"           |

What could not be verified is what no text says: it stands in `silent`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod

import torch

from reference.expert_parallel.lab import published
from reference.mesh import Mesh
from reference.models import PRESETS, GPTConfig, ModelConfig, architecture, create
from reference.sharding import block_of
from reference.tensor_parallel.layout import spec_of, tensor_axes

HALF, SINGLE, EIGHT_BITS = 2, 4, 1  # bytes of bfloat16, of float32, and of FP8

H100_NVLINK, INFINIBAND_400 = 450e9, 50e9  # bytes per second and direction: stas00/ml-engineering, at commit 744d01e
H800_NVLINK, H800_INFINIBAND = 160e9, 50e9  # DeepSeek-AI 2024, sec. 3.2.2
A100_NVLINK = 300e9  # stas00/ml-engineering, at commit 744d01e

DEEPSEEK_V3 = replace(published.DEEPSEEK_V3, head_size=128)
"""DeepSeek-AI 2024, arXiv:2412.19437, sec. 4.2, but for two things that our models do not have.

Its attention is latent (MLA): keys and values are made of 512 numbers of a token, which takes fewer parameters than
ours. And a module of its own predicts one token more while it is trained (MTP), which the 671 billion leave out.
"""

LATENT = {"heads": 128, "head": 128, "keys and values": 512, "queries": 1536, "rotary": 64}
"""Of its attention, sec. 4.2: n_h, d_h, d_c, d'_c and d^R_h."""


def latent_attention_parameters(width: int = DEEPSEEK_V3.width) -> int:
    """Of one layer of DeepSeek-V3, sec. 2.1.1, equations 1 to 11, with a norm after both compressions."""
    heads, head, low, low_q, rotary = LATENT.values()
    queries = width * low_q + low_q + low_q * heads * (head + rotary)
    keys_and_values = width * (low + rotary) + low + low * heads * 2 * head
    return queries + keys_and_values + heads * head * width


def parameters_by_kind(config: ModelConfig) -> Mapping[str, int]:
    """How many numbers a model on the meta device has, by what they are for."""
    found: dict[str, int] = {}
    for name, shape in shapes(config).items():
        found[kind_of(name)] = found.get(kind_of(name), 0) + shape.numel()
    return found


@cache
def shapes(config: ModelConfig) -> Mapping[str, torch.Size]:
    """Of all parameters of a model, which has no values."""
    model = create(architecture, config, device="meta")
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def kind_of(name: str) -> str:
    """What a parameter is for, by its name."""
    if name.endswith("norm.weight"):
        return "norms"
    of_part = {".experts.": "experts", ".shared.": "shared experts", ".router.": "routers", ".attention.": "attention"}
    found = [kind for part, kind in of_part.items() if part in name]
    return found[0] if found else "feed-forwards" if ".feed_forward." in name else "tables"


@dataclass(frozen=True)
class PublishedLayout:
    """A model, its ranks, and what they read in a step.

    Attributes:
        name: of model and run.
        model: in its own numbers.
        axes: ranks along each axis, the outermost first; of experts' axes "edp" and "ep" stand in the place of "dp".
        sequence: tokens of a window; 0 where the paper is silent.
        windows: that a rank reads in a step, together with those that share them; 0 where the paper is silent.
        node: ranks in a node; None where links are no two classes.
        intra, inter: bytes per second and direction of a rank's links, within a node and between nodes.
        gathers: how often parameters are gathered in a step.
        there, back: bytes of a number of a token's row, on its way to an expert and back.
        seconds: of a step, as published or as follows from what is.
        source, silent: the paper, and what it does not say.
    """

    name: str
    model: GPTConfig
    axes: Mapping[str, int]
    sequence: int
    windows: int
    node: int | None
    intra: float
    inter: float
    source: str
    silent: str
    gathers: int = 1
    there: int = HALF
    back: int = HALF
    seconds: float = 0.0
    mesh: Mesh = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mesh", Mesh(self.axes))

    @property
    def ranks(self) -> int:
        """Of all axes together."""
        return prod(self.axes.values())

    def size(self, axis: str) -> int:
        """Ranks along an axis, 1 along one that it does not have."""
        return self.axes.get(axis, 1)

    @property
    def tokens(self) -> int:
        """That one rank holds of a step's windows."""
        return self.windows * self.sequence // self.size("cp")

    @property
    def batch_tokens(self) -> int:
        """Of a step, of all ranks."""
        return self.windows * self.sequence * self.size("dp") * self.size("edp") * self.size("ep")

    def on_a_node(self, *axes: str) -> int:
        """Ranks of the first group along some axes that are on the first node."""
        return sum(rank < (self.node or self.ranks) for rank in self.mesh.group_of(0, *axes))


@dataclass(frozen=True)
class Said:
    """What one rank sends along some axes in a step.

    Attributes:
        axes: as "tp", or "dp x cp".
        what: travels.
        bytes: that it sends.
        leaving: of these, through its own card to other nodes.
        seconds: that its link is busy with it, the slower of both.
    """

    axes: str
    what: str
    bytes: float
    leaving: float
    seconds: float


def said_in_a_step(layout: PublishedLayout) -> list[Said]:
    """What a rank sends along each axis that has several ranks, what talks most first; [] where no batch is known."""
    if not layout.windows:
        return []
    model, p, t, c = layout.model, layout.size("pp"), layout.size("tp"), layout.size("cp")
    stream, layers = layout.tokens * model.width, model.layers / p
    keys = 2 * layout.tokens * model.kv_heads // t * model.head_dim
    found = {
        ("tp",): ("activations", HALF * 8 * (t - 1) / t * stream * layers),
        ("cp",): ("keys and values", (HALF + HALF + SINGLE) * (c - 1) * keys * layers),
        ("pp",): ("activations of a stage", HALF * 2 * stream / t * (p > 1)),
        **_gradients(layout),
    }
    rows = [_row(layout, axes, what, size) for axes, (what, size) in found.items() if size]
    return sorted([*rows, *_experts(layout)], key=lambda row: -row.bytes)


def _gradients(layout: PublishedLayout) -> dict[tuple[str, ...], tuple[str, float]]:
    """Parameters that are gathered, and gradients that are summed, of dense layers and of experts."""
    width = HALF * layout.gathers + SINGLE
    dense, experts = held(layout)
    batch = tuple(axis for axis in ("dp", "edp", "ep", "cp") if layout.size(axis) > 1)
    replicas = prod(layout.size(axis) for axis in batch)
    found = {batch: ("gradients and parameters", width * dense * (replicas - 1) / replicas)}
    if experts and layout.size("edp") > 1:
        n = layout.size("edp")
        found["edp",] = ("the same of experts", width * experts * (n - 1) / n)
    return found


def _experts(layout: PublishedLayout) -> list[Said]:
    """Rows to experts: one copy to each node between nodes, and one to each expert inside."""
    model = layout.model
    if layout.size("ep") == 1:
        return []
    row = (layout.there + layout.back) * 2 * layout.tokens * model.width * len(model.expert_layers) / layout.size("pp")
    across, inside = model.top_groups * row, model.top_k * row
    return [
        Said("ep", "rows between nodes, at most", across, across, across / layout.inter),
        Said("ep", "rows within nodes, at most", inside, 0.0, inside / layout.intra),
    ]


def _row(layout: PublishedLayout, axes: tuple[str, ...], what: str, size: float) -> Said:
    here, group = layout.on_a_node(*axes), prod(layout.size(axis) for axis in axes)
    leaving = size / here if here < group else 0.0
    seconds = max(leaving / layout.inter if leaving else 0.0, size / layout.intra if here > 1 else 0.0)
    return Said(" x ".join(axes), what, size, leaving, seconds)


def held(layout: PublishedLayout) -> tuple[float, float]:
    """How many numbers a rank holds, of dense layers and of experts: a mean over the stages of its pipeline.

    Blocks are those of the specs. Of DeepSeek-V3's attention its own numbers are taken, not those of ours.
    """
    config, t, ep = layout.model, layout.size("tp"), layout.size("ep")
    mesh, view = Mesh(tensor_axes(config, t)), Mesh({"ep": ep, "etp": 1})
    dense = experts = 0
    for name, shape in shapes(config).items():
        kind, spec = kind_of(name), spec_of(name, config.layout, slices_tokens=False)
        numel = block_of(shape, spec, view if kind == "experts" else mesh, 0).numel
        if kind == "experts":
            experts += numel
        elif config is not DEEPSEEK_V3 or kind != "attention":
            dense += numel
    if config is DEEPSEEK_V3:
        dense += config.layers * latent_attention_parameters()
    return dense / layout.size("pp"), experts / layout.size("pp")


_LLAMA_SOURCE = "Llama Team 2024, arXiv:2407.21783, tables 3 and 4, sec. 3.3.2"
_LLAMA = {"model": PRESETS["llama3-405b"], "node": 8, "intra": H100_NVLINK, "inter": INFINIBAND_400}
LLAMA_8K = PublishedLayout(
    "Llama 3 405B, 8K",
    axes={"dp": 128, "pp": 16, "cp": 1, "tp": 8},
    sequence=8192,
    windows=16,
    source=_LLAMA_SOURCE,
    silent="how long a micro-batch is",
    seconds=6 * 405e9 * 16 * 128 * 8192 / (16_384 * 400e12),
    **_LLAMA,
)
LLAMA_128K = PublishedLayout(
    "Llama 3 405B, 128K",
    axes={"dp": 8, "pp": 16, "cp": 16, "tp": 8},
    sequence=131_072,
    windows=16,
    source=_LLAMA_SOURCE,
    silent="how long a micro-batch is",
    **_LLAMA,
)
DEEPSEEK = PublishedLayout(
    "DeepSeek-V3",
    model=DEEPSEEK_V3,
    axes={"pp": 16, "edp": 2, "ep": 64},
    sequence=4096,
    windows=15_360 // 128,
    node=8,
    intra=H800_NVLINK,
    inter=H800_INFINIBAND,
    there=EIGHT_BITS,
    source="DeepSeek-AI 2024, arXiv:2412.19437, table 1, sec. 3.1 to 3.3 and 4.2",
    silent="the order of its axes, how 61 layers make 16 stages, and in which dtype gradients travel",
    seconds=2.664e6 * 3600 / 2048 / (14.8e12 / (15_360 * 4096)),
)
OLMO = PublishedLayout(
    "OLMo 7B, a micro-batch",
    model=GPTConfig(32, 4096, 32, 32, 11_008, vocabulary=50_304),
    axes={"dp": 27 * 8},
    sequence=2048,
    windows=2,
    node=8,
    intra=A100_NVLINK,
    inter=800e9 / 8 / 8,  # bits, and ranks of a node
    gathers=2,
    source="Groeneveld et al. 2024, arXiv:2402.00838, sec. 3: 27 nodes of 8 A100, 800 Gbit/s for each node",
    silent="which batch it was: 2,160 windows (table 5) are five micro-batches of two, 2,048 (sec. 3.1) do not divide",
)
GEMMA = PublishedLayout(
    "Gemma 2 27B",
    model=GPTConfig(46, 4608, 32, 16, 36_864, vocabulary=256_128, tied=True, head_size=128, activation="gelu"),
    axes={"dp": 768, "tp": 8},
    sequence=8192,
    windows=0,
    node=None,
    intra=0.0,
    inter=0.0,
    source="Gemma Team 2024, arXiv:2408.00118, tables 1 to 3, sec. 3.3: 6144 chips of TPU v5p, as 8 x 24 x 32",
    silent="the batch, and how the two axes lie on the torus of chips",
)
LAYOUTS = (LLAMA_8K, LLAMA_128K, DEEPSEEK, OLMO)
"""Of which a step, or a micro-batch, can be told. Of Gemma 2 only what a chip holds can; of Yi not even that."""
