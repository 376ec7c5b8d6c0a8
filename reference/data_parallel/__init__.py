"""Data parallelism: every rank holds the whole model and reads its own part of the batch.

Read `plain.py`, then `gradient_sync.py` for what the training loop asks of every form, then the engine,
`replicated.py`. A step sends 2Ψ(n-1)/n elements from each rank, Ψ being the number of parameters, and hides them behind
backward.

    plain.py                    a hook on each parameter, then buckets
    gradient_sync.py            what a form is: parts with masters, a micro-batch, reduce_gradients, end_step
    replicated.py               `plain` with mixed precision, micro-batches, unused and frozen parameters: DDP
    remembered.py               what a form keeps from step to step, beside masters, and how a checkpoint calls it
    buckets.py                  gradients side by side, launched in one order while backward runs
    flat_layout.py              several tensors in one flat one, cut into equal shards
    fixed.py                    a model that changes after wrapping is an error with a name
    norm.py                     the norm of all gradients, wherever they are held, and clipping
    full_parameters.py          whole parameters from the parts that ranks hold
    initial.py                  replicas start alike, and whether they still are
    batch_norm.py               the mean and variance of the whole batch
    uneven.py                   ranks with different numbers of tokens, and of batches
    answers/reduce_on_last.py   micro-batches: send in the last one only
    answers/sampler.py          which samples each rank reads
    answers/metrics.py          numbers about the whole batch
    lab/forecast.py             a step before it runs: what hides behind backward
    lab/sleeping_layers.py      layers that sleep as long as a GPU would compute
"""

from .full_parameters import full_state_dict, gather_full
from .gradient_sync import DataParallel, GradientSync, ParameterShard
from .norm import clip, gradient_norm
from .replicated import DistributedDataParallel, Replicated, flat, naive

__all__ = [
    "DataParallel",
    "DistributedDataParallel",
    "GradientSync",
    "ParameterShard",
    "Replicated",
    "clip",
    "flat",
    "full_state_dict",
    "gather_full",
    "gradient_norm",
    "naive",
]
