"""What must hold of any right training, on ranks, with a learner's functions in their seats.

A falling loss proves nothing: one with a sum that is forgotten falls, too. Each control has a number that is known
before.
"""

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from reference.data_parallel import gather_full
from reference.memory.lab.storages import LiveBytes
from reference.ranks.plain import ring_shift
from reference.resilience.answers.loading import reshard
from reference.resilience.answers.neighbour import take_over
from reference.train import Training

from .engines import STEPS, Machine
from .parts import Function, parts_of, steps, training_of

Functions = Mapping[str, Function]
STILL = 1e-300  # a learning rate that moves nothing: the smallest weights are 1e-5
HALF = STEPS - 1
DIES = 2  # the rank
BY_HEART, FAST = 25, 1e-2  # steps on one batch, and their learning rate
MOMENTS = ("exp_avg", "exp_avg_sq")


def run(machine: Machine, functions: Functions, last: int = STEPS) -> dict[str, Any]:
    """Take the first steps. Returns plain data: losses, norms, parameters and calls of the learner's functions."""
    calls: Counter[str] = Counter()
    training = training_of(machine, functions, calls)
    losses, norms = steps(training, 0, last)
    return {"losses": losses, "norms": norms, "parameters": gather_full(training.form), "calls": dict(calls)}


def alone(machine: Machine, functions: Functions) -> dict[str, Any]:
    """The same on each rank by itself: the engine with one rank."""
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    calls: Counter[str] = Counter()
    training = training_of(machine, functions, calls, groups[dist.get_rank()])
    losses, norms = steps(training, 0, STEPS)
    return {"losses": losses, "norms": norms, "parameters": gather_full(training.form), "calls": dict(calls)}


def still(machine: Machine, functions: Functions) -> dict[str, Any]:
    """With a learning rate of zero, nearly: the same batch again and again, and the largest move of a parameter."""
    training = training_of(machine.with_(learning_rate=STILL, weight_decay=0.0), functions)
    before = gather_full(training.form)
    losses, _ = steps(training, 0, STEPS, reread=True)
    after = gather_full(training.form)
    moved = torch.stack([(after[name] - before[name]).abs().max() for name in before]).max()  # a NaN, if there is one
    return {"losses": losses, "moved": float(moved)}


def by_heart(machine: Machine, functions: Functions) -> dict[str, Any]:
    """One batch, again and again, with large steps."""
    settings = {"learning_rate": FAST, "weight_decay": 0.0, "steps": 10 * BY_HEART, "warmup": 0}
    losses, _ = steps(training_of(machine.with_(**settings), functions), 0, BY_HEART, reread=True)
    return {"losses": losses}


def moments(training: Training, name: str) -> list[Tensor]:
    """One of Adam's two, of each part that this rank updates."""
    host = getattr(training.optimizer, "host", None)
    parts = training.form.parts
    if host is not None:
        return [host[f"{'mv'[MOMENTS.index(name)]}{index}"] for index in range(len(parts))]
    return [training.optimizer.state[part.master][name] for part in parts]


def state_of(training: Training) -> Tensor:
    """What this rank must not lose: [3, N], its masters and their two moments, flat."""
    masters = [part.master.detach() for part in training.form.parts]
    rows = [masters, *(moments(training, name) for name in MOMENTS)]
    return torch.stack([torch.cat([each.flatten() for each in row]) for row in rows])


def restore(training: Training, state: Tensor, taken: int) -> None:
    """Give a training that has begun anew, and has taken one step to nowhere, such a state after `taken` steps."""
    sizes = [part.master.numel() for part in training.form.parts]
    masters = [part.master.detach() for part in training.form.parts]
    for row, tensors in zip(state, [masters, *(moments(training, name) for name in MOMENTS)], strict=True):
        for part, tensor in zip(row[: sum(sizes)].split(sizes), tensors, strict=True):
            tensor.copy_(part.view_as(tensor))
    if hasattr(training.optimizer, "number"):
        training.optimizer.number = taken
    else:
        for part in training.form.parts:
            training.optimizer.state[part.master]["step"].fill_(taken)
    training.form.end_step()


def renewed(machine: Machine, functions: Functions, group: dist.ProcessGroup | None = None) -> Training:
    """A training with room for a state: a step has been taken, so that the optimizer has its moments."""
    training = training_of(machine, functions, group=group)
    steps(training, 0, 1)
    return training


def rows_of(whole: Tensor, rank: int, ranks: int) -> Tensor:
    """What `rank` saves of a tensor: its rows, as `torch.chunk` cuts."""
    chunks = whole.flatten().chunk(ranks)
    return chunks[rank].clone() if rank < len(chunks) else whole.new_empty(0)


