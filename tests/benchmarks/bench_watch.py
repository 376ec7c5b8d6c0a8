"""The watched cluster on the bug zoo and on correct programs, against what torch alone makes of them.

A hang is a mistake that only a time limit ends, a silent pass one that nothing ends. The peer is plain gloo: the same
programs in bare processes. A verdict's time runs from the call on a warm cluster until the owner holds the error; what
torch imports when a rank first uses it has been imported before.
"""

import contextlib
import io
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import rows
from rows import Row

HOUSE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOUSE))

from reference.cluster.errors import RankError, TimeLimit  # noqa: E402
from tests.watch import correct, zoo  # noqa: E402
from tests.watch.cases import Correct, Mistake, Outcome  # noqa: E402
from tests.watch.verdicts import complaints  # noqa: E402
from tests.watch.warm import Stuck, WarmClusters  # noqa: E402

REPETITIONS = 50
VERDICT = 0.2  # seconds


@dataclass(frozen=True)
class Seen:
    """What the watched cluster made of a mistake."""

    case: Mistake
    outcome: list | RankError | Stuck
    seconds: float

    @property
    def hung(self) -> bool:
        unasked = isinstance(self.outcome, TimeLimit) and self.case.deadline is None
        return unasked or isinstance(self.outcome, Stuck)

    @property
    def passed(self) -> bool:
        return isinstance(self.outcome, list)


def measure(report: Callable[[Row], None]) -> None:
    """All mistakes once, all correct programs many times."""
    alone = Counter(outcomes_of_torch().values())
    with WarmClusters() as warm, contextlib.redirect_stdout(io.StringIO()):  # what the programs print
        seen = [see(warm, case) for case in zoo.CASES]
        accused = sum(accusations(warm, case) for case in correct.CASES)
    report(rows.plain("rows of the bug zoo", len({case.row for case in zoo.CASES} - {None}), "rows"))
    report(rows.plain("mistakes, with variants and rows of our own", len(seen), "cases"))
    report(none("hangs", sum(one.hung for one in seen), alone[Outcome.HANGS]))
    report(none("silent passes", sum(one.passed for one in seen), alone[Outcome.PASSES]))
    mute = alone[Outcome.ABORTS] + alone[Outcome.CLOSED]
    report(none("aborted, or told only that a peer is gone", 0, mute))
    unnamed = {one.case.name: found for one in seen if (found := complaints(one.case, one.outcome))}
    for name, found in unnamed.items():
        print(f"not named as it deserves: {name}: {'; '.join(found)}", file=sys.stderr)
    report(none("not named as they deserve", len(unnamed), None))
    times = sorted(one.seconds for one in seen if one.case.deadline is None)
    report(rows.plain("verdict, median", times[len(times) // 2], "s"))
    report(rows.below("verdict, 95th percentile", times[int(0.95 * len(times))], VERDICT, "s"))
    report(rows.plain("correct programs", len(correct.CASES), "programs"))
    report(none(f"false accusations in {REPETITIONS} runs of each", accused, None))


def none(name: str, ours: int, peer: int | None) -> Row:
    """A row that counts what must not happen at all; `bar` is 0, the count that is allowed."""
    return Row(name, ours, peer, "cases", None, 0.0, ours == 0)


def see(warm: WarmClusters, case: Mistake) -> Seen:
    """Run one mistake, on ranks that have imported what it will use."""
    if case.deadline is None:
        warm.warm_up(case)
    try:
        return Seen(case, *warm.run(case))
    except Stuck as stuck:
        return Seen(case, stuck, float("inf"))


def accusations(warm: WarmClusters, case: Correct) -> int:
    """How often a correct program is accused, or does not come back."""
    wrong = 0
    for _ in range(REPETITIONS):
        try:
            outcome, _ = warm.run(case)
        except Stuck as stuck:
            outcome = stuck
        wrong += not isinstance(outcome, list)
    return wrong


def outcomes_of_torch() -> dict[str, Outcome]:
    """What becomes of each mistake on plain gloo."""
    command = [sys.executable, "-m", "tests.watch.plain", "--json"]
    done = subprocess.run(command, cwd=HOUSE, stdout=subprocess.PIPE, check=True, timeout=600)
    return {name: Outcome(outcome) for name, outcome in json.loads(done.stdout).items()}


if __name__ == "__main__":
    rows.main("watch", measure)
