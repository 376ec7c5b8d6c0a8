"""What others have computed for real models: bubble rates of several orders, from times that were profiled on GPUs.

Milliseconds of a stage for a micro-batch, and of a message; below the names of orders the part of a step in which ranks
wait. Stages hold 3 layers, the first and the last one fewer. Orders by hand are as in `orders`, 1F1B-I has a layer in
each chunk; ZB-1p and ZB-2p come from the paper's scheduler, with the memory of 1F1B and with twice as much.

Qi et al. 2023, "Zero bubble pipeline parallelism" (arXiv 2401.10241), tables 3, 4, 5 and 9 (A100 of 80 GB).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from reference.pipeline_parallel.simulate import Costs
from reference.zero_bubble.automatic import kept_for_weights

LAYERS = 3  # of a stage
_SHAPES = {"1.5B": (2304, 24, 1024), "14.6B": (5120, 40, 1024)}  # width, heads, sequence
_TABLE = """
model   p    m       F       I      W  message    1F1B  1F1B-I   ZB-H1   ZB-H2   ZB-1p   ZB-2p
1.5B    8   24  18.522  18.086  9.337    0.601  0.2431  0.1055  0.1585  0.1083  0.1585  0.0433
1.5B    8   32  18.513  18.086  9.331    0.626  0.1985  0.0818  0.1242  0.0837  0.1242  0.0039
1.5B    8   64  18.546  18.097  9.321    0.762  0.1240  0.0443  0.0674  0.0444  0.0674  0.0026
14.6B  16   48  11.347  11.248  8.132    0.377  0.2552  0.1104  0.1397  0.0672  0.1397  0.0066
14.6B  16   64  11.307  11.254  8.101    0.379  0.2082  0.0852  0.1088  0.0516  0.1088  0.0054
14.6B  16  128  11.325  11.308  8.109    0.378  0.1251  0.0445  0.0576  0.0266  0.0576  0.0028
"""


@dataclass(frozen=True)
class Setting:
    """A model on a pipeline."""

    model: str  # by the number of its parameters
    stages: int
    micro_batches: int
    costs: Costs  # milliseconds
    bubble_rates: Mapping[str, float]  # by order

    @property
    def weight_share(self) -> float:
        """The share of a stage's activations that gradients of weights need."""
        return kept_for_weights(*_SHAPES[self.model])


def settings() -> list[Setting]:
    """All of the table, row by row."""
    head, *rows = (line.split() for line in _TABLE.strip().splitlines())
    found = []
    for model, p, m, *numbers in rows:
        forward, of_input, of_weight, message, *rates = map(float, numbers)
        costs = Costs(forward, of_input, of_weight, message)
        found.append(Setting(model, int(p), int(m), costs, dict(zip(head[7:], rates, strict=True))))
    return found
