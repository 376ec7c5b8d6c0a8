"""The costs of a plan at full scale, counted: the code that trains runs on meta tensors, and a meter reads along.

    costs = counted(preset("llama3-405b"), plan, ranks=16_384, sequence=8192, windows=1)
    costs.rank(0).count.work.flops          that the first rank of a pipeline multiplies in a step
    costs.rank(0).count.sent["tp"].bytes    that it sends along the tensor axis

Of a model three kinds of parts are laid out as `reference.parallelize` lays them out, for one rank of a world that does
not exist (`one_rank`): what comes before the blocks, one block of each kind, and what comes after them with the loss.
Each goes forward and backward twice, as a first micro-batch and as the last one, and through the end of a step. All
else is multiplication: blocks of a stage, micro-batches of a step, and, of a pipeline, what its program says of how
often parameters are gathered, and how many activations are in flight.

What is assumed: all experts get equally many tokens, and none is dropped. What is not counted: optimizers.

`tests/planning/test_counted.py` holds this equal to `work`, `traffic` and `memory`: FLOPs of products and of attention,
parameters, and bytes along each axis. Where those mean other kernels or other buffers, it holds the difference:

| what                       | there                              | counted here                                       |
|----------------------------|------------------------------------|----------------------------------------------------|
| attention                  | half of the pairs                  | all pairs of the pieces: `seen` is the part left   |
| tp with slices of tokens   | 8 passes over [T, D] for a block   | 10: backward gathers two inputs again; 14 for 12   |
|                            |                                    | where the block is made again                      |
| tp around experts          | as around others                   | without slices, a gather each way more             |
| etp                        | nothing                            | rows and back: 2 passes each way of all rows       |
| keys and values            | (n-1) (3 · 2 + 4) bytes of each    | (n-1) 2 · 2 + 4 n: forward, backward, gradients    |
| experts                    | rows                               | and counts of rows: 8 bytes for each expert        |
| gradients                  | 2 bytes, gathered or summed        | 4: they are summed in float32; parameters have 2   |
| activations                | what Megatron-LM keeps             | `memory.activations`; more by 1/rms, log-sum-exp,  |
|                            |                                    | cos and sin, attention's result twice, silu(gate)  |
| bytes of products          | one product for query, key, value  | one each, which read their input again             |
| bytes between products     | a chain is one kernel              | each operation of torch is one: 3 to 9 times       |
"""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.overrides import TorchFunctionMode

from reference.choices import ContextMethod
from reference.context_parallel.tokens import CAUSAL, in_order
from reference.context_parallel.tokens import pieces as pieces_of_attention
from reference.errors import BadInput
from reference.memory.precision import PRECISIONS, Precision
from reference.memory.saved import saved_tensors, total
from reference.models import GPTConfig, architecture, create
from reference.models.layout import SplitExperts, split_of
from reference.models.ops import equip
from reference.parallelize import USP_HEADS, USP_RING, LaidOut, lay_out
from reference.pipeline_parallel.passes import Free, Gather, Receive, Reduce, Send, programmed
from reference.pipeline_parallel.schedule import Kind, Schedule
from reference.pipeline_parallel.stages import Stages, TiedTable, pieces_of, stage_of
from reference.plan import Plan

from .meter import Count, Meter, OneKernel, Outgoing
from .one_rank import OwnGroups, world

META = torch.device("meta")
BEGIN, DENSE, EXPERTS, END = "begin", "dense", "experts", "end"


@dataclass(frozen=True)
class Part:
    """What one rank does and holds for a part of a model.

    Attributes:
        parameters, experts: numbers that it computes with: all but experts', and these.
        masters: numbers that it updates.
        forward, input, weight: of a micro-batch; backward is in two halves where the schedule has them, else `input`.
        kept: bytes that wait for backward.
        output: bytes of what the next part is given.
        gathered: each time that a pipeline's program gathers its parameters.
        reduced: each time that its gradients leave in backward.
        once: at the end of a step.
    """

    parameters: int
    experts: int
    masters: int
    forward: Count
    input: Count
    weight: Count
    kept: int
    output: int
    gathered: Count
    reduced: Count
    once: Count

    @property
    def micro_batch(self) -> Count:
        """Forward and backward."""
        return self.forward + self.input + self.weight


