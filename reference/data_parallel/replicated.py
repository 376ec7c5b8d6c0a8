"""Data parallelism with replicas: every rank holds all parameters, all gradients and all of the optimizer's state.

`DistributedDataParallel` is `plain.reduce_in_buckets` with: one order of launches on all ranks, whatever comes first;
micro-batches; mixed precision; parameters that are unused, tied or frozen; and a step that is checked.

| form      | all-reduces                              | when                                      |
|-----------|------------------------------------------|-------------------------------------------|
| naive     | one for each parameter                   | after backward                            |
| flat      | one, of a copy of all gradients          | after backward                            |
| DDP       | one for each bucket of about 25 MiB      | while backward computes the layers before |

Each sends 2Ψ(n-1)/n elements from every rank, Ψ being the number of parameters. What differs is how many latencies are
paid, and how much of the time is hidden behind backward.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from reference.collectives.communicator import Communicator, Finish
from reference.collectives.default import over
from reference.dtypes import give_gradient
from reference.memory.precision import PRECISIONS, Precision

from .buckets import Bucket, Buckets, in_order_of_use
from .fixed import Wrapped
from .gradient_sync import NoGradient, ParameterShard, StepOrder, freeze_in, require_shapes, trainable

AllReduce = Callable[[Tensor, ProcessGroup], None]
Reduce = Callable[[Sequence[Tensor], ProcessGroup], None]

BUCKET_BYTES = 25 << 20  # as in torch: enough to make a latency small, few enough to begin early


def native(x: Tensor, group: ProcessGroup) -> None:
    """Sum `x` over `group`, in place, by the backend's own all-reduce."""
    dist.all_reduce(x, group=group)


def naive(gradients: Sequence[Tensor], group: ProcessGroup, all_reduce: AllReduce = native) -> None:
    """Sum every gradient over `group`, in place: one all-reduce after another.

    Args:
        gradients: of the same shapes in the same order on every rank.
        group: n ranks.
        all_reduce: how to sum one of them; one of `reference.collectives.all_reduce`, for example.
    """
    for gradient in gradients:
        all_reduce(gradient, group)


