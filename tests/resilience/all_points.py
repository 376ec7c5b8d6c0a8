"""Kill a rank at each of many points of its way: `python -m tests.resilience.all_points 200`.

Ranks are killed in turn, at points that lie evenly on the way of a training of six steps on four ranks, from its first
rendezvous to its last word. After each, the others must have learned what one process learns.
"""

import sys
import time

from reference.cluster import Cluster, Gone

from .elastic_runs import PRELOAD, require_right, run

COMING = 200  # points before a rank has told the others of itself: who dies there was never there


def main(points: int) -> int:
    """Kill at so many points. Returns how many runs went wrong."""
    wrong = 0
    with Cluster(4, timeout=60, preload=PRELOAD) as cluster:
        way = min(passed for _, _, passed in run(cluster))
        print(f"a rank passes {way:,} points")
        for number in range(points):
            rank, at = number % 4, COMING + (way - COMING) * number // points
            began = time.monotonic()
            try:
                results = run(cluster, points={rank: at})
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
    sys.exit(bool(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)))
