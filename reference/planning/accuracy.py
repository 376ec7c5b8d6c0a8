"""How well published steps are met, beside the plainest prediction of all: `python -m reference.planning.accuracy`.

The plainest takes one MFU for each kind of GPU, the mean over its rows for fitting, and is good where a table has runs
that were tuned alike. `--floor` adds two bounds from below:

    fitted to itself   the same formula, its constants fitted to the very rows that it predicts: no honest fit is better
    timed twice        the same model in the same layout, published with two times: no formula meets both
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .constants import of_gpu
from .fit import RECIPES, all_reduces, errors_of, fit
from .published import Measurement, measurements
from .work import model_flops


@dataclass(frozen=True)
class Accuracy:
    """Of predictions: mean absolute error, its 95th percentile, and mean error, each as a part of what was measured."""

    rows: int
    mape: float
    p95: float
    bias: float

    @classmethod
    def of(cls, errors: Sequence[float]) -> "Accuracy":
        """Of predicted / measured - 1."""
        sizes = np.abs(errors)
        return cls(len(sizes), float(sizes.mean()), float(np.quantile(sizes, 0.95)), float(np.mean(errors)))

    def __str__(self) -> str:
        return f"MAPE {self.mape:6.1%}  p95 {self.p95:6.1%}  bias {self.bias:+6.1%}"


def ours(rows: Sequence[Measurement]) -> list[float]:
    """Errors of `predict`, of rows of one kind of GPU."""
    return errors_of(rows, of_gpu(rows[0].asked[0].cluster.gpu))


FREE = 2.0  # the logarithm of a constant may be so far from where it is, which is anywhere


def fitted_to_itself(rows: Sequence[Measurement]) -> list[float]:
    """Errors of `predict` with constants that were fitted to these rows."""
    kind = rows[0].kind_of_gpu
    constants = of_gpu(rows[0].asked[0].cluster.gpu)
    experts = ["experts"] * ("experts" in rows[0].row)
    free = dict.fromkeys([*RECIPES[kind].near, "tensor", "inter", *experts], FREE)
    return errors_of(rows, fit(rows, all_reduces(RECIPES[kind].all_reduces), constants, free))


def timed_twice(rows: Sequence[Measurement]) -> list[float]:
    """Errors of the best single prediction for each layout, of rows whose layout was published more than once.

    That is one of the times themselves: as the mean of |predicted / measured - 1| is between two of them a line.
    """
    alike: dict[frozenset[tuple[str, str]], list[float]] = {}
    for row in rows:
        said = frozenset((name, value) for name, value in row.row.items() if name not in ("name", "source"))
        alike.setdefault(said, []).append(row.seconds)
    errors: list[float] = []
    for times in alike.values():
        if len(times) > 1:
            errors += min(([one / time - 1 for time in times] for one in times), key=lambda each: np.abs(each).sum())
    return errors


def constant_mfu(rows: Sequence[Measurement]) -> list[float]:
    """Errors of one MFU for all, the geometric mean over the rows for fitting of this kind of GPU and its numbers."""
    kind, numbers = rows[0].kind_of_gpu, {row.row.get("precision", "bf16") for row in rows}
    fitting = [row for row in measurements() if row.is_for_fitting and row.kind_of_gpu == kind]
    alike = [row for row in fitting if row.row.get("precision", "bf16") in numbers] or fitting
    rate = np.exp(np.mean(np.log([_flops_per_second(row) for row in alike])))
    return [_flops_per_second(row) / rate - 1 for row in rows]


def _flops_per_second(row: Measurement) -> float:
    """Model FLOPs of each GPU, as measured."""
    job, _ = row.asked
    return model_flops(job) / row.seconds / job.cluster.gpus


def by_source(errors: Callable[[Sequence[Measurement]], list[float]]) -> dict[tuple[str, str, bool], Accuracy]:
    """Of each file, kind of GPU, and whether the models have experts."""
    groups: dict[tuple[str, str, bool], list[Measurement]] = {}
    for row in measurements():
        groups.setdefault((row.file, row.kind_of_gpu, "experts" in row.row), []).append(row)
    found = {key: errors(rows) for key, rows in groups.items()}
    return {key: Accuracy.of(each) for key, each in found.items() if each}


def report(floor: bool = False) -> str:
    """A line for each source: ours, one constant MFU, and bounds from below."""
    plainest = by_source(constant_mfu)
    bounds = [by_source(fitted_to_itself), by_source(timed_twice)] if floor else []
    title = f"{'file':24} {'GPU':6} {'models':8} rows   {'predicted':40}   one MFU   "
    lines = [(title + "    fitted to itself   timed twice" * floor).rstrip()]
    for (file, kind, has_experts), found in by_source(ours).items():
        key, models = (file, kind, has_experts), "experts" if has_experts else "dense"
        lines.append(f"{file:24} {kind:6} {models:8} {found.rows:4}   {found}   MAPE {plainest[key].mape:6.1%}")
        for bound in bounds:
            lines[-1] += f"   {bound[key].mape:8.1%} of {bound[key].rows:3}" if key in bound else "   none"
    return "\n".join(lines)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="How well published steps are met.")
    options.add_argument("--floor", action="store_true", help="add bounds from below")
    print(report(options.parse_args().floor))
