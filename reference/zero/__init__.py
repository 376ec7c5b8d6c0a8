"""ZeRO and FSDP: replicas that share optimizer state, gradients and parameters.

What the forms of data parallelism need from a model, which may be any `nn.Module`:

| need                                  | replicas             | ZeRO-1, ZeRO-2 | FSDP                            |
|---------------------------------------|----------------------|----------------|---------------------------------|
| the same on every rank at wrapping    | yes                  | yes            | yes, or on meta, with `value`   |
| its parameters stay those, as frozen  | yes                  | yes            | yes                             |
| all parameters are used in every step | yes, or `unused`     | no: zeros      | no: zeros                       |
| parameters are real numbers           | those that learn     | those          | floating point, or `ignored`    |
| the optimizer is elementwise          | no                   | yes            | yes                             |
| every rank has a batch                | no, see `uneven`     | no             | yes; one may count zero         |
| blocks                                | no                   | no             | in an `nn.ModuleList`, or named |
| values are loaded                     | before (*)           | before (*)     | before wrapping                 |
| values are read                       | from the model       | from the model | `whole`, `full_state_dict`      |

(*) Or later, where the model computes in the dtype of its masters. What does not hold is an error that says so.

Tied parameters, sparse gradients, outputs of any class, checkpoints, losses of inner tensors and gradient penalties
are right in all of them. In the last micro-batch there is one backward: a module in two reentrant checkpoints needs
`use_reentrant=False`. Optimizers and clipping take the masters, and are told so where they are given something else
(`reference.data_parallel.fixed`).
"""

from .choice import units_of
from .fully_sharded import FullySharded
from .sharded import Sharded, ZeroStage

__all__ = ["FullySharded", "Sharded", "ZeroStage", "units_of"]
