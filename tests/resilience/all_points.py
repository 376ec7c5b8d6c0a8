"""Kill a rank at each of many points of its way: `python -m tests.resilience.all_points 200`; or `... 50 hang`.

In turn, at points that lie evenly on the way of a training of six steps on four ranks, from its first rendezvous to its
last word. After each, the others must have learned what one process learns. With `slow` a rank stands still for a
moment, and all have learned it, in one go; with `cut` its node is cut off and comes back, and all have.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from reference.cluster import Cluster, Gone
from reference.resilience.lab.faults import hang, stand_still

from .elastic_runs import PRELOAD, require_right, run, run_on

COMING = 200  # points before a rank has told the others of itself: who dies there was never there
STILL, PATIENT = 1.0, 10.0  # seconds that one stands still, and the others' lease, which is longer
HUNG = 12.0  # seconds, after which one that hangs is ended: the call would wait for it
CUT = 5.0  # seconds that a node is cut off
LEASE = 2.0  # seconds without a word, where none is told by the kernel who has gone


def main(points: int, how: str) -> int:
    """Kill, let hang, slow down or cut off, at so many points. Returns how many runs went wrong."""
    wrong = 0
    with Cluster(4, nodes=2 if how == "cut" else None, timeout=60, preload=PRELOAD) as cluster:
        way = min(passed for _, _, passed in (run_on if how == "cut" else run)(cluster))
        print(f"a rank passes {way:,} points")
        for number in range(points):
            rank, at = number % 4, COMING + (way - COMING) * number // points
            began = time.monotonic()
            try:
                results = HAPPENS[how](cluster, {rank: at})
                laps = require_right(results)
                fate = "died" if isinstance(results[rank], Gone) else LIVED[how]
                told = f"{fate}; {len(laps)} laps on {', '.join(str(lap.ranks) for lap in laps)} ranks"
            except Exception as error:
                wrong += 1
                told = f"WRONG: {str(error)[:300]}"
            print(f"rank {rank} at point {at:,}: {told}; {time.monotonic() - began:.1f} s", flush=True)
    print(f"{points} points, {wrong} wrong")
    return wrong


def killed(cluster: Cluster, points: dict[int, int]) -> list[Any]:
    """Ranks die at these points."""
    return run(cluster, points=points)


def hung(cluster: Cluster, points: dict[int, int]) -> list[Any]:
    """Ranks stop for good."""
    return run(cluster, points=points, at_point=partial(hang, HUNG), lease=LEASE)


def slowed(cluster: Cluster, points: dict[int, int]) -> list[Any]:
    """Ranks stand still for a moment. They are waited for: nothing is lost, and nothing done again."""
    still = partial(stand_still, partial(time.sleep, STILL))
    results = run(cluster, points=points, at_point=still, lease=PATIENT)
    assert all(len(laps) == 1 for laps, *_ in results)
    return results


def cut_off(cluster: Cluster, points: dict[int, int]) -> list[Any]:
    """The nodes of these ranks lose their network for a while."""
    with tempfile.TemporaryDirectory() as folder:
        there, cut = Path(folder) / "there", Path(folder) / "cut"

        def cut_and_mend() -> None:
            for rank in points:
                until(there.exists)
                cluster.cut(rank // 2)
                cut.touch()
                time.sleep(CUT)
                cluster.mend(rank // 2)

        puller = Thread(target=cut_and_mend, daemon=True)
        puller.start()
        results = run_on(cluster, points=points, at_point=partial(wait_for_cut, there, cut), lease=LEASE)
        puller.join(CUT + 5)
        return results


def wait_for_cut(there: Path, cut: Path) -> None:
    """On a rank: say that it has come to its point, and be cut off there."""
    there.touch()
    until(cut.exists)


def until(holds: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until something holds, or for so many seconds."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.002)


HAPPENS: dict[str, Callable[[Cluster, dict[int, int]], list[Any]]] = {
    "kill": killed,
    "hang": hung,
    "slow": slowed,
    "cut": cut_off,
}
LIVED = {"kill": "had left before", "hang": "had left before", "slow": "was waited for", "cut": "was cut off"}

if __name__ == "__main__":
    count, how = [*sys.argv[1:], *("200", "kill")[len(sys.argv) - 1 :]]
    sys.exit(bool(main(int(count), how)))
