"""What the supervisor makes of replicas: the first parameter of the first step that is not the same on all ranks."""

from collections import defaultdict
from typing import Any

from ..errors import DriftError, RankError
from .posted_calls import ranks_text


class Drift:
    """The checksums that ranks have reported of their replicas."""

    def __init__(self) -> None:
        self._reports: dict[tuple, dict[int, dict[str, Any]]] = defaultdict(dict)

    def handle(self, rank: int, report: dict[str, Any]) -> RankError | None:
        """Note one rank's parameters after a step; the error, where all ranks have reported it and they differ."""
        key = (report["number"], tuple(report["ranks"]), report["step"])
        reports = self._reports[key]
        reports[rank] = report
        if not set(report["ranks"]) <= set(reports):
            return None
        del self._reports[key]
        return _difference(reports)


def _difference(reports: dict[int, dict[str, Any]]) -> RankError | None:
    names = dict.fromkeys(name for report in reports.values() for name in report["sums"])
    differ = [name for name in names if len({report["sums"].get(name) for report in reports.values()}) > 1]
    if not differ:
        return None
    values: dict[int | None, list[int]] = defaultdict(list)
    for rank in sorted(reports):
        values[reports[rank]["sums"].get(differ[0])].append(rank)
    groups = sorted(values.values(), key=lambda ranks: (len(ranks), -ranks[0]))
    blamed = groups[0][0]
    step, place = reports[blamed]["step"], reports[blamed]
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
