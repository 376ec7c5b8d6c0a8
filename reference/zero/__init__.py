"""ZeRO and FSDP: replicas that share optimizer state, gradients and parameters.

Read `plain.py`; then `sharded.py` for stages 1 and 2; then, for stage 3, `unit.py`, `fully_sharded.py` and its two
drivers. What a step of Ψ parameters and K micro-batches sends from each of n ranks, in elements of Ψ(n-1)/n: ZeRO-1 and
ZeRO-2 2, or 1 + K where gradients stay in shards; FSDP 3K, or 2K where units stay whole from forward to backward.

    plain.py                    the three stages on flat tensors
    sharded.py                  `plain.zero_1` and `zero_2` for any model, with buckets, overlap, mixed precision
    shards.py                   gradients whose shards ranks update, in ZeRO's buckets and in FSDP's units
    unit.py                     flat parameters of one unit: unshard, reshard; a second copy in its node
    units.py                    all units of a model, and what can be done with them; no word on when
    fully_sharded.py            a driver by hooks: `plain.fully_sharded` for any model
    module_calls.py             the calls of a micro-batch, from which hooks tell what is needed next
    by_program.py               a driver by a program: the stages of a pipeline
    choice.py                   which modules make a unit
    plain_matrices.py           optimizers that look at a whole matrix: Muon, Shampoo, SOAP
    matrix_routes.py            which rank owns which matrix, and how its pieces get there and back
    whole_matrices.py           `plain_matrices.muon` under any plan
    lent.py                     parameters that have values only while their unit is whole
    ignored.py                  parameters that stay whole on every rank
    cost.py                     what each strategy sends and keeps, exactly
    checkpoint.py               save under any plan, load under any other
    checkpoint_write.py         how one gets to the disk: plan, write, seal
    checkpoint_state.py         what a checkpoint holds: masters, and what the optimizer remembers
    checkpoint_remembered.py    what a form remembers besides, such as what was not sent of a gradient
    checkpoint_folder.py        a folder whose last good checkpoint survives
    agreement.py                what all ranks decide together before one of them acts
    chunk.py                    pieces of parameters as torch's distributed checkpoint sees them
    answers/just_in_time.py     steps on the way to `plain.fully_sharded`: gather, prefetch, weights in shards
    answers/on_shards.py        hybrid sharding, clipping in shards, loading shards of another world size
    answers/matrices.py         a matrix goes to its owner and back; whose is which
    lab/measured_step.py        what a rank really keeps of a model that ranks share
    lab/elementwise.py          which optimizers may be given a shard, by experiment
    lab/quadratic.py            a loss with a gradient of one line

What the forms of data parallelism need from a model, which may be any `nn.Module`:

| need                                  | replicas             | ZeRO-1, ZeRO-2 | FSDP                             |
|---------------------------------------|----------------------|----------------|----------------------------------|
| the same on every rank at wrapping    | yes                  | yes            | yes, or on meta, with `value`    |
| its parameters stay those, as frozen  | yes                  | yes            | yes                              |
| all parameters are used in every step | yes, or `unused`     | no: zeros      | no: zeros                        |
| parameters are real numbers           | those that learn     | those          | floating point, or `ignored` (+) |
| elementwise, or of `whole_matrices`   | no                   | yes            | yes                              |
| every rank has a batch                | no, see `uneven`     | no             | yes; one may count zero          |
| blocks                                | no                   | no             | in an `nn.ModuleList`, or named  |
| values are loaded                     | before (*)           | before (*)     | before wrapping                  |
| values are read                       | from the model       | from the model | `gather_full`, `full_state_dict` |

(*) Or later, where the model computes in the dtype of its masters. (+) Those are real, too, if they learn.

What does not hold is an error that says so, but for what a form cannot see, and what makes a run worse in silence:

- ranks that begin with different values: `broadcast_state` of `reference.data_parallel.initial` makes them alike,
  before wrapping, and `find_drift` finds them;
- an optimizer over pieces that is not elementwise, such as Adafactor: `require_elementwise` of `lab/elementwise.py`
  refuses it;
- `torch.nn.utils.clip_grad_norm_` over masters in pieces: each rank would take the norm of its own;
- values written through `parameter.data` where they should have been loaded before.

Tied parameters, sparse gradients, outputs of any class, checkpoints, losses of inner tensors and gradient penalties
are right in all of them. In the last micro-batch there is one backward: a module in two reentrant checkpoints needs
`use_reentrant=False`. Optimizers and clipping take the masters, and are told so where they are given something else
(`reference.data_parallel.fixed`).
"""

from .by_program import FullyShardedByProgram
from .choice import units_of
from .fully_sharded import FullySharded
from .sharded import Sharded, ZeroStage

__all__ = ["FullySharded", "FullyShardedByProgram", "Sharded", "ZeroStage", "units_of"]
