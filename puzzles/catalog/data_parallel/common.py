"""Models, batches and costs that several puzzles of this chapter share."""

from typing import Any

import torch
from torch import Tensor

from puzzles.grading.drives.data_parallel import FUNCTION, ONE_STEP, SAME_MEMORY, Layered, part_of_loss, taken
from puzzles.grading.overlap import NETWORK
from puzzles.grading.puzzle import Case, Inputs
from reference.collectives import cost
from reference.collectives.all_reduce import ring
from reference.networks.plain import ring_time

FLOAT, DOUBLE = 4, 8  # bytes of an element
STEPS = 2  # of training: what a first step leaves behind shows in the second
SLOWER = 1.2  # going backward through a layer takes so many times as long as summing its gradients


def shapes_of(case: Case) -> list[tuple[int, ...]]:
    """Shapes of the parameters, in order, from the parameter `widths`: weight and bias of each layer."""
    return [shape for inner, out in zip(case.widths, case.widths[1:], strict=False) for shape in ((out, inner), (out,))]


def sizes_of(case: Case) -> list[int]:
    """Bytes of each parameter, in order."""
    return [DOUBLE * torch.Size(shape).numel() for shape in shapes_of(case)]


def weights_of(case: Case) -> list[Tensor]:
    """The parameters that all ranks start from."""
    return [case.normal(0, *shape, name=f"weight {i}") / shape[-1] for i, shape in enumerate(shapes_of(case))]


def samples_of(case: Case, rank: int, part: int = 0) -> int:
    """How many samples a rank has: not all have the same number."""
    return 1 + (rank + part) % 3


def batches_of(case: Case, rank: int) -> list[Tensor]:
    """This rank's samples of each step."""
    count = samples_of(case, rank)
    return [case.normal(rank, count, case.widths[0], name=f"step {step}") for step in range(STEPS)]


def model_and_batches(case: Case, rank: int) -> dict[str, Any]:
    """What `with_hooks` wants: parameters, this rank's batches, and how many samples all ranks have."""
    everybody = sum(samples_of(case, each) for each in range(case.n))
    return {
        "weights": weights_of(case),
        "batches": batches_of(case, rank),
        "samples": [everybody] * STEPS,
        "seconds": seconds_of(case),
    }


def gradients_of_one_process(case: Case, inputs: Inputs) -> list[dict[str, Tensor]]:
    """The gradients of every step, where one process has all samples."""
    model, found = Layered(inputs[0]["weights"]), {"returns": FUNCTION, "gradients held": ONE_STEP}
    for step in range(STEPS):
        x = torch.cat([each["batches"][step] for each in inputs])
        part_of_loss(model, x, len(x)).backward()
        found |= taken(model, step)
    return [found] * case.n


def message(case: Case, size: int) -> float:
    """Seconds that an all-reduce of so many bytes takes on the modelled network."""
    return ring_time(case.n, size, NETWORK.intra.alpha, NETWORK.intra.beta)


def seconds_of(case: Case) -> float:
    """How long the backward of a layer takes."""
    each = [message(case, size) for size in sizes_of(case)]
    return SLOWER * max(sum(pair) for pair in zip(each[::2], each[1::2], strict=True)) or 1e-4


def hidden(case: Case, *last: int) -> float:
    """Microseconds of all steps where only the last messages of each, of so many bytes, do not hide behind backward."""
    layers = len(case.widths) - 1
    return 1e6 * STEPS * (layers * seconds_of(case) + sum(message(case, size) for size in last))


def sent(case: Case, item: int = DOUBLE) -> int:
    """Bytes that a rank sends at most where each gradient is summed once around a ring, in elements of `item` bytes."""
    numels = [size // DOUBLE for size in sizes_of(case)]
    return max(sum(cost.of(ring).bytes(rank, case.n, numel, item) for numel in numels) for rank in range(case.n))


def gradients_of_a_rank(case: Case, rank: int) -> dict[str, Any]:
    """A gradient for each parameter, of whole numbers: their sums are exact."""
    shapes = shapes_of(case)
    return {"gradients": [case.tensor(rank, *shape, name=f"gradient {i}") for i, shape in enumerate(shapes)]}


def summed_over_ranks(case: Case, inputs: Inputs) -> list[dict[str, list[Tensor]]]:
    """Each gradient, added up where it is."""
    sums = [sum(parts) for parts in zip(*(each["gradients"] for each in inputs), strict=True)]
    return [{"gradients": sums, "in place": SAME_MEMORY}] * case.n


LENGTHS = ("different", "equal", "one is empty")  # of what the ranks have; MANY are more than 16 bits count
MANY = "many"


def count_of(case: Case, rank: int) -> int:
    """How many tokens a rank has, from the parameter `lengths`."""
    match case.lengths:
        case "different":
            return 1 + (2 * rank) % 5
        case "equal":
            return 3
        case "many":
            return 9001 + rank
        case "one is empty":
            return 0 if rank == case.n - 1 > 0 else 2 + rank
    raise ValueError(f"no lengths {case.lengths!r}")
