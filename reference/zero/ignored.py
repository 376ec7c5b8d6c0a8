"""Parameters that stay whole on every rank, in a model whose others are sharded: `ignored` of `FullySharded`.

A few numbers that many modules read, a router that must not be rounded, a codebook: where gathering costs more than it
saves. They are trained as in plain data parallelism: their gradients are summed over all ranks, once a step.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from reference.collectives.communicator import Communicator
from reference.collectives.default import over
from reference.data_parallel.buckets import Bucket, Buckets
from reference.data_parallel.gradient_sync import ParameterShard, trainable
from reference.data_parallel.replicated import master_of, round_to_parameters
from reference.dtypes import give_gradient
from reference.errors import BadInput
from reference.memory.precision import Precision


class Ignored:
    """Gradients of replicated parameters, and their masters.

    Args:
        named: the parameters by name; those that are frozen stay as they are.
        groups: of ranks, or communicators, along all of which gradients are summed: those that share shards first.
        precision: in which parameters compute, gradients are summed and masters are kept.

    Raises:
        BadInput: for one without values, and a complex one that learns.
    """

    def __init__(
        self, named: dict[str, nn.Parameter], groups: Sequence[ProcessGroup | Communicator], precision: Precision
    ) -> None:
        for name, parameter in named.items():
            if parameter.is_meta:
                raise BadInput(f"{name} is on the meta device, and what is ignored is not gathered: give it values")
        learning = trainable(named.items())
        self._groups = groups
        self._masters = {parameter: master_of(parameter, precision) for parameter in learning.values()}
        first = groups[0].rank() == 0  # of the ranks that share shards, one counts these in the norm
        self.parts = tuple(
            ParameterShard(name, p.shape, 0, p.numel(), self._masters[p], is_primary=first)
            for name, p in learning.items()
        )
        bucket = [Bucket([*learning.values()], precision.gradients)] if learning else []
        self._buckets = Buckets(bucket, lambda bucket: None)

    @property
    def filled(self) -> bool:
        """Whether a gradient has come."""
        return self._buckets.filled

    def reduce_gradients(self) -> None:
        """Sum over ranks, and give each master its gradient."""
        for bucket in self._buckets.buckets:
            whole = bucket.complete()
            for group in self._groups:
                over(group).start_all_reduce(whole)()
            for index, master in enumerate(self._masters.values()):
                give_gradient(master, bucket.gradient(index))

    @torch.no_grad()
    def end_step(self) -> None:
        """Round the masters to the parameters; forget the gradients."""
        round_to_parameters(self._masters)
        self._buckets.forget()

    def gradients(self) -> list[Tensor]:
        """The flat buffer, where there is one."""
        return [bucket.flat for bucket in self._buckets.buckets if bucket.flat is not None]


def without(named: dict[str, nn.Parameter], ignored: Iterable[nn.Parameter]) -> dict[str, nn.Parameter]:
    """Those that are sharded, by name.

    Raises:
        BadInput: if something else than a parameter of the model is to be ignored.
    """
    ignored, known = list(ignored), {id(parameter) for parameter in named.values()}
    if strange := [x for x in ignored if id(x) not in known]:
        raise BadInput(f"ignored holds a {type(strange[0]).__name__} that is no parameter of the model")
    out = {id(parameter) for parameter in ignored}
    return {name: parameter for name, parameter in named.items() if id(parameter) not in out}