@dataclass(frozen=True)
class StageCounts:
    """Some blocks of a model, as multiples of parts."""

    parts: tuple[tuple[Part, int], ...]  # in the order of the model, and how many there are of each

    def sum(self, of: str) -> float | Count:
        """A number of all parts together, by its name in `Part`."""
        values = [times * getattr(part, of) for part, times in self.parts if times]
        return sum(values[1:], values[0])

    @property
    def output(self) -> int:
        """Bytes of what the next stage is given."""
        return [part.output for part, times in self.parts if times][-1]


@dataclass(frozen=True)
class RankCount:
    """What a rank does in a step, and holds.

    Attributes:
        count: of all its stages and micro-batches.
        parameters, experts, masters: as for `Part`.
        kept: bytes that wait for backward, at most.
    """

    count: Count
    parameters: int
    experts: int
    masters: int
    kept: float


@dataclass(frozen=True)
class CountedPlan:
    """A plan of a model, counted.

    Attributes:
        parts: by name: what begins, a block without experts, one with them, what ends. Where all layers are on one
            rank, what begins and what ends is one part, for a tied table is one. A pipeline's rank that has both ends,
            as in a V, counts a tied table twice.
    """

    config: GPTConfig
    plan: Plan
    parts: Mapping[str, Part]

    @cached_property
    def schedule(self) -> Schedule:
        """Of the pipeline; one rank alone has one stage."""
        return self.plan.timetable()

    @cached_property
    def stages(self) -> tuple[StageCounts, ...]:
        """All stages of the pipeline, in order."""
        return tuple(self._stage(blocks) for blocks in pieces_of(self.config, self.schedule.stages))

    def _stage(self, blocks: range) -> StageCounts:
        with_experts = sum(layer in blocks for layer in getattr(self.config, "expert_layers", ()))
        numbers = {
            BEGIN: blocks.start == 0,
            DENSE: len(blocks) - with_experts,
            EXPERTS: with_experts,
            END: blocks.stop == self.config.layers,
        }
        return StageCounts(
            tuple((self.parts[name], int(times)) for name, times in numbers.items() if name in self.parts)
        )

    def rank(self, pipe: int = 0) -> RankCount:
        """A step of the rank at one place of the pipeline."""
        own = [self.stages[stage] for stage in self.schedule.stages_on(pipe)]
        held = {name: int(sum(stage.sum(name) for stage in own)) for name in ("parameters", "experts", "masters")}
        return RankCount(self._step(pipe) + self._messages(pipe), **held, kept=self._most_kept(pipe))

    def _step(self, pipe: int) -> Count:
        m, total = self.schedule.micro_batches, Count()
        line = self.program[pipe]
        for stage in self.schedule.stages_on(pipe):
            own, gathers, reductions = self.stages[stage], gathers_in(line, stage), reductions_in(line, stage)
            total += m * own.sum("micro_batch") + own.sum("once")
            total += gathers * own.sum("gathered") + reductions * own.sum("reduced")
        return total

    @cached_property
    def program(self) -> Sequence[Sequence[object]]:
        """What each rank of the pipeline does, with messages, gathers and sums."""
        shards = self.plan.shards_parameters and self.plan.pipeline_parallel > 1
        return programmed(self.schedule, 1, shards).lines

    def _messages(self, pipe: int) -> Count:
        """To other stages; and from tensor-parallel ranks, what each of them has received a part of."""
        t, found = self.plan.tensor_parallel, Count()
        is_scattered = self.plan.scatter_gather and t > 1 and not self.plan.sequence_parallel
        for step in self.program[pipe]:
            if isinstance(step, Send | Receive):
                stage = step.result.stage
                sent = self.stages[stage - step.result.is_gradient].output
                if isinstance(step, Send):
                    found += Count(sent={"pp": Outgoing(sent / t if is_scattered else sent, 1)})
                elif is_scattered:
                    found += Count(sent={"tp": Outgoing(sent * (t - 1) / t, 1)})
        return found

    def _most_kept(self, pipe: int) -> float:
        """Bytes of activations at most: a stage's micro-batch from its forward to the end of its backward."""
        kept = {stage: self.stages[stage].sum("kept") for stage in self.schedule.stages_on(pipe)}
        held = most = 0.0
        for kind, stage, _ in self.schedule.lines[pipe]:
            held += kept[stage] * ((kind is Kind.FORWARD) - (kind in (Kind.BACKWARD, Kind.WEIGHT)))
            most = max(most, held)
        return most


