"""Kill a rank at each of many points of its way: `python -m tests.resilience.all_points 200`, or `... 50 hang`.

In turn, at points that lie evenly on the way of a training of six steps on four ranks, from its first rendezvous to its
last word. After each, the others must have learned what one process learns.
"""

import sys
import time
from functools import partial

from reference.cluster import Cluster, Gone
from reference.resilience.lab.faults import hang

from .elastic_runs import PRELOAD, require_right, run

COMING = 200  # points before a rank has told the others of itself: who dies there was never there


HUNG = 12.0  # seconds, after which one that hangs is ended: the call would wait for it
LEASE = 2.0  # seconds without a word, where ranks hang


def main(points: int, how: str) -> int:
    """Kill, or let hang, at so many points. Returns how many runs went wrong."""
    options = {"at_point": partial(hang, HUNG), "lease": LEASE} if how == "hang" else {}
    wrong = 0
    with Cluster(4, timeout=60, preload=PRELOAD) as cluster:
        way = min(passed for _, _, passed in run(cluster))
        print(f"a rank passes {way:,} points")
        for number in range(points):
            rank, at = number % 4, COMING + (way - COMING) * number // points
            began = time.monotonic()
            try:
                results = run(cluster, points={rank: at}, **options)
                laps = require_right(results)
                died = "died" if isinstance(results[rank], Gone) else "had left before"
                told = f"{died}; {len(laps)} laps on {', '.join(str(lap.ranks) for lap in laps)} ranks"
            except Exception as error:
                wrong += 1
                told = f"WRONG: {str(error)[:300]}"
            print(f"rank {rank} at point {at:,}: {told}; {time.monotonic() - began:.1f} s", flush=True)
    print(f"{points} points, {wrong} wrong")
    return wrong


if __name__ == "__main__":
    count, how = [*sys.argv[1:], *("200", "kill")[len(sys.argv) - 1 :]]
    sys.exit(bool(main(int(count), how)))