def saved(machine: Machine, functions: Functions) -> dict[str, Tensor]:
    """Half of the steps, and what this rank saves then: rows of each parameter and of its moments, by name."""
    training = training_of(machine, functions)
    steps(training, 0, HALF)
    whole = {"master": gather_full(training.form)}
    for name in MOMENTS:
        known = dict(zip(training.form.parts, moments(training, name), strict=True))
        whole[name] = gather_full(training.form, lambda part, known=known: known[part])
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return {f"{what} {name}": rows_of(x, rank, ranks) for what, each in whole.items() for name, x in each.items()}


def resumed(machine: Machine, functions: Functions, files: Sequence[dict[str, Tensor]]) -> dict[str, Any]:
    """The other half on two ranks, from what four have saved: `resilience.reshard_4_to_3` reads it."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    group = pairs[dist.get_rank() // 2]
    training = renewed(machine, functions, group)
    rows = {name: sum(len(file[name]) for file in files) for name in files[0]}
    mine = {}
    for name, total in rows.items():
        each = -(-total // group.size())
        mine[name] = files[0][name].new_zeros(max(0, min(each, total - group.rank() * each)))
    read = parts_of(machine, functions, Counter()).tools.get("reshard", reshard)
    read(mine, rows, len(files), lambda rank, name, begin, end: files[rank][name][begin:end].clone(), group=group)
    boxes: list[Any] = [None] * group.size()
    dist.all_gather_object(boxes, mine, group=group)
    whole = {name: torch.cat([box[name] for box in boxes]) for name in rows}
    state = [
        torch.cat([whole[f"{what} {part.name}"][part.begin : part.end] for part in training.form.parts])
        for what in ("master", *MOMENTS)
    ]
    restore(training, torch.stack(state), HALF)
    losses, norms = steps(training, HALF, STEPS)
    return {"losses": losses, "norms": norms, "parameters": gather_full(training.form)}


def until_death(machine: Machine, functions: Functions) -> dict[str, Tensor]:
    """Half of the steps; each rank gives its neighbour a copy of its state; then one rank dies."""
    training = training_of(machine, functions)
    steps(training, 0, HALF)
    state = padded(state_of(training))
    copy = parts_of(machine, functions, Counter()).tools.get("copy", ring_shift)(state, group=dist.group.WORLD)
    dist.barrier()
    if dist.get_rank() == DIES:
        os._exit(1)
    return {"state": state, "copy": copy}


def padded(state: Tensor) -> Tensor:
    """As long on all ranks: the last shards are shorter."""
    longest = torch.tensor(state.shape[1])
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    whole = state.new_zeros(3, int(longest))
    whole[:, : state.shape[1]] = state
    return whole


def after_death(machine: Machine, functions: Functions, left: dict[str, Tensor] | None) -> dict[str, Any]:
    """The other half, with a new process in the dead one's place, which has nothing."""
    training = renewed(machine, functions)
    room = torch.full_like(padded(state_of(training)), torch.nan)
    state, copy = (left["state"], left["copy"]) if left else (room, room.clone())
    fill = parts_of(machine, functions, Counter()).tools.get("take over", take_over)
    state, copy = state.clone(), copy.clone()
    whole = fill(state, copy, [DIES], 1, group=dist.group.WORLD)
    if not whole:
        return {"losses": [], "norms": [], "parameters": {}}
    restore(training, state, HALF)
    losses, norms = steps(training, HALF, STEPS)
    return {"losses": losses, "norms": norms, "parameters": gather_full(training.form)}


def faults(machine: Machine, functions: Functions) -> list[str]:
    """What the ledger of a dyed step finds wrong on this rank."""
    from reference.ledger import entries_of_training
    from reference.trace.ledger import Ledger

    return Ledger(tuple(entries_of_training(training_of(machine, functions)))).faults


def priced(machine: Machine, functions: Functions) -> dict[str, Any]:
    """The second step of an engine: between which ticks its messages are, the most bytes of tensors, and who ran."""
    calls: Counter[str] = Counter()
    training = training_of(machine, functions, calls)
    steps(training, 0, 1)
    recorder = dist.group.WORLD.recorder
    begin = recorder.tick
    with LiveBytes(part.master for part in training.form.parts) as live:
        steps(training, 1, 2)
    return {"ticks": (begin, recorder.tick), "peak": live.peak, "calls": dict(calls)}


def paces(machine: Machine, functions: Functions, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of steps by the learner's code and by the reference's, by turns."""
    trainings, seconds = [training_of(machine, functions), training_of(machine, {})], ([], [])
    for step in range(rounds + 1):
        for training, times in zip(trainings, seconds, strict=True):
            dist.barrier()
            began = time.perf_counter()
            steps(training, step, step + 1)
            times.append(time.perf_counter() - began)
    return seconds[0][1:], seconds[1][1:]
