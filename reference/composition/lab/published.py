"""What the paper has measured: ten models on Selene, 1.7 to 1008 billion parameters on 32 to 3072 A100s.

Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using Megatron-LM", table 1; the
models of figures 13 to 15. The batch grows with the model, tensor parallelism stops at a node, and d is what remains.
"""

from dataclasses import dataclass

from reference.composition.ptd_p import Machine, Split, Transformer, fastest_of
from reference.trace import Link, Network

SELENE = Machine(
    Network(Link("NVLink 3", alpha=1.9e-6, beta=300e9), Link("InfiniBand HDR", alpha=4e-6, beta=25e9), 8),
    speed=210e12,  # two thirds of the 312 TFLOP/s of an A100: what its largest products reach
    bandwidth=1.6e12,  # four fifths of its 2 TB/s
    pause=50e-6,
    memory=80e9,
)
"""Nodes of 8 A100s with 80 GB. Links as sold; the rest are round numbers with which the model below meets table 1."""

FIGURE_13 = Transformer(layers=32, width=20_480, heads=128)  # 162.2 billion parameters, on 64 GPUs
FIGURES_14_AND_15 = Transformer(layers=32, width=3840, heads=32)  # 5.9 billion, on 64 GPUs


@dataclass(frozen=True)
class Row:
    """A model of table 1."""

    billions: float  # of parameters, as the table has them
    model: Transformer
    tensor: int
    pipeline: int
    ranks: int
    batch: int
    measured: float  # FLOP per second of a rank

    def split(self) -> Split:
        """As the table says; the micro-batch, of which it says nothing, is the one that the model finds fastest."""
        d = self.ranks // self.tensor // self.pipeline
        tried = [
            Split(self.pipeline, self.tensor, d, self.batch, b) for b in (1, 2, 4, 8, 16) if self.batch % (d * b) == 0
        ]
        return fastest_of(tried, self.model, SELENE)


TABLE_1 = tuple(
    Row(billions, Transformer(layers, width, heads), tensor, pipeline, ranks, batch, 1e12 * measured)
    for billions, heads, width, layers, tensor, pipeline, ranks, batch, measured in (
        (1.7, 24, 2304, 24, 1, 1, 32, 512, 137),
        (3.6, 32, 3072, 30, 2, 1, 64, 512, 138),
        (7.5, 32, 4096, 36, 4, 1, 128, 512, 142),
        (18.4, 48, 6144, 40, 8, 1, 256, 1024, 135),
        (39.1, 64, 8192, 48, 8, 2, 512, 1536, 138),
        (76.1, 80, 10_240, 60, 8, 4, 1024, 1792, 140),
        (145.6, 96, 12_288, 80, 8, 8, 1536, 2304, 148),
        (310.1, 128, 16_384, 96, 8, 16, 1920, 2160, 155),
        (529.6, 128, 20_480, 105, 8, 35, 2520, 2520, 163),
        (1008.0, 160, 25_600, 128, 8, 64, 3072, 3072, 163),
    )
)
"""FLOP/s are of the whole step: loading data, optimizer and all."""
