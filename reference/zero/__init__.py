"""ZeRO and FSDP: replicas that share optimizer state, gradients and parameters.

What the forms of data parallelism need from a model, which may be any `nn.Module`:

| need                                             | DDP, Replicated       | ZeRO-1 and 2    | FSDP                             |
|--------------------------------------------------|-----------------------|-----------------|----------------------------------|
| the same on every rank when it is wrapped        | yes                   | yes             | yes, or on meta, with `value`    |
| its parameters stay what they are, frozen or not | yes, else `BadInput`  | as DDP          | as DDP                           |
| every parameter is used in every step            | yes, or `unused=True` | no: zero        | no: zero                         |
| real numbers                                     | those that learn      | as DDP          | floating point; `ignored`: any   |
| the optimizer treats each element by itself      | no                    | yes             | yes                              |
| every rank has a batch                           | no, see `uneven`      | no              | yes, maybe one that counts zero  |
| blocks                                           | no                    | no              | in an `nn.ModuleList`, or `units`|
| parameters are read between steps                | model's own           | model's own     | `whole`, `full_state_dict`       |
| values are loaded                                | before wrapping, or fp32 | as DDP       | before wrapping                  |

Tied parameters, sparse gradients, outputs of any class, checkpoints, losses of inner tensors and gradient penalties
are right in all of them. In the last micro-batch there is one backward: a module in two reentrant checkpoints needs
`use_reentrant=False`. Optimizers and clipping take the masters, and say so where they are given parameters that are
none (`reference.data_parallel.fixed`).
"""

from .choice import units_of
from .fully_sharded import FullySharded
from .sharded import Sharded, ZeroStage

__all__ = ["FullySharded", "Sharded", "ZeroStage", "units_of"]
