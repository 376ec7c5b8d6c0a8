"""Fit the constants of each kind of GPU to what was published: `python -m reference.planning.fit`.

What is fitted is the logarithm of each constant, so that all stay above zero; what is minimised is the logarithm of
predicted over measured seconds, with two provisions. Errors count in square while they are small and by their size when
they are large (Huber 1964), since some rows were measured on a bad day. And each constant is held near a prior, more or
less closely, since the rows do not tell all of them apart: an A100's near round numbers that a cautious engineer would
guess, a later GPU's near those of the GPU before it. Each file counts as much as any other, however many rows it has,
and so do all-reduces that were timed by themselves.

Only files that begin with "train" are fitted to, and a table of all-reduces. Those that begin with "validate" are
predicted, and have chosen the form of the prediction and some guesses below: an H100's `tensor`, `products` and `inter`
by four rows, an A100's `tensor` and `sums` by these and by two papers' tables, and whether groups inside a node slow
each other. So their errors are no test; rows that were never looked at are. Two of an A100's constants stand at an end
of their range, which meets the rows for fitting as well as a fit does, or better where a part of them is left out:

    sums 0     Megatron-LM summed gradients then when all micro-batches were done (`--DDP-impl local`)
    shared 1   fitted, it is 0.8 to 1.1, but 2 without the models of 3.6 billion parameters: it would take in bad days

| GPU   | fitted to                                                            | what is left as it was              |
|-------|----------------------------------------------------------------------|-------------------------------------|
| a100  | Megatron's GPTs, FSDP's MPTs, all-reduces                            | FP8; experts; shared; tensor, pipe, |
|       |                                                                      | sums: nothing was hidden there      |
| h100  | Llama 3 in FP8, all-reduces of H200s; then experts of three mixtures |                                     |
| b200, | the same models on these GPUs                                        |                                     |
| ...   |                                                                      |                                     |
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from reference.models.config import preset

from . import step, traffic
from .hardware import DATA, GpuCluster, gpu
from .job import Job
from .published import Measurement, measurements, table
from .step import Constants

Array = NDArray[np.float64]

USUAL, USUAL_NCCL = 0.03, 0.1  # a logarithm of predicted over measured seconds lies about so far from 0


@dataclass(frozen=True)
class AllReduce:
    """One that was timed: ranks, ranks on a node, bytes of the tensor, seconds."""

    ranks: int
    per_node: int
    bytes: float
    seconds: float


@dataclass(frozen=True)
class FitRecipe:
    """How the constants of one kind of GPU are fitted.

    Attributes:
        prior: from which kind, or from round numbers.
        guesses: what is guessed otherwise than there.
        near: the logarithm of a constant lies about so far from its prior; those that are not named stay there.
        all_reduces: of which GPU they were timed.
    """

    prior: str | None
    guesses: Mapping[str, float]
    near: Mapping[str, float]
    all_reduces: str


LOOSE = {name: 0.4 for name in ("products_fp8", "intra", "latency", "shared", "sums", "tensor", "pipe")}
RECIPES: Mapping[str, FitRecipe] = {
    "a100": FitRecipe(
        None,
        {"tensor": 0.8, "pipe": 1.0, "sums": 0.0, "shared": 1.0},
        {"products": 0.03, "moved": 0.05, "step": 0.1, "written": 0.05, "eager": 0.1}
        | dict.fromkeys(("attention", "kernel", "intra", "inter", "latency", "seen"), 0.4),
        "A100",
    ),
    "h100": FitRecipe(
        "a100",
        {
            "eager": 1.0,
            "products": 1.2,
            "sums": 0.7,
            "seen": 0.2,
            "tensor": 0.5,
            "inter": 1.2,
        },  # what overlaps; 4 nodes of H200s reach 365 of 400 GB/s
        dict.fromkeys(("products", "written", "moved", "kernel", "inter", "seen", "step"), 0.1)
        | LOOSE
        | {"attention": 0.3},
        "H200",
    ),
    **{
        name: FitRecipe(
            prior, {}, {"products_fp8": 0.2, "attention": 0.1, "kernel": 0.1, "intra": 0.3, "inter": 0.3}, "B200"
        )
        for name, prior in (("b200", "h100"), ("gb200", "b200"), ("b300", "gb200"))
    },
}


@cache
def fitted(name: str) -> Constants:
    """Of a kind of GPU: first to dense models, then the experts' constant to mixtures."""
    recipe = RECIPES[name]
    prior = replace(fitted(recipe.prior) if recipe.prior else Constants(), **recipe.guesses)
    rows = [row for row in measurements() if row.is_for_fitting and row.kind_of_gpu == name]
    dense = [row for row in rows if "experts" not in row.row]
    found = fit(dense, all_reduces(recipe.all_reduces), prior, recipe.near)
    mixtures = [row for row in rows if "experts" in row.row]
    return fit(mixtures, [], found, {"experts": 1.0}) if mixtures else found


