"""DeepSpeed: ZeRO by a number in a configuration, and its pipeline.

Rajbhandari et al. 2020, arXiv:1910.02054. It runs on CPUs, over gloo, in float32: its optimizers keep float32 copies
whatever the model has. Gradients are clipped to a norm of 1 unless it is told otherwise. `hpz` (ZeRO++, Wang et al.
2023, arXiv:2306.10209) keeps a second shard among pairs of ranks.
"""

from collections.abc import Iterator
from functools import partial

import deepspeed
import torch.distributed as dist
from deepspeed.pipe import PipelineModule

from reference.frameworks.plain import Course
from reference.models import create
from reference.pipeline_parallel.stages import pieces_of, stage_of

MICRO_BATCHES = 4  # of the pipeline


def losses(course: Course, feature: str) -> Iterator[float]:
    """`zero0` to `zero3`, `zero3-released`, `zero2-defaults`, `hpz`, or `pipeline`."""
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    if feature == "pipeline":
        yield from through_pipeline(course)
        return
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = course.model()
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=course.optimizer(model.parameters()), config=configuration(course, feature, ranks)
    )
    for step in range(course.steps):
        tokens, targets = course.read(step, rank, ranks)
        loss = course.loss(engine(tokens), targets)
        engine.backward(loss)
        engine.step()
        yield loss.item()


def configuration(course: Course, feature: str, ranks: int) -> dict:
    """What one writes into ds_config.json."""
    zero: dict[str, int] = {"stage": 3 if feature == "hpz" else int(feature[4]), "reduce_bucket_size": 10_000}
    if zero["stage"] == 3:
        zero["stage3_param_persistence_threshold"] = 0  # else what is small stays whole on all ranks
    if feature == "zero3-released":
        zero |= {"stage3_max_reuse_distance": 0, "stage3_max_live_parameters": 0}  # else what is used again soon stays
    if feature == "hpz":
        zero["zero_hpz_partition_size"] = 2
    clipping = {} if feature == "zero2-defaults" else {"gradient_clipping": 0.0}  # which is 1.0 unless it is said
    return clipping | {
        "train_micro_batch_size_per_gpu": course.batch // ranks,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
    }


def through_pipeline(course: Course) -> Iterator[float]:
    """1F1B over two ranks."""
    parts = [partial(stage_of, blocks=piece) for piece in pieces_of(course.config, 2)]
    layers = [create(part, course.config, course.seed, dtype=course.dtype) for part in parts]
    model = PipelineModule(layers=layers, num_stages=2, loss_fn=course.loss, partition_method="uniform")
    size = course.batch // MICRO_BATCHES
    config = {"train_micro_batch_size_per_gpu": size, "gradient_accumulation_steps": MICRO_BATCHES}
    config["gradient_clipping"] = 0.0
    engine, *_ = deepspeed.initialize(model=model, optimizer=course.optimizer(model.parameters()), config=config)
    for step in range(course.steps):
        read = (course.read(step, k, MICRO_BATCHES) for k in range(MICRO_BATCHES))
        yield engine.train_batch(read).item()
