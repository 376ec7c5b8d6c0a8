"""What others have measured and trained with context parallelism.

Zhu, github.com/zhuzilin/ring-flash-attention, README.md at commit 01c8baf: attention of Llama 3.1 8B's shape, 8192
tokens on each of 8 GPUs, as a share of what flash attention alone takes for an eighth of the work.

Dubey et al. 2024, "The Llama 3 herd of models" (arXiv 2407.21783), table 4.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Efficiency:
    """One line of the first table: shares of the ideal, 1 for no loss; None where there is no measurement.

    Attributes:
        gpu: eight of them, connected by NVLink.
        backward: whether that is measured, too.
        documents: whether the sequence is packed from several.
        contiguous, zigzag, striped: rings of these layouts.
        all_gather: Llama 3's way.
    """

    gpu: str
    backward: bool
    documents: bool
    contiguous: float
    zigzag: float
    striped: float | None = None
    all_gather: float | None = None

    @property
    def name(self) -> str:
        """For a table."""
        return f"{self.gpu}, forward{' and backward' * self.backward}{', documents' * self.documents}"


EFFICIENCIES = (
    Efficiency("H800", False, False, 0.521, 0.852, striped=0.744),
    Efficiency("H800", True, False, 0.539, 0.902, striped=0.829),
    Efficiency("A100", False, False, 0.514, 0.817, striped=0.696),
    Efficiency("A100", True, False, 0.525, 0.898, striped=0.826),
    Efficiency("H800", False, True, 0.491, 0.702, all_gather=0.570),
    Efficiency("H800", True, True, 0.511, 0.759, all_gather=0.581),
    Efficiency("A100", False, True, 0.498, 0.720, all_gather=0.516),
    Efficiency("A100", True, True, 0.521, 0.802, all_gather=0.580),
)


@dataclass(frozen=True)
class TrainingStage:
    """How GPUs of Llama 3 405B were arranged for a while: one row of the second table."""

    gpus: int
    tensor: int
    context: int
    pipe: int
    data: int
    sequence: int  # tokens of a window
    windows: int  # that a replica takes in a step

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.data * self.windows * self.sequence


LLAMA3_405B = (
    TrainingStage(8_192, 8, 1, 16, 64, 8_192, 32),
    TrainingStage(16_384, 8, 1, 16, 128, 8_192, 16),
    TrainingStage(16_384, 8, 16, 16, 8, 131_072, 16),
)
"""The last row is that of long sequences; one text of the paper prints 4 replicas there: half of the GPUs."""
