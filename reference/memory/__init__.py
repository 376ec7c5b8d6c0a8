"""What a training run keeps in memory, as formulas and as measured, and the ways to keep less.

Read `recipe.py` for what there is, then each way to keep less: `plain.py` has two of them in a page, and
`accumulation.py` and `recompute.recompute` are as short. Bytes for Ψ parameters with Adam: 16Ψ, whatever the precision.

| way                    | saves                               | costs                                     |
|------------------------|-------------------------------------|-------------------------------------------|
| accumulation           | activations of all but one K-th     | nothing; smaller matrix products          |
| a loss in chunks       | logits of all but a chunk of tokens | nothing; smaller matrix products          |
| mixed precision        | half of the activations             | masters in float32; for fp16 a loss scale |
| recomputation          | a half to nearly all activations    | 3 to 33 % more FLOPs                      |
| optimizer elsewhere    | 8Ψ or 12Ψ bytes of the device       | 4Ψ bytes or more over the bus, each step  |
| activations elsewhere  | activations of the device           | their bytes over the bus, twice           |

What there is, as formulas

    recipe.py               bytes of parameters, gradients and optimizer state, for recipes of real trainings
    activations.py          bytes of activations of the GPT of this course, exactly
    korthikanti.py          the same for the classic layer: s b h (34 + 5 a s / h), term by term
    workload.py             the history of a step that has not run
    history.py              how much memory was taken by what, moment after moment: what formulas and gauges return
    saved.py                what autograd really saves, each storage once
    gpus.py                 how much memory GPUs have

Ways to keep less

    plain.py                one step with masters, with a loss scale, with Adam's moments on the host
    accumulation.py         one micro-batch after another
    precision.py            `plain.update_masters` for any optimizer, and gradients over micro-batches
    loss_scaling.py         `plain.scaled_step` as an object of the loop, with a state that a checkpoint holds
    chunked_loss.py         a loss over a large vocabulary, whose logits are never there at once
    recompute.py            forget what forward made, and make it again
    offload.py              `plain.offloaded_adam` for any optimizer; the update is computed where its state is
    activation_offload.py   activations wait for backward elsewhere
    offload_targets.py      where elsewhere is: the CPU's memory, or files
    state_names.py          what an optimizer remembers of a parameter, found out by one step
    weight_gradients.py     a weight's gradient by hand, so that one can choose when it is computed and where it goes
    fast/fused.py           `weight_gradients` where multiplying and adding up are one product

Beside them

    answers/estimates.py    three sums for the back of an envelope
    answers/bf16_sum.py     where a sum in few bits stops growing
    lab/gauge.py            what a real step keeps, byte by byte, by kind
    lab/storages.py         each storage from its first operation to its end
    lab/sums.py             what a long sum in few bits loses, and three ways not to lose it
    lab/host.py             a host's memory for `plain.offloaded_adam`
"""

from reference.memory.lab.gauge import CUDA_GRAIN, Gauge

from .accumulation import accumulate, micro_batches
from .activation_offload import offload_activations
from .gpus import GPUS
from .history import KINDS, History, Mark, MemoryKind
from .loss_scaling import LossScaler, NoScaler, scaler_of
from .offload import DiskStorage, HostMemory, Offload, OffloadedOptimizer, OffloadTarget, offload_target, offload_values
from .precision import PRECISIONS, MasterWeights, Precision
from .recipe import RECIPES, Breakdown, Recipe, Stage, fewest_ranks, fits, largest_model, shard, state_bytes
from .recompute import Recompute, recomputed
from .saved import Saved, saved_tensors
from .workload import Workload

__all__ = [
    "CUDA_GRAIN",
    "GPUS",
    "KINDS",
    "PRECISIONS",
    "RECIPES",
    "Breakdown",
    "DiskStorage",
    "Gauge",
    "History",
    "HostMemory",
    "LossScaler",
    "Mark",
    "MasterWeights",
    "MemoryKind",
    "NoScaler",
    "Offload",
    "OffloadTarget",
    "OffloadedOptimizer",
    "Precision",
    "Recipe",
    "Recompute",
    "Saved",
    "Stage",
    "Workload",
    "accumulate",
    "fewest_ranks",
    "fits",
    "largest_model",
    "micro_batches",
    "offload_activations",
    "offload_target",
    "offload_values",
    "recomputed",
    "saved_tensors",
    "scaler_of",
    "shard",
    "state_bytes",
]
