"""Two micro-batches share a rank: while tokens of one travel, the other computes (DualPipe's purpose).

A block of experts has two parts that compute and two that send, and one waits for the other:

    forward     attention   dispatch   experts    combine
    backward    combine'    experts'   dispatch'  attention'

Alone, a micro-batch leaves the processor idle for half of its steps. A forward of one and a backward of another depend
on each other in nothing, so that each sends while the other computes: with steps of equal length, two blocks take four
steps instead of eight (DeepSeek-AI 2024, "DeepSeek-V3", sec. 3.2.1 and figure 4).

A program is data: actions in the order in which a rank begins them. Those that compute occupy the rank, those that send
do not, and follow one another, as on a stream of their own. `simulate` says how long that takes, and `run` does
it: on real ranks, with real messages, where computing is sleeping and so is a link.
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch.distributed import ProcessGroup

from reference.collectives.default import over

FORWARD = ("attention", "dispatch", "experts", "combine")
BACKWARD = ("combine'", "experts'", "dispatch'", "attention'")
SENDS = ("dispatch", "combine", "combine'", "dispatch'")


@dataclass(frozen=True)
class BlockStep:
    """One part of a block, of one micro-batch; it needs the part before it."""

    micro_batch: int
    part: str

    @property
    def sends(self) -> bool:
        """Whether it occupies the link, and not the rank."""
        return self.part in SENDS

    @property
    def before(self) -> "BlockStep | None":
        """What it waits for: None for the first part of a block's forward or backward."""
        parts = FORWARD if self.part in FORWARD else BACKWARD
        at = parts.index(self.part)
        return BlockStep(self.micro_batch, parts[at - 1]) if at else None


Program = tuple[BlockStep, ...]


def one_after_the_other(forward: Sequence[int], backward: Sequence[int]) -> Program:
    """A block forward for each of some micro-batches, and backward for as many others, in turns."""
    return tuple(
        BlockStep(number, part)
        for f, b in zip(forward, backward, strict=True)
        for number, parts in ((f, FORWARD), (b, BACKWARD))
        for part in parts
    )


def overlapped(forward: Sequence[int], backward: Sequence[int]) -> Program:
    """The same in pairs: what one sends is begun before the other computes."""
    found = []
    for f, b in zip(forward, backward, strict=True):
        found += [
            BlockStep(b, "combine'"),
            BlockStep(f, "attention"),
            BlockStep(f, "dispatch"),
            BlockStep(b, "experts'"),
        ]
        found += [
            BlockStep(b, "dispatch'"),
            BlockStep(f, "experts"),
            BlockStep(f, "combine"),
            BlockStep(b, "attention'"),
        ]
    return tuple(found)


@dataclass(frozen=True)
class Spell:
    """When a step was done, in seconds."""

    step: BlockStep
    begin: float
    end: float


def simulate(program: Program, seconds: Mapping[str, float]) -> list[Spell]:
    """When each step begins and ends, if steps that compute and steps that send each keep their order.

    Args:
        program: of one rank; all ranks have the same.
        seconds: of each part.
    """
    free = {True: 0.0, False: 0.0}  # the link, and the rank
    ends: dict[BlockStep, float] = {}
    for step in program:
        begin = max(free[step.sends], ends.get(step.before, 0.0))
        if step.sends:
            begin = max(begin, _begun(program, step, ends))
        ends[step] = free[step.sends] = begin + seconds[step.part]
    return [Spell(step, end - seconds[step.part], end) for step, end in ends.items()]


def _begun(program: Program, step: BlockStep, ends: Mapping[BlockStep, float]) -> float:
    """When a rank comes to begin a step: after all that it has computed before."""
    return max((ends[each] for each in program[: program.index(step)] if not each.sends), default=0.0)


def run(program: Program, seconds: Mapping[str, float], group: ProcessGroup, numel: int = 256) -> list[Spell]:
    """Do it on this rank, with all others of a group: each step that sends is an all-to-all on a thread of its own.

    Args:
        program, seconds: as for `simulate`; a message takes at least so long, as over a link of that speed.
        group: n ranks, which all run this.
        numel: elements of each message to each rank.
    """
    communicator, n = over(group), group.size()
    waiting: dict[BlockStep, Future] = {}
    spells: list[Spell] = []
    origin = time.monotonic()

    def send(step: BlockStep) -> Spell:
        begin = time.monotonic() - origin
        x = torch.full((n * numel,), float(group.rank()))
        communicator.all_to_all(x, out := torch.empty_like(x))
        if not torch.equal(out.view(n, numel)[:, 0], torch.arange(n).float()):
            raise RuntimeError(f"what {step} has sent did not arrive")
        time.sleep(max(0.0, begin + seconds[step.part] - (time.monotonic() - origin)))
        return Spell(step, begin, time.monotonic() - origin)

    with ThreadPoolExecutor(max_workers=1) as link:  # one message at a time
        for step in program:
            if step.before in waiting:
                spells.append(waiting.pop(step.before).result())
            if step.sends:
                waiting[step] = link.submit(send, step)
            else:
                begin = time.monotonic() - origin
                time.sleep(seconds[step.part])
                spells.append(Spell(step, begin, time.monotonic() - origin))
        spells += [future.result() for future in waiting.values()]
    return spells


def length(spells: Sequence[Spell]) -> float:
    """Seconds until the last step has ended."""
    return max(spell.end for spell in spells)
