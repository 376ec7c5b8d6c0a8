"""What the supervisor makes of replicas: the first parameter of the first step that is not the same on all ranks."""

from collections import defaultdict
from typing import Any

from ..errors import DriftError, RankError
from .posts import ranks_text


class Drift:
    """The checksums that ranks have told of their replicas."""

    def __init__(self) -> None:
        self._told: dict[tuple, dict[int, dict[str, Any]]] = defaultdict(dict)

    def hear(self, rank: int, report: dict[str, Any]) -> RankError | None:
        """Note one rank's parameters after a step; the error of a step of which all ranks have told, if they differ."""
        key = (report["number"], tuple(report["ranks"]), report["step"])
        told = self._told[key]
        told[rank] = report
        if not set(report["ranks"]) <= set(told):
            return None
        del self._told[key]
        return _difference(told)


def _difference(told: dict[int, dict[str, Any]]) -> RankError | None:
    names = dict.fromkeys(name for report in told.values() for name in report["sums"])
    differ = [name for name in names if len({report["sums"].get(name) for report in told.values()}) > 1]
    if not differ:
        return None
    values: dict[int | None, list[int]] = defaultdict(list)
    for rank in sorted(told):
        values[told[rank]["sums"].get(differ[0])].append(rank)
    groups = sorted(values.values(), key=lambda ranks: (len(ranks), -ranks[0]))
    blamed = groups[0][0]
    step, place = told[blamed]["step"], told[blamed]
    when = f"after step {step}" if step else "before the first step"
    apart = ", another on ".join(map(ranks_text, sorted(groups)))
    what = f"parameter {differ[0]!r} differs {when}: it has one value on {apart}"
    others = f"{len(differ) - 1} other{'s' * (len(differ) > 2)}"
    more = [f"so {'do' if len(differ) > 2 else 'does'} {others}, first {differ[1]!r}"] if len(differ) > 1 else []
    if step:
        why = "until then all ranks had the same: now their gradients were not (reduced on each?), or their optimizers"
    else:
        why = "the replicas start apart: broadcast the parameters from rank 0, or set the same seed on every rank"
    error = DriftError("replicas differ", what, *more, why, rank=blamed, call="watch_replicas")
    error.file, error.line = place["file"], place["line"]
    return error
