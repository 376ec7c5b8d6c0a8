"""A drive that runs programs of a pipeline whose stages are in shards: on ranks, or, where these are too few, in one.

A stage is a layer, y = tanh(x weightᵀ). `_Rank` does what a program says; how it speaks to others is up to its wires.
Where many ranks are simulated in one process, it has the stages of all of them, and its tensors have a dim more, the
replica, in front.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from reference.collectives.compat import all_gather_single, reduce_scatter_single
from reference.errors import BadInput
from reference.pipeline_parallel.lab.programs import (
    ProgramSimulation,
    Step,
    action_of,
    parse,
    simulate_program,
)
from reference.pipeline_parallel.passes import Free, Gather, Reduce
from reference.pipeline_parallel.schedule import Action, Kind
from reference.pipeline_parallel.simulate import Result
from reference.pipeline_parallel.walk import Walk

from . import group_of

PROGRAMS, WRONG, NOTHING = "programs", "what is wrong", "nothing"


def in_programs(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Ask for the program of every rank of a pipeline; where these make a step, run it.

    Arguments: `p`, `v` and `m`, of which the function is given the same; `replicas`, how many ranks share a stage;
    `shards` of its stages, by number; `x` and `upstream`, what the first stage is given, and the gradient of what the
    last makes, [m, B, D]. Rank r of pipeline i is number r * replicas + i. Where there is one rank and should be more,
    shards, x and upstream are those of all replicas, one after the other.

    Compare the programs, what is wrong with them, and gradients, of each stage in shards.
    """
    p, v, m, replicas = (arguments[name] for name in ("p", "v", "m", "replicas"))
    programs = [written(function(rank=rank, p=p, v=v, m=m)) for rank in range(p)]
    found = {PROGRAMS: programs, WRONG: NOTHING}
    try:
        steps, _ = program_and_simulation(programs, v, m)
    except BadInput as error:
        return {**found, WRONG: str(error)}
    if dist.get_world_size() == p * replicas:
        rank = _Rank(p * v, arguments, _OnRanks(p, m, replicas))
        for step in steps[dist.get_rank() // replicas]:
            rank.does(step)
        rank.wires.end()
    else:
        rank = _Rank(p * v, arguments, _InOne())
        Walk(steps).go(lambda _, step: rank.can(step), lambda _, step: rank.does(step))
    return {**found, **{gradient_of(stage): gradient for stage, gradient in rank.sums.items()}}


def gradient_of(stage: int) -> str:
    """Under which name the gradient of a stage is reported."""
    return f"gradient of stage {stage}"


def written(program: Any) -> Any:
    """Steps as text; what is no step, as it is."""
    if not isinstance(program, list | tuple):
        return program
    return [str(step) if isinstance(step, Action | Gather | Free | Reduce) else step for step in program]


def program_and_simulation(programs: Any, v: int, m: int) -> tuple[list[list[Step]], ProgramSimulation]:
    """Programs as steps, and what these come to on paper.

    Args:
        programs: of each rank, as text; or whatever stands where that should be.
        v, m: as for `simulate_program`.

    Raises:
        BadInput: if they make no step.
    """
    for rank, program in enumerate(programs):
        if not isinstance(program, list | tuple):
            raise BadInput(f"the program of rank {rank} must be a list of steps, not {called(program)}")
        if strange := [each for each in program if not isinstance(each, str)]:
            raise BadInput(f"the program of rank {rank} must be a list of steps, and {called(strange[0])} is none")
    steps = [[parse(step) for step in program] for program in programs]
    return steps, simulate_program(steps, v, m)


def called(value: Any) -> str:
    """What stands where a step or a program should be, in the same words on every rank."""
    return repr(value)[:60] if value is None or isinstance(value, int | float | str) else f"a {type(value).__name__}"


class _OnRanks:
    """Wires to other processes. Those who share a stage stand side by side."""

    def __init__(self, p: int, m: int, replicas: int) -> None:
        self.p, self.m, self.replicas = p, m, replicas
        self.rank, self.replica = divmod(dist.get_rank(), replicas)
        first = self.rank * replicas
        self.data = group_of(range(first, first + replicas))
        self.here: dict[Result, Tensor] = {}
        self.leaving: list[dist.Work] = []

    def gather(self, shard: Tensor) -> Tensor:
        flat = shard.new_empty(self.replicas * len(shard))
        all_gather_single(flat, shard, group=self.data)
        return flat

    def reduce(self, whole: Tensor, shard: Tensor) -> Tensor:
        flat = shard.new_zeros(self.replicas * len(shard))
        flat[: len(whole)] = whole
        found = torch.empty_like(shard)
        reduce_scatter_single(found, flat, group=self.data)
        return found

    def give(self, result: Result, x: Tensor) -> None:
        reader = (result.stage + (-1 if result.is_gradient else 1)) % self.p
        if reader == self.rank:
            self.here[result] = x
        else:
            self.leaving.append(dist.isend(x.contiguous(), reader * self.replicas + self.replica, tag=self.tag(result)))

    def take(self, result: Result, like: Tensor) -> Tensor:
        maker = result.stage % self.p
        if maker == self.rank:
            return self.here.pop(result)
        x = torch.empty_like(like)
        dist.recv(x, maker * self.replicas + self.replica, tag=self.tag(result))
        return x

    def tag(self, result: Result) -> int:
        return 2 * (result.stage * self.m + result.micro_batch) + result.is_gradient

    def end(self) -> None:
        """Let everything arrive."""
        for work in self.leaving:
            work.wait()


class _InOne:
    """Wires within a process that is all ranks."""

    def __init__(self) -> None:
        self.here: dict[Result, Tensor] = {}

    def gather(self, shards: Tensor) -> Tensor:
        return shards.flatten()

    def reduce(self, whole: Tensor, shards: Tensor) -> Tensor:
        flat = torch.zeros_like(shards).flatten()
        flat[: whole.shape[-1]] = whole.sum(0)
        return flat.view_as(shards)

    def give(self, result: Result, x: Tensor) -> None:
        self.here[result] = x

    def take(self, result: Result, like: Tensor) -> Tensor:
        return self.here.pop(result)


class _Rank:
    """Does what its programs say, in numbers."""

    def __init__(self, stages: int, arguments: dict[str, Any], wires: _OnRanks | _InOne) -> None:
        self.last, self.wires = stages - 1, wires
        self.x, self.upstream, self.shards = (arguments[name] for name in ("x", "upstream", "shards"))
        self.whole: dict[int, Tensor] = {}
        self.kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self.gradients: dict[int, Tensor] = {}
        self.sums = {stage: torch.zeros_like(shard) for stage, shard in self.shards.items()}

    def can(self, step: Step) -> bool:
        """Whether what a step needs of another stage is here."""
        action = action_of(step)
        needed = action and self.needed(action)
        return needed is None or needed in self.wires.here

    def needed(self, action: Action) -> Result | None:
        kind, stage, micro_batch = action
        if kind is Kind.FORWARD:
            return Result(False, stage - 1, micro_batch) if stage else None
        return Result(True, stage + 1, micro_batch) if stage < self.last else None

    def does(self, step: Step) -> None:
        match step:
            case Gather():
                width = self.x.shape[-1]
                self.whole[step.stage] = self.wires.gather(self.shards[step.stage])[: width**2].view(width, width)
            case Free():
                del self.whole[step.stage]
            case Reduce():
                self.does(step.action)
                stage = step.action.stage
                self.sums[stage] += self.wires.reduce(self.gradients.pop(stage), self.shards[stage])
            case Action():
                (self.forward if step.kind is Kind.FORWARD else self.backward)(step)

    def forward(self, action: Action) -> None:
        needed, given = self.needed(action), self.x[..., action.micro_batch, :, :]
        x = self.wires.take(needed, given) if needed else given
        y = (x @ self.whole[action.stage].T).tanh()
        self.kept[action.stage, action.micro_batch] = x, y
        if action.stage < self.last:
            self.wires.give(Result(False, action.stage, action.micro_batch), y)

    def backward(self, action: Action) -> None:
        needed, given = self.needed(action), self.upstream[..., action.micro_batch, :, :]
        x, y = self.kept.pop((action.stage, action.micro_batch))
        of_product = (self.wires.take(needed, given) if needed else given) * (1 - y * y)
        gradient = (of_product.mT @ x).flatten(-2)
        self.gradients[action.stage] = self.gradients.get(action.stage, 0) + gradient
        if action.stage:
            self.wires.give(Result(True, action.stage, action.micro_batch), of_product @ self.whole[action.stage])
