"""What others have built and measured with experts over ranks.

DeepSeek-AI 2024, "DeepSeek-V3 technical report" (arXiv 2412.19437): sec. 4.2, the model; sec. 2.1.2, its router;
sec. 3.2.2, at most 4 nodes for a token.

DeepEP, github.com/deepseek-ai/DeepEP, README.md at commit 0297fc8: 8K tokens in a batch, 7168 wide, 8 experts each,
FP8 to the experts and BF16 back. Its bandwidths count what stays on a rank, too.
"""

from dataclasses import dataclass

from reference.models.moe_config import Balance, Gate, MoEConfig

DEEPSEEK_V3 = MoEConfig(
    layers=61,
    width=7168,
    heads=128,
    kv_heads=128,
    hidden=18_432,
    vocabulary=129_280,
    experts=256,
    top_k=8,
    expert_hidden=2048,
    shared_experts=1,
    dense_layers=3,
    gate=Gate.SIGMOID,
    scale=2.5,
    expert_groups=8,
    top_groups=4,
    balance=Balance.BIAS,
    balance_rate=0.001,
)
"""Its layers of experts. Attention is another there (latent), so counts of all parameters are not the model's."""


@dataclass(frozen=True)
class Measured:
    """One line of DeepEP's table.

    Attributes:
        gpu: architecture, and the card between nodes, if any.
        ranks_per_node, nodes: that share the experts.
        dispatch, combine: bytes in a second of the slowest link, counted as if nothing stayed on its rank.
        link: which one that is.
        multiprocessors: of a GPU that are busy with it.
    """

    gpu: str
    ranks_per_node: int
    nodes: int
    dispatch: float
    combine: float
    link: str
    multiprocessors: int


DEEPEP = (
    Measured("SM90, CX7", 8, 2, 90e9, 81e9, "RDMA", 12),
    Measured("SM90, CX7", 8, 4, 61e9, 61e9, "RDMA", 6),
    Measured("SM100, CX7", 8, 2, 90e9, 91e9, "RDMA", 12),
    Measured("SM100", 8, 1, 726e9, 740e9, "NVLink", 64),
    Measured("SM100", 8, 1, 643e9, 675e9, "NVLink", 24),
)
