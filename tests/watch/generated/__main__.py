"""`python -m tests.watch.generated [programs] [--first SEED]`: recall, precision and the time to a verdict."""

import argparse
import contextlib
import io
import sys
import tempfile
import time
from pathlib import Path

from reference.cluster.errors import RankError, TimeLimit
from tests.watch.generated.programs import Program, generate
from tests.watch.warm import LIMIT, Stuck, WarmClusters


def main() -> int:
    """Run programs of consecutive seeds on warm clusters, and print what was missed or accused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", type=int, nargs="?", default=400)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--verbose", action="store_true", help="print every message")
    options = parser.parse_args()
    missed, misnamed, accused, times, wrong = [], [], [], [], 0
    with tempfile.TemporaryDirectory() as folder, WarmClusters() as warm:
        for seed in range(options.first, options.first + options.programs):
            program = generate(seed)
            wrong += program.mistake is not None
            outcome, seconds = run(program, Path(folder), warm)
            reported = isinstance(outcome, RankError) and not isinstance(outcome, TimeLimit)
            if program.mistake is None:
                if outcome is not None:
                    accused.append((program, outcome))
            elif not reported:
                missed.append((program, outcome))
            else:
                times.append(seconds)
                if type(outcome).__name__ not in program.mistake.errors:
                    misnamed.append((program, outcome))
                elif options.verbose:
                    print(f"--- {program.name}: {type(outcome).__name__} {outcome}")
    for title, programs in (("missed", missed), ("named otherwise", misnamed), ("accused", accused)):
        for program, outcome in programs:
            print(f"--- {title}: {program.name}: {type(outcome).__name__} {outcome}\n{program.source}")
    found = wrong - len(missed)
    times.sort()
    print(f"{options.programs} programs, {wrong} of them wrong")
    print(f"recall {found / max(wrong, 1):.4f} ({len(missed)} missed), named otherwise than expected {len(misnamed)}")
    print(f"precision {found / max(found + len(accused), 1):.4f} ({len(accused)} accused)")
    if times:
        print(f"verdict: median {times[len(times) // 2]:.3f} s, p95 {times[int(0.95 * len(times))]:.3f} s")
    return int(bool(missed or accused))


def run(program: Program, folder: Path, warm: WarmClusters) -> tuple[object, float]:
    """What the watch says of a program, None where it says nothing; and after how many seconds."""
    function = program.load(folder)
    warm.call(program.n, LIMIT, ready)  # a verdict's time is its own: the ranks are up
    begin = time.monotonic()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            warm.call(program.n, LIMIT, function)
        outcome: object = None
    except (RankError, Stuck) as error:
        outcome = error
    return outcome, time.monotonic() - begin


def ready() -> None:
    """On a rank: it is there."""


if __name__ == "__main__":
    sys.exit(main())
