"""Ray Train: actors are the ranks; a function that runs on each of them is given to a `TorchTrainer`.

    python -m reference.frameworks.adapters.with_ray ddp FOLDER

Ray makes the process group before the function begins; the tap is a group beside it, which DDP is told to use.
"""

import os
import sys
from collections.abc import Iterator

import ray
import ray.train
import torch.distributed as dist
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model

from reference.frameworks import on_rank
from reference.frameworks.plain import Course
from reference.trace.tap import BACKEND, Recorder, register


def losses(course: Course, feature: str) -> Iterator[float]:
    """`ddp`."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = prepare_model(course.model(), parallel_strategy_kwargs={"process_group": dist.new_group(backend=BACKEND)})
    optimizer = course.optimizer(model.parameters())
    for step in range(course.steps):
        tokens, targets = course.read(step, rank, ranks)
        loss = course.loss(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def on_worker(given: dict) -> None:
    """What each actor runs."""
    recorder = Recorder(dist.get_rank())
    register(recorder)
    found = on_rank.watched("ray", given["feature"], given["folder"], recorder)
    on_rank.write(given["folder"], found, dist.get_rank())
    dist.barrier()


def main(feature: str, folder: str) -> None:
    """Start Ray on this machine, and train."""
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200_000_000)
    trainer = TorchTrainer(
        on_worker,
        train_loop_config={"feature": feature, "folder": folder},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(storage_path=os.path.join(folder, "ray")),
    )
    trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
