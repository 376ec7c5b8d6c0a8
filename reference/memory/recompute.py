"""Activation checkpointing: forget what forward made, and make it again when backward needs it.

What backward will need of one block, for each token, in elements (D width, D_kv width of keys and values, F hidden):

| recompute | kept from forward to backward                               | extra work in backward          |
|-----------|-------------------------------------------------------------|---------------------------------|
| none      | 7D + 2 D_kv + 4F: every input of every operation            | nothing                         |
| selective | 3D + 2 D_kv + 2F: x twice; query, key, value; gate and up   | 4SD FLOPs of attention's scores |
| full      | D: the input of the block                                   | the whole forward               |

A matrix product is expensive to repeat. Norms, rotations, the product inside the SwiGLU and the softmax are cheap, and
make more than half of the bytes: that is what the selective form takes advantage of. With D = 256, D_kv = 128, F = 704
and
S = 128 it keeps half of the bytes for 3 % more FLOPs in a step, the full form 5 % for 33 %; on one core of a CPU, where
cheap operations wait for memory too, steps took 6 % and 30 % longer. (Counted with attention that never stores its
S x S scores; without that, none keeps H · S elements more. What the other two keep is always this.)

Chen et al. 2016, "Training deep nets with sublinear memory cost"; Korthikanti et al. 2022, "Reducing activation
recomputation in large transformer models", sec. 5, for the selective form.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks

from reference.choices import Recompute
from reference.errors import BadInput
from reference.models.ops import Around, Linear, Ops, equip

Tensors = Tensor | tuple[Tensor, ...]


class SelectivelyRecomputed(Around):
    """What lies between the matrix products of a block is made again in backward."""

    def column_linear(self, x: Tensor, *layers: Linear) -> tuple[Tensor, ...]:
        """As those inside, without keeping what was recomputed."""
        return forgetting(lambda x: self.inside.column_linear(x, *layers), x)

    def row_linear(self, x: Tensor, layer: Linear) -> Tensor:
        """As those inside, without keeping what was recomputed."""
        return forgetting(lambda x: self.inside.row_linear(x, layer), x)

    def attend(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """As those inside, and again in backward."""
        return recomputed(partial(self.inside.attend, function), *inputs)

    def local(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """As those inside, and again in backward."""
        return recomputed(partial(self.inside.local, function), *inputs)


class FullyRecomputed(Around):
    """Of a block its input alone is kept. Hooks of the block stay outside: they do not run again."""

    def __init__(self, inside: Ops) -> None:
        super().__init__(inside)
        self._decisions = Decisions()  # of the block that computes now

    def block(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """As those inside, and again in backward, with the same decisions."""
        own = Decisions()

        def run(*inputs: Tensor) -> Tensor:
            self._decisions = own.begin()
            return self.inside.block(function, *inputs)

        return recomputed(run, *inputs)

    def decide(self, function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> tuple[Tensor, ...]:
        """As those inside, the first time; what was decided then is kept, and stands the second time."""
        return self._decisions.next(partial(self.inside.decide, function, *inputs))


class Decisions:
    """What a function has decided, in order: it decides once, however often it runs."""

    def __init__(self) -> None:
        self._made: list[tuple[Tensor, ...]] = []
        self._next = 0

    def begin(self) -> "Decisions":
        """Run from the beginning."""
        self._next = 0
        return self

    def next(self, decide: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """The next decision: one that was made, or a new one."""
        if self._next == len(self._made):
            self._made.append(decide())
        self._next += 1
        return self._made[self._next - 1]


def recompute(model: nn.Module, how: Recompute) -> None:
    """Let every block of a model of `reference.models` keep less for backward, in place.

    The loss stays bitwise the same, and with FULL so do all gradients; SELECTIVE adds some of them up in another order.

    Raises:
        BadInput: if no way to recompute is called so.
    """
    equip(model, recomputing(how))


def recomputing(how: Recompute) -> Callable[[Ops], Ops]:
    """From ops to such that recompute.

    Raises:
        BadInput: if no way to recompute is called so.
    """
    match how:
        case Recompute.NONE:
            return lambda ops: ops
        case Recompute.SELECTIVE:
            return SelectivelyRecomputed
        case Recompute.FULL:
            return FullyRecomputed
        case _:
            raise BadInput(f"nothing is recomputed in a way called {how!r}; there are {', '.join(Recompute)}")


def recomputed(function: Callable[..., Tensors], *inputs: Tensor) -> Tensors:
    """`function(*inputs)`, of which backward keeps nothing but the inputs, and runs the function again.

    Dropout drops the same elements both times, and the random state outside is unchanged; `torch.autocast` is as
    it was. A generator of one's own is not put back, and a model that goes over to `eval()` in between computes
    something else the second time. What else a function changes, it changes twice: the running statistics of a batch
    norm, for example. Where two recomputed functions share a parameter, its gradient comes in two parts, and its
    post-accumulate hooks run for each.

    Args:
        function: from tensors to a tensor or a tuple of them. It may use parameters; they get their gradients.
        inputs: what it is given; nothing else that it uses may have been computed from a parameter.

    Raises:
        BadInput: if an input is no tensor, or the function returns something else.
    """
    for x in inputs:
        if not isinstance(x, Tensor):
            kind = type(x).__name__
            raise BadInput(f"a recomputed function is given tensors, not {kind}; bind others with functools.partial")
    anchor = torch.empty(0, requires_grad=True)
    return Recomputed.apply(anchor, function, *inputs)


class Recomputed(Function):
    """Forward without a graph; backward makes the graph, and goes through it at once.

    The `anchor` is an input that needs a gradient, so that autograd comes back here even where `inputs` need none, as
    after a frozen embedding: it cannot know that the function has parameters inside.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, function: Callable[..., Tensors], *inputs: Tensor) -> Tensors:
        ctx.function, ctx.random, ctx.autocast, ctx.second_run = function, RandomState(inputs), Autocast(inputs), None
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)  # an unused output has no gradient: None
        y = function(*inputs)
        require_tensors(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if not torch.autograd._is_checkpoint_valid():
            raise RuntimeError("recomputed functions hand gradients to .grad: call backward(), not torch.autograd.grad")
        inputs, outputs = run_again(ctx)
        ctx.second_run = None
        pairs = [(x, g) for x, g in zip(outputs, gradients, strict=True) if x.requires_grad and g is not None]
        if pairs:
            torch.autograd.backward(*zip(*pairs, strict=True))
        return None, None, *(x.grad for x in inputs)


def require_tensors(y: Any) -> None:
    """Refuse an output of a recomputed function in which autograd would not see the tensors.

    Raises:
        BadInput: that says what it is.
    """
    for x in y if isinstance(y, tuple) else (y,):
        if not isinstance(x, Tensor):
            kind = type(x).__name__ + (" in a tuple" if x is not y else "")
            raise BadInput(f"a recomputed function returns a tensor or a tuple of tensors, not a {kind}")


def run_again(node: Any) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Inputs and outputs of a function that was recomputed, with a graph between them; it runs at the first call.

    Args:
        node: the context of `Recomputed`, which is also the `grad_fn` of its outputs.
    """
    if node.second_run is None:
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in node.saved_tensors]
        with node.random.restored(), node.autocast.restored(), torch.enable_grad():
            outputs = node.function(*inputs)
        node.second_run = inputs, (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
    return node.second_run


class RandomState:
    """Where the random numbers of the CPU, and of the GPUs that `tensors` are on, are at this moment."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.cpu = torch.get_rng_state()
        self.gpus = {device: torch.cuda.get_rng_state(device) for device in {x.device for x in tensors if x.is_cuda}}

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Go back there; at the end, return to where the numbers were."""
        with torch.random.fork_rng(self.gpus):
            torch.set_rng_state(self.cpu)
            for device, state in self.gpus.items():
                torch.cuda.set_rng_state(state, device)
            yield


class Autocast:
    """In which dtypes `torch.autocast` lets the CPU, and the devices of `tensors`, compute at this moment."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        kinds = {"cpu", *(x.device.type for x in tensors)}
        self.dtypes = {
            kind: torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
            for kind in filter(torch.amp.is_autocast_available, kinds)
        }

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Go back there. Casts that forward has cached have no graph, and are not used."""
        with ExitStack() as stack:
            for kind, dtype in self.dtypes.items():
                stack.enter_context(torch.autocast(kind, dtype, enabled=dtype is not None, cache_enabled=False))
            yield


def forgetting(function: Callable[[Tensor], Tensors], x: Tensor) -> Tensors:
    """`function(x)`; if `x` came out of `recomputed`, backward does not keep it, but makes it again.

    A linear layer saves its input. Recomputing what made that input would save little if the layer kept the result.
    """
    node, place = x.grad_fn, x.output_nr
    if not hasattr(node, "second_run"):
        return function(x)
    here = weakref.ref(x)  # the hooks outlive this call, and must not keep x

    def forget(saved: Tensor) -> Tensor | torch.Size:
        mine = _base(saved) is _base(here()) and saved.numel() == here().numel()
        return saved.shape if mine and saved.is_contiguous() and here().is_contiguous() else saved

    def remember(kept: Tensor | torch.Size) -> Tensor:
        return kept if isinstance(kept, Tensor) else run_again(node)[1][place].detach().view(kept)

    with saved_tensors_hooks(forget, remember):
        return function(x)


def _base(x: Tensor) -> Tensor:
    """The tensor that `x` is a view of, or `x` itself."""
    return x if x._base is None else x._base
