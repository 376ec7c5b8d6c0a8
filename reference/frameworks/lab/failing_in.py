"""The three mistakes of `failing`, made through what each framework has for a sum over ranks.

    python -m torch.distributed.run ... -m reference.frameworks.lab.failing_in rank DeepSpeed "a rank dies"

Each runs in the environment of its framework. Ray starts its ranks itself.
"""

import os
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from tempfile import TemporaryDirectory
from types import MappingProxyType

import torch.distributed as dist

from reference.frameworks.lab.failing import PATIENCE, meet, mistake


def in_deepspeed(event: str) -> None:
    """`deepspeed.comm` is torch's, under another name."""
    import deepspeed

    meet()
    deepspeed.init_distributed(dist_backend="gloo", timeout=timedelta(seconds=PATIENCE), verbose=False)
    mistake(event, deepspeed.comm.all_reduce)


def in_megatron(event: str) -> None:
    """What `RowParallelLinear` does with its output."""
    from megatron.core import parallel_state, tensor_parallel

    meet()
    dist.init_process_group("gloo", timeout=timedelta(seconds=PATIENCE))
    minutes = PATIENCE / 60
    parallel_state.initialize_model_parallel(dist.get_world_size(), distributed_timeout_minutes=minutes)
    mistake(event, tensor_parallel.reduce_from_tensor_model_parallel_region)


def in_accelerate(event: str) -> None:
    """`Accelerator.reduce`, as one sums a number that is to be logged."""
    from accelerate import Accelerator, InitProcessGroupKwargs

    meet()
    patience = InitProcessGroupKwargs(backend="gloo", timeout=timedelta(seconds=PATIENCE))
    mistake(event, Accelerator(cpu=True, kwargs_handlers=[patience]).reduce)


def in_accelerate_debugged(event: str) -> None:
    """All ranks tell their shapes to each other first."""
    os.environ["ACCELERATE_DEBUG_MODE"] = "1"
    in_accelerate(event)


def in_ray(event: str) -> None:
    """Two workers of a `TorchTrainer`, for which Ray makes torch's group; the program that starts them is told."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200_000_000, log_to_driver=False)
    with TemporaryDirectory() as folder:
        try:
            TorchTrainer(
                lambda: mistake(event),
                torch_config=TorchConfig(backend="gloo", timeout_s=PATIENCE),
                scaling_config=ScalingConfig(num_workers=2),
                run_config=RunConfig(storage_path=folder),
            ).fit()
        finally:
            ray.shutdown()


MADE: Mapping[str, Callable[[str], None]] = MappingProxyType(
    {
        "DeepSpeed": in_deepspeed,
        "Megatron Core": in_megatron,
        "Accelerate": in_accelerate,
        "Accelerate, ACCELERATE_DEBUG_MODE=1": in_accelerate_debugged,
        "Ray Train": in_ray,
    }
)
"""By the titles of `failing.ELSEWHERE`."""

if __name__ == "__main__":
    MADE[sys.argv[2]](sys.argv[3])
