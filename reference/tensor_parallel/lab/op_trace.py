"""What a block of a GPT does on one rank, step by step, forward and backward: noted while it runs.

    attention_norm, gather, query · key · value, attention, output, sum, dropout,
    feed_forward_norm, gather, gate · up, SwiGLU, down, sum, dropout                 and all of it backwards

The region is asked for every product, gather and sum, so it can say when these happen. What lies between them gets a
border on either side: a function that changes nothing, and notes what passes it on the way back.

On ranks of a cluster the steps say what was really sent, and which of them made the same on all ranks. On the meta
device nothing is computed and nothing is sent: so a block of any model runs on any number of ranks
(`reference.tensor_parallel.lab.simulate_layer`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from reference.collectives.communicator import Finish
from reference.data_parallel.initial import fingerprint
from reference.models import GPT, GPTConfig, create, initial_value, materialise, require_gpt
from reference.models.gpt import Block, rotary_cos_sin
from reference.models.ops import Around, Linear, Ops, equip
from reference.tensor_parallel.ops import parallelize_layers, placements, split_parameters
from reference.tensor_parallel.region import Region
from reference.trace import Trace
from reference.trace.activity import Doing


class OpKind(StrEnum):
    """What a step is."""

    WORK = "work"  # without a split matrix: norm, attention, SwiGLU, dropout
    PRODUCT = "product"  # of two matrices
    GATHER = "gather"  # what lies outside a region becomes what every rank needs inside
    SUM = "sum"  # what the ranks made inside is added up

    @property
    def is_collective(self) -> bool:
        """Whether it lies at the border of a region, where ranks may send something."""
        return self in (OpKind.GATHER, OpKind.SUM)


@dataclass(frozen=True)
class LayerOp:
    """One thing that one rank does."""

    site: str  # where in the block: "query, key, value"
    doing: Doing  # forward or backward
    kind: OpKind
    given: tuple[int, ...]  # shape of the first thing that it is made from
    made: tuple[int, ...]  # shape of the first thing that it makes
    dtype: torch.dtype  # of it
    flops: int = 0  # of its matrix products
    fingerprint: int = 0  # of what it makes: equal on two ranks if the numbers are; 0 on the meta device
    calls: tuple[int, int] = (0, 0)  # which calls of this rank it made, the first and the one after the last
    awaited: int = 0  # of a gather or sum: the first step that needs its result, by number
    sent: int = 0  # bytes, by this rank

    @property
    def of_weight(self) -> bool:
        """Whether it is a product that makes the gradient of a weight: [out, in], without tokens."""
        return self.kind is OpKind.PRODUCT and len(self.made) == 2

    @property
    def spent_on(self) -> Doing:
        """What its time goes into: `doing`, with gradients of weights counted apart."""
        return Doing.WEIGHT_GRADIENT if self.of_weight else self.doing


class Border(Function):
    """`apply(seen, *tensors)`: the tensors as they are; in backward, `seen` is given their gradients."""

    @staticmethod
    def forward(ctx: Any, seen: Callable[[Sequence[Tensor]], None], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.seen = seen
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ctx.seen(gradients)
        return None, *gradients


class Recorded(Around):
    """Ops whose work is noted, and where in the block it is.

    Args:
        inside: that do the work.
        at: runs `run(*inputs)` at a site, and notes it as a step with a price in FLOPs, if it has a price.
        names: of the block's modules.
    """

    def __init__(self, inside: Ops, at: Callable[..., Any], names: Mapping[Any, str]) -> None:
        super().__init__(inside)
        self._at, self._names = at, names

    def column_linear(self, x: Tensor, *layers: Linear) -> tuple[Tensor, ...]:
        """Into a region."""
        site = ", ".join(self._names[layer] for layer in layers)
        return self._at(site, None, lambda x: self.inside.column_linear(x, *layers), x)

    def row_linear(self, x: Tensor, layer: Linear) -> Tensor:
        """Out of a region."""
        return self._at(self._names[layer], None, lambda x: self.inside.row_linear(x, layer), x)

    def attend(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Between the two, in attention."""
        return self._at("attention", causal_attention, partial(self.inside.attend, function), *inputs)

    def local(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """A norm; what is no module is between the matrices of a feed-forward."""
        site = self._names.get(function, "SwiGLU")
        return self._at(site, _nothing, partial(self.inside.local, function), *inputs)

    def dropout(self, drop: Callable[..., Tensor], x: Tensor, seeds: Tensor | None) -> Tensor:
        """After a region."""
        return self._at(self._names[drop], _nothing, lambda x: self.inside.dropout(drop, x, seeds), x)


class OpRecorder:
    """The steps of one rank.

    Args:
        calls: how many calls to `torch.distributed` this rank has made so far.
    """

    def __init__(self, calls: Callable[[], int] = lambda: 0) -> None:
        self.steps: list[LayerOp] = []
        self._calls, self._site, self._doing = calls, "", Doing.FORWARD

    def follow(self, block: Block, region: Region) -> None:
        """Note what a block does that computes in `region`. Both are changed in place."""
        region.start_gather = partial(self._collective, OpKind.GATHER, region.start_gather)
        region.start_sum = partial(self._collective, OpKind.SUM, region.start_sum)
        region.multiply = partial(self._multiply, region.multiply)
        names = {module: name.split(".")[-1] for name, module in block.named_modules()}
        equip(block, lambda ops: Recorded(ops, self.at, names))

    def at(self, site: str, price: Callable[..., int] | None, run: Callable[..., Any], *inputs: Any) -> Any:
        """`run(*inputs)`, and its way back, as what happens at `site`; a step of its own if it has a price in FLOPs."""
        self._site, self._doing = site, Doing.FORWARD
        learns = [isinstance(x, Tensor) and x.requires_grad for x in inputs]
        flops = price(*inputs) if price else 0

        def enter(gradients: Sequence[Tensor]) -> None:
            self._site, self._doing = site, Doing.BACKWARD

        def leave(gradients: Sequence[Tensor]) -> None:
            if price:
                self._note(OpKind.WORK, made, gradients[0], flops=2 * flops)  # a gradient for each factor

        inside = iter(Border.apply(leave, *(x for x, learn in zip(inputs, learns, strict=True) if learn)))
        outputs = run(*(next(inside) if learn else x for x, learn in zip(inputs, learns, strict=True)))
        made = outputs if isinstance(outputs, Tensor) else outputs[0]
        if price:
            self._note(OpKind.WORK, inputs[0], made, flops=flops)
        bordered = Border.apply(enter, *([outputs] if isinstance(outputs, Tensor) else outputs))
        return bordered[0] if isinstance(outputs, Tensor) else bordered

    def _multiply(self, multiply: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> Tensor:
        made = multiply(a, b)
        self._note(OpKind.PRODUCT, a, made, flops=2 * made.numel() * a.shape[-1])
        return made

    def _collective(self, kind: OpKind, begin: Callable[[Tensor], Finish], x: Tensor) -> Finish:
        first, place, given = self._calls(), len(self.steps), x.detach()
        self._note(kind, given, given)
        finish = begin(x)
        self.steps[place] = replace(self.steps[place], calls=(first, self._calls()))

        def done() -> Tensor:
            made = finish()
            found = {"made": tuple(made.shape), "fingerprint": known_by(made), "awaited": len(self.steps)}
            self.steps[place] = replace(self.steps[place], **found)
            return made

        return done

    def _note(self, kind: OpKind, given: Tensor, made: Tensor, flops: int = 0) -> None:
        shapes = tuple(given.shape), tuple(made.shape)
        self.steps.append(LayerOp(self._site, self._doing, kind, *shapes, made.dtype, flops, known_by(made)))


def of_block(
    config: GPTConfig, region: Region, batch: int, sequence: int, dtype: torch.dtype, device: str = "cpu"
) -> list[LayerOp]:
    """What this rank does in the first block of a GPT, forward and backward.

    Args:
        config: of the model; its sizes divide among the ranks of the region.
        region: to compute in.
        batch, sequence: B and S of what the block is given, random numbers.
        dtype: of everything.
        device: "meta" to compute nothing.
    """
    require_gpt(config)
    model = create(GPT, replace(config, layers=1), device="meta", dtype=dtype)
    placed = placements(model, region.rank, region.ranks)
    split_parameters(model, placed)
    if device != "meta":
        materialise(model, lambda name, _: placed[name].cut(initial_value(name, placed[name].shape, 1, seed=0)), device)
    parallelize_layers(model, region)
    recorder = OpRecorder(calls_so_far if device != "meta" else lambda: 0)
    recorder.follow(model.blocks[0], region)
    random = torch.Generator(device).manual_seed(0) if device != "meta" else None
    x, upstream = torch.randn(2, batch, sequence, config.width, generator=random, dtype=dtype, device=device)
    cos_sin = rotary_cos_sin(torch.arange(sequence, device=device), config.head_dim, config.rotary_base)
    made = model.blocks[0](region.local_tokens(x).clone().requires_grad_(), cos_sin)
    made.backward(region.local_tokens(upstream))
    return recorder.steps


def with_bytes(ranks: Sequence[Sequence[LayerOp]], trace: Trace) -> list[list[LayerOp]]:
    """The steps of every rank, with what each of them sent, as the trace of the same run counts it."""
    return [
        [replace(step, sent=sum(of_call[step.calls[0] : step.calls[1]])) for step in steps]
        for steps, of_call in zip(ranks, _bytes_of_calls(trace), strict=True)
    ]


def causal_attention(query: Tensor, *_: Tensor) -> int:
    """FLOPs of attention without its projections, [B, S, D / t]: two products, each over half of all pairs of tokens.

    Another two for each of them in backward; what is computed again there to save memory is left out.
    """
    return 2 * query.numel() * query.shape[1]


def known_by(x: Tensor) -> int:
    """A number that is the same for tensors with the same numbers, and hardly ever for others; 0 on the meta device."""
    return 0 if x.is_meta else int(fingerprint(x))


def calls_so_far() -> int:
    """How many calls this rank has made since its trace began; call it in `cluster.trace`."""
    return len(dist.group.WORLD.recorder.calls)


def _bytes_of_calls(trace: Trace) -> list[list[int]]:
    sent = [dict.fromkeys((event.posted for event in events), 0) for events in trace.events]
    for message in trace.messages:
        sent[message.src][message.send.posted] += message.bytes
    return [list(of_rank.values()) for of_rank in sent]


def _nothing(*_: Any) -> int:
    """FLOPs of what has no matrix product."""
    return 0