def gathers_in(line: Sequence[object], stage: int) -> int:
    """How often a program gathers a stage."""
    return sum(step == Gather(stage) for step in line)


def reductions_in(line: Sequence[object], stage: int) -> int:
    """How often a stage's gradients leave: where it is freed with gradients that have not left, and at the end."""
    found = pending = 0
    for step in line:
        match step:
            case Reduce(action) if action.stage == stage:
                found, pending = found + 1, 0
            case Free(freed) if freed == stage:
                found, pending = found + pending, 0
            case (Kind.BACKWARD | Kind.WEIGHT, computed, _) if computed == stage:
                pending = 1
    return found


def counted(
    config: GPTConfig,
    plan: Plan,
    ranks: int,
    sequence: int,
    windows: int,
    precision: Precision = PRECISIONS["bf16"],
) -> CountedPlan:
    """Count a step of one rank of each kind.

    Args:
        config: of a GPT, with experts or without.
        plan: of any axes and forms; a micro-batch has `windows` windows.
        ranks: of the world, which this process pretends to be the first of.
        sequence: tokens of a window.
        windows: of a micro-batch, on each rank that reads others.
        precision: in which dtypes.

    Raises:
        BadInput: if the plan does not fit, or what it does depends on values: where experts have a capacity.
    """
    if not isinstance(config, GPTConfig):
        raise BadInput(f"this counts what a GPT has (GPTConfig, MoEConfig), and not a model of {type(config).__name__}")
    plan.require_fit(ranks, config, sequence)
    if getattr(config, "capacity", 0) or plan.expert_nodes > 1:
        raise BadInput(
            "which tokens fit into an expert's capacity, and to which nodes they go, depends on values, and nothing "
            "has any here: take a capacity of 0, and expert_nodes=1"
        )
    meter = Meter()
    with world(ranks) as group, Uninitialised():
        bench = Bench(config, plan, sequence, windows, precision, meter, *_groups_of_one(group, config, plan, meter))
        return CountedPlan(config, plan, {name: bench.part(name) for name in _names_of_parts(config, plan)})


def _names_of_parts(config: GPTConfig, plan: Plan) -> list[str]:
    """Which kinds of parts there are."""
    layers = len(getattr(config, "expert_layers", ()))
    blocks = [DENSE] * (layers < config.layers) + [EXPERTS] * (layers > 0)
    return [BEGIN, *blocks, END] if plan.pipeline_parallel > 1 else [BEGIN, *blocks]