def flat(gradients: Sequence[Tensor], group: ProcessGroup, all_reduce: AllReduce = native) -> None:
    """Sum every gradient over `group`, in place: all of them in one flat buffer, in one all-reduce.

    One latency instead of many. The price is a second copy of the gradients, and that nothing is sent before the last
    of them is known. Arguments as for `naive`.
    """
    whole = torch.cat([gradient.flatten() for gradient in gradients])
    all_reduce(whole, group)
    for gradient, summed in zip(gradients, whole.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(summed.view_as(gradient))


def through(communicator: Communicator) -> AllReduce:
    """How `naive` and `flat` sum a tensor through a communicator.

    It is started, as DDP starts its buckets, and waited for at once.
    """
    return lambda x, _: communicator.start_all_reduce(x)()


class Replicated:
    """A model whose gradients are summed after backward.

    Args:
        model: the same on every rank, see `broadcast_state`. Its parameters are rounded to `precision.compute`.
        group: n ranks, or a communicator of them.
        precision: masters are copies of the parameters as they were, unless it computes in what it remembers.
        reduce: how to sum gradients over a process group: a function such as `naive`, or what a reader makes of it.
            `flat` by default, through the communicator.
        unused: parameters may be used on no rank in some steps. Ranks then also tell each other which (a byte for each
            parameter), and a parameter that no rank used gets no gradient. Without it, that is an error.

    Raises:
        BadInput: by `micro_batch`, if a parameter was replaced, added, frozen or thawed since.
        NoGradient: by `reduce_gradients`, if a parameter got no gradient and `unused` is not set.
        RuntimeError: where a step is not what `StepOrder` says.
    """

    shard_groups, units, remembered = (), (), ()

    def __init__(
        self,
        model: nn.Module,
        group: ProcessGroup | Communicator,
        precision: Precision = PRECISIONS["fp32"],
        reduce: Reduce | None = None,
        unused: bool = False,
    ) -> None:
        self.communicator, self.unused = over(group), unused
        self._reduce = reduce or partial(flat, all_reduce=through(self.communicator))
        require_shapes(model)
        freeze_in(model, precision.compute)
        named = trainable(model.named_parameters())
        buckets = self._plan(list(named.values()), precision.gradients)  # before anything is rounded, as ZeRO does
        self.parts = tuple(
            ParameterShard(name, p.shape, 0, p.numel(), master_of(p, precision)) for name, p in named.items()
        )
        self._names = {parameter: name for name, parameter in named.items()}
        self._masters = dict(zip(named.values(), (part.master for part in self.parts), strict=True))
        self._buckets = Buckets(buckets, self._launch)
        copies = any(master is not parameter for parameter, master in self._masters.items())
        self._wrapped = Wrapped(model, masters=self._masters.values(), loadable=not copies)
        self._step = StepOrder()

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        """Gradients add up from one micro-batch to the next; nothing is sent before the last."""
        with self._step.micro_batch(last, self._buckets.filled):
            self._wrapped.require_unchanged()
            self._wrapped.begin_gradients()
            if last:
                self._buckets.expect()
            yield
            if last:
                self._buckets.flush(last)
                self._wrapped.hide_gradients()

    def begin_step(self) -> None:
        """As for `DataParallel`."""
        self._step.begin_step()

    def reduce_gradients(self) -> None:
        """Sum over ranks, and give each master its gradient."""
        self._step.reduce_gradients()
        self._finish()
        used = self._used()
        for bucket in self._buckets.buckets:
            for index, parameter in enumerate(bucket.parameters):
                master = self._masters[parameter]
                give_gradient(master, bucket.gradient(index) if used[parameter] else None)

    @torch.no_grad()
    def end_step(self) -> None:
        """Round the masters to the working parameters, where they are not the same; forget the gradients."""
        round_to_parameters(self._masters)
        self._wrapped.note_values()
        self._wrapped.begin_gradients()
        self._buckets.forget()
        self._step.end_step()

    def gradients(self) -> list[Tensor]:
        """The flat buffers; they stay from one step to the next."""
        return [bucket.flat for bucket in self._buckets.buckets if bucket.flat is not None]

    def _plan(self, parameters: list[nn.Parameter], dtype: torch.dtype) -> list[Bucket]:
        return [Bucket([parameter], dtype) for parameter in parameters]

    def _launch(self, bucket: Bucket) -> None:
        """Nothing yet: everything is summed after backward."""

    def _finish(self) -> None:
        gradients = [bucket.complete() for bucket in self._buckets.buckets]
        if gradients and self.communicator.size() > 1:
            self._reduce(gradients, self.communicator.group)

    def _used(self) -> dict[nn.Parameter, bool]:
        """Which parameters any rank has used in this step."""
        here = {p: index in b.filled for b in self._buckets.buckets for index, p in enumerate(b.parameters)}
        if not (self.unused and here):
            if missing := [self._names[parameter] for parameter, filled in here.items() if not filled]:
                raise NoGradient(
                    f"{missing[0]} got no gradient in this step ({len(missing)} of {len(here)} did not): "
                    "if that may happen, say unused=True"
                )
            return here
        flags = torch.tensor(list(here.values()), dtype=torch.uint8, device=next(iter(here)).device)
        self.communicator.start_all_reduce(flags, dist.ReduceOp.MAX)()
        return dict(zip(here, flags.bool().tolist(), strict=True))


class DistributedDataParallel(Replicated):
    """A model whose gradients are summed while backward still computes (Li et al. 2020).

    Args:
        model, group, precision, unused: as for `Replicated`.
        bucket_bytes: size of a bucket, in bytes of parameters as they were given.
    """

    def __init__(
        self,
        model: nn.Module,
        group: ProcessGroup | Communicator,
        precision: Precision = PRECISIONS["fp32"],
        bucket_bytes: int = BUCKET_BYTES,
        unused: bool = False,
    ) -> None:
        self._bucket_bytes = bucket_bytes
        self._under_way: list[Finish] = []
        super().__init__(model, group, precision, unused=unused)

    def _plan(self, parameters: list[nn.Parameter], dtype: torch.dtype) -> list[Bucket]:
        return [Bucket(group, dtype) for group in in_order_of_use(parameters, self._bucket_bytes)]

    def _launch(self, bucket: Bucket) -> None:
        whole = bucket.complete()
        if self.communicator.size() > 1:
            self._under_way.append(self.communicator.start_all_reduce(whole))

    def end_step(self) -> None:
        """As for `Replicated`. What a step that failed has sent must arrive before its buffers serve again."""
        self._finish()
        super().end_step()

    def _finish(self) -> None:
        for finish in self._under_way:
            finish()
        self._under_way.clear()


@torch.no_grad()
def round_to_parameters(masters: Mapping[nn.Parameter, nn.Parameter]) -> None:
    """Give each parameter the value of its master, where that is another tensor; forget the masters' gradients."""
    for parameter, master in masters.items():
        master.grad = None
        if master is not parameter:
            parameter.copy_(master)


def master_of(parameter: nn.Parameter, precision: Precision) -> nn.Parameter:
    """The parameter itself, or a copy if it must be rounded to compute with it."""
    if precision.compute == precision.master:
        parameter.data = parameter.data.to(precision.master)
        return parameter
    master = nn.Parameter(parameter.detach().to(precision.master, copy=True))
    parameter.data = parameter.data.to(precision.compute)
    return master
