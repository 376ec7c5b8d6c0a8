"""DeepSpeed from a checkpoint of ours, and ours from one of its: universal checkpoints.

Lian et al. 2024, arXiv:2406.18820.
"""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import deepspeed
import torch.distributed as dist
from deepspeed.checkpoint import ds_to_universal

from reference.frameworks.adapters import moved
from reference.frameworks.adapters.with_deepspeed import configuration
from reference.frameworks.moving import Contents
from reference.frameworks.moving_deepspeed import from_deepspeed, to_deepspeed
from reference.frameworks.plain import Course


def losses(course: Course, feature: str) -> Iterator[float]:
    """`zero1-moved` or `zero3-moved`."""
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    yield from moved.losses(course, DeepSpeedEngine(course, feature))


class DeepSpeedEngine:
    """ZeRO of a stage."""

    def __init__(self, course: Course, feature: str) -> None:
        model = course.model()
        config = configuration(course, feature, dist.get_world_size()) | {"checkpoint": {"load_universal": True}}
        self.engine, *_ = deepspeed.initialize(
            model=model, optimizer=course.optimizer(model.parameters()), config=config
        )
        self.course, self.saves = course, 0

    def load(self, contents: Contents) -> None:
        """From a folder that rank 0 writes."""
        folder = Path(self.course.folder, "theirs")
        if dist.get_rank() == 0:
            to_deepspeed(*contents, folder)
        dist.barrier()
        self.engine.load_checkpoint(folder)

    def step(self, number: int) -> float:
        """As in any run of DeepSpeed."""
        tokens, targets = self.course.read(number, dist.get_rank(), dist.get_world_size())
        loss = self.course.loss(self.engine(tokens), targets)
        self.engine.backward(loss)
        self.engine.step()
        return loss.item()

    def saved(self) -> Contents | None:
        """Each rank its piece; rank 0 puts them together."""
        self.saves += 1
        folder = Path(self.course.folder, f"saved {self.saves}")
        self.engine.save_checkpoint(folder, tag="pieces")
        if dist.get_rank():
            return None
        places = {"input_folder": str(folder / "pieces"), "output_folder": str(folder / "whole")}
        options = {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False}
        ds_to_universal.main(SimpleNamespace(strict=True, inject_missing_state=True, **places, **options))
        return from_deepspeed(folder)
