"""What layers remember of their largest numbers, of all stages of a pipeline: for a checkpoint of any layout."""

from collections.abc import Mapping, Sequence

from torch.distributed import ProcessGroup

from reference.compression.delayed import PastScales
from reference.zero.agreement import together


class SavedScales:
    """The scales of a rank's layers, as a checkpoint has them.

    Args:
        scales: of this rank's layers.
        everyone: all ranks of the plan.
    """

    def __init__(self, scales: PastScales, everyone: ProcessGroup) -> None:
        self.scales, self.everyone = scales, everyone

    def state_dict(self) -> dict[str, list[float]]:
        """Of all layers of the model. Where ranks have other ones, all call this together."""
        mine = self.scales.state_dict()
        if self.scales.communicator.size() == self.everyone.size():
            return mine
        return {key: known for of_rank in together(lambda: mine, self.everyone) for key, known in of_rank.items()}

    def load_state_dict(self, state: Mapping[str, Sequence[float]]) -> None:
        """Remember those of this rank's layers."""
        self.scales.load_state_dict(state)