def fit(
    rows: Sequence[Measurement], timed: Sequence[AllReduce], prior: Constants, near: Mapping[str, float]
) -> Constants:
    """Constants that meet steps and all-reduces, and stay near a prior.

    Args:
        rows: steps.
        timed: all-reduces.
        prior: where they begin.
        near: which constants may move, and about how far.
    """
    asked = [(row.asked, row.seconds) for row in rows]
    files = [row.file for row in rows]
    weights = np.array([files.count(file) ** -0.5 for file in files])
    start, widths = np.log([getattr(prior, name) for name in near]), np.array(list(near.values()))
    evidence = len(rows) ** 0.5 / len(set(files)) ** 0.5

    def residuals(logs: Array) -> Array:
        constants = with_logs(prior, list(near), logs)
        errors = np.log([float(sum(step.parts(*what, constants).values())) / took for what, took in asked])
        pulled = [evidence * weights * huber(errors / USUAL), (logs - start) / widths]
        if timed:
            gpu_name = rows[0].row["gpu"]
            errors = np.log([all_reduce_seconds(gpu_name, one, constants) / one.seconds for one in timed])
            pulled.append(evidence * huber(errors / USUAL_NCCL) / len(timed) ** 0.5)
        return np.concatenate(pulled)

    return with_logs(prior, list(near), least_squares(residuals, start))


def seconds(of: Measurement, constants: Constants) -> float:
    """Predicted."""
    return float(sum(step.parts(*of.asked, constants).values()))


def all_reduces(name: str) -> list[AllReduce]:
    """Those that were timed on these GPUs."""
    found = []
    for row in (*table("train_nccl_all_reduce"), *table("nccl_busbw_measured")):
        if row["gpu"] == name and row.get("collective", "all_reduce") == "all_reduce":
            n, nodes = int(row["n_gpus"]), int(row.get("nodes", 1))
            size, rate = float(row["bytes"]), float(row["busbw_gbs"]) * 1e9
            found.append(AllReduce(n, n // nodes, size, 2 * (n - 1) / n * size / rate))
    return found


def all_reduce_seconds(name: str, one: AllReduce, constants: Constants) -> float:
    """Predicted, on these GPUs."""
    job = Job(preset("tiny"), GpuCluster(gpu(name), one.ranks, one.per_node), sequence=1, batch=1)
    ring = traffic.group(job.cluster, float(one.ranks), 1.0)
    return float(step.message_seconds(job, traffic.ring(one.bytes / 2, ring, 2), ring, constants))


def with_logs(prior: Constants, names: Sequence[str], logs: Array) -> Constants:
    """Some constants by their logarithms."""
    return replace(prior, **{name: float(value) for name, value in zip(names, np.exp(logs), strict=True)})


def huber(errors: Array) -> Array:
    """Numbers whose squares grow as squares up to 1, and from there on as a line."""
    sizes = np.abs(errors)
    return np.sign(errors) * np.where(sizes < 1, sizes, np.sqrt(np.maximum(2 * sizes - 1, 0)))


def least_squares(residuals: Callable[[Array], Array], start: Array, rounds: int = 60) -> Array:
    """Arguments with the smallest sum of squared residuals nearby (Levenberg 1944, Marquardt 1963)."""
    at, damping, far = start.copy(), 1e-2, 1e-3
    now = residuals(at)
    for _ in range(rounds):
        slopes = np.stack([(residuals(at + far * unit) - now) / far for unit in np.eye(len(at))], axis=1)
        square, downhill = slopes.T @ slopes, slopes.T @ now
        while damping < 1e6:
            move = np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-9), -downhill)
            then = residuals(at + np.clip(move, -0.5, 0.5))
            if then @ then < now @ now:
                break
            damping *= 4
        else:
            break
        gained = 1 - (then @ then) / (now @ now)
        at, now, damping = at + np.clip(move, -0.5, 0.5), then, damping / 3
        if gained < 1e-6:
            break
    return at


def errors_of(rows: Sequence[Measurement], constants: Constants) -> list[float]:
    """Predicted / measured - 1, of each row."""
    return [seconds(row, constants) / row.seconds - 1 for row in rows]


def write() -> None:
    """All constants, with the errors that each kind's own rows for fitting show, into `data/constants.json`.

    The error of an "unknown" GPU is the one that each kind in turn has with the constants of the kind before it.
    """
    found, strangers = {}, []
    for name, recipe in RECIPES.items():
        rows = [row for row in measurements() if row.is_for_fitting and row.kind_of_gpu == name]
        errors = errors_of(rows, fitted(name))
        found[name] = {"constants": asdict(fitted(name)), "p95": float(np.quantile(np.abs(errors), 0.95))}
        if recipe.prior:
            strangers += errors_of(rows, fitted(recipe.prior))
    found["unknown"] = {"p95": float(np.quantile(np.abs(strangers), 0.95))}
    (DATA / "constants.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