def _groups_of_one(
    group: ProcessGroup, config: GPTConfig, plan: Plan, meter: Meter
) -> tuple[OwnGroups, OwnGroups | None]:
    """The groups of a rank, as `parallelize` has them; and as layers of experts see them, if there are any."""
    groups = OwnGroups(group, plan.mesh(group.size(), config), meter)
    if plan.context_method is ContextMethod.USP:
        families = {USP_RING: plan.context_parallel // plan.neighbours, USP_HEADS: plan.neighbours}
        for axis in families:
            groups.add_family(groups.mesh.view(families, of=("cp",)), axis)
    if plan.pipeline_parallel > 1 and config.tied:
        first, *_, last = plan.timetable().placement
        if first != last:
            at = groups.mesh.coordinates(group.rank())
            groups.add("pp_ends", groups.of_ranks([groups.mesh.rank(**at | {"pp": end}) for end in (first, last)]))
    if not config.experts:
        return groups, None
    return groups, OwnGroups(group, plan.expert_mesh(group.size(), config), meter)


class Uninitialised(TorchFunctionMode):
    """Modules that are made inside get no first values: parameters on the meta device have none."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if getattr(function, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return function(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Bench:
    """A rank on which parts of a model are laid out, and run."""

    config: GPTConfig
    plan: Plan
    sequence: int
    windows: int
    precision: Precision
    meter: Meter
    groups: OwnGroups
    of_experts: OwnGroups | None

    def part(self, name: str) -> Part:
        """Count one of `names_of_parts`."""
        stage, model = self._model(name)
        options = (self.groups, self.of_experts, META, self.precision)
        with warnings.catch_warnings(category=UserWarning, action="ignore"):  # a part alone is in one unit
            laid = lay_out(model, self.config, self.plan, *options, sequence=self.sequence)
        equip(model, partial(OneKernel, meter=self.meter, among_ranks=self.plan.context_parallel > 1))
        held = {True: 0, False: 0}
        for parameter, where in laid.placed.items():
            is_expert = isinstance(split_of(parameter, self.config.layout), SplitExperts)
            held[is_expert] += where.local.numel()
        with self.meter:
            counts = self._step(stage, laid, ends=name == END or (name == BEGIN and self.plan.pipeline_parallel == 1))
        return Part(held[False], held[True], sum(part.master.numel() for part in laid.form.parts), **counts)

    def _model(self, name: str) -> tuple[nn.Module, nn.Module]:
        """A part, as a stage of its own; and what is laid out, which is the stage, or a pipeline's stages and table."""
        small = self._small(name)
        dtype = self.precision.compute if self.plan.shards_parameters else self.precision.master
        if self.plan.pipeline_parallel == 1:
            stage = create(_of_one_rank[name], small, device=META, dtype=dtype)
            return stage, stage
        blocks = {BEGIN: range(0), END: range(small.layers, small.layers)}.get(name, range(1, 2))

        def stages(config: GPTConfig) -> Stages:
            table = TiedTable(config) if config.tied and name in (BEGIN, END) else None
            return Stages({0: stage_of(config, blocks, table)}, table)

        model = create(stages, small, device=META, dtype=dtype)
        return model.by_number[0], model

    def _small(self, name: str) -> GPTConfig:
        """A model of three blocks of one kind: of such the second is like any other."""
        if not self.config.experts:
            return replace(self.config, layers=3)
        every = 1 if name == EXPERTS else 4
        return replace(self.config, layers=3, dense_layers=0, experts_every=every)

    def _step(self, stage: nn.Module, laid: LaidOut, ends: bool) -> dict[str, object]:
        """The counts of a `Part`."""
        sync = laid.of_stages
        shards = sync is not None and sync.shards_parameters
        if laid.deferred:
            laid.deferred.splits = self._is_split
        known = [*stage.parameters(), *(p for lifted in laid.lifted.values() for p in lifted.parameters())]
        self.meter.take()
        if shards:
            sync.gather(0)
        gathered = self.meter.take()
        first, last = (self._micro_batch(stage, laid, known, ends, is_last) for is_last in (False, True))
        laid.form.reduce_gradients()
        if shards:
            sync.free(0)
        laid.form.end_step()
        once = self.meter.take()
        names = ("forward", "input", "weight")
        reduced = sum((last[name] - first[name] for name in names), Count())
        return {**first, "gathered": gathered, "reduced": reduced, "once": once}

    def _micro_batch(
        self, stage: nn.Module, laid: LaidOut, known: Sequence[Tensor], ends: bool, is_last: bool
    ) -> dict[str, object]:
        """Forward, and backward in one or in two halves."""
        x, targets, made = self._input(stage), self._tokens, []
        known = [*known, targets, *([x] if stage.begins else [])]  # what is read was there before

        def forward() -> Tensor:
            y = stage(x, torch.arange(self._local, device=META))
            if ends:
                y = laid.loss(y, targets, self.windows * self.sequence)
            made.append(y)
            return y

        with self._form_of(laid, is_last):
            saved = saved_tensors(forward, but=known)
            found = {"forward": self.meter.take()}
            y = made.pop()
            gradient = None if ends else torch.empty_like(y)
            with laid.deferred.defer(0) if self._is_split else self._backward_of(laid, is_last):
                y.backward(gradient)
            found["input"] = self.meter.take()
            if self._is_split:
                with self._backward_of(laid, is_last):
                    laid.deferred.compute(0)
            found["weight"] = self.meter.take()
        kept = total(one for one in saved if not one.tensor.endswith(SHARED))
        return {**found, "kept": kept, "output": 0 if ends else y.nbytes}

    def _form_of(self, laid: LaidOut, is_last: bool) -> AbstractContextManager[None]:
        return laid.form.micro_batch(is_last) if laid.of_stages is None else nullcontext()

    def _backward_of(self, laid: LaidOut, is_last: bool) -> AbstractContextManager[None]:
        return nullcontext() if laid.of_stages is None else laid.of_stages.backward_of(0, is_last)

    def _input(self, stage: nn.Module) -> Tensor:
        """Tokens, or what the part before has made."""
        if stage.begins:
            return self._tokens
        slices = self.plan.tensor_parallel if self.plan.sequence_parallel else 1
        shape = (self.windows, self._local // slices, self.config.width)
        return torch.empty(shape, dtype=self.precision.compute, device=META, requires_grad=True)

    @property
    def _tokens(self) -> Tensor:
        return torch.zeros(self.windows, self._local, dtype=torch.int64, device=META)

    @property
    def _local(self) -> int:
        """Tokens of a window that this rank holds."""
        return self.plan.layout(self.sequence).local if self.plan.context_parallel > 1 else self.sequence

    @property
    def _is_split(self) -> bool:
        """Whether backward is in two halves."""
        return any(kind is Kind.INPUT for line in self.plan.timetable().lines for kind, *_ in line)


SHARED = ("float64", "uint64")  # cosines and sines, of which all blocks have one, and the random state of a kernel


def _both_ends(config: GPTConfig) -> nn.Module:
    """A model without blocks: what begins and what ends, where both are on one rank."""
    model = architecture(config)
    model.blocks = nn.ModuleList()
    return model


def _one_block(config: GPTConfig) -> nn.Module:
    """The second block of a model, alone."""
    return stage_of(replace(config, tied=False), range(1, 2))


_of_one_rank = {BEGIN: _both_ends, DENSE: _one_block, EXPERTS: _one_block}


def seen(plan: Plan, sequence: int) -> float:
    """The part of what attention multiplies on the first rank that a causal mask leaves; a triangle counts as half."""
    if plan.context_parallel == 1:
        return 0.5
    tokens, u = plan.layout(sequence).tokens, plan.neighbours
    families = [in_order(sum(tokens[first : first + u], ()))[0] for first in range(0, len(tokens), u)]
    if plan.context_method is ContextMethod.ALL_GATHER:
        families, own = [in_order(sum(tokens, ()))[0]], tokens[0]
    else:
        own = tokens[0] if u == 1 else families[0]
        families = tokens if u == 1 else families
    found = [piece for held in families for piece in pieces_of_attention(own, held, CAUSAL)]
    whole = sum(prod(piece.shape) for piece in found)
    return sum(prod(piece.shape) * (0.5 if piece.causal else 1) for piece in found) / whole
