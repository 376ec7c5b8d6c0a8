"""Does a run on ranks equal one process? Asked of the numbers, with bounds that have reasons."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rankwise import on_rank
from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.memory.precision import PRECISIONS
from reference.models.data import Text, unigram_entropy
from reference.oracle import largest_difference, one_process, relative_difference
from reference.parallelize import Plan
from reference.report import StepReport

STEPS = 10  # that are taken again
LEARNED = 0.75  # of the byte entropy
ROUNDED = 1e-4  # float32 rounds at 1e-7, and ten steps do not make a thousand times that of it
EXACT = 1e-10  # float64 rounds at 1e-16; a mistake costs 1e-3


@dataclass(frozen=True)
class Check:
    """A number that must stay within a bound."""

    what: str
    value: float
    bound: float

    @property
    def holds(self) -> bool:
        """False for NaN too."""
        return self.value <= self.bound


def learned(text: Text, outcome: on_rank.Outcome) -> Check:
    """Is the held-out loss well below what byte frequencies alone would give?"""
    return Check("held-out loss / byte entropy", outcome.validation_loss / unigram_entropy(text), LEARNED)


def replicas(outcomes: Sequence[on_rank.Outcome]) -> Check:
    """Do all ranks hold the same model, bit by bit?"""
    others = len({outcome.fingerprint for outcome in outcomes}) - 1
    return Check(f"models of {len(outcomes)} ranks that differ in a bit", others, 0)


def equals_one_process(cluster: Cluster, config: TrainConfig, steps: Sequence[StepReport], plan: Plan) -> list[Check]:
    """Take the first steps of a run again in one process, which knows nothing of ranks, and compare.

    In float32 with the run itself: both round, each in its own order. Then the same steps on ranks and in one process
    in float64, where rounding is too small to hide a mistake.

    Args:
        cluster: takes the steps in float64.
        config: of the run.
        steps: what the run said.
        plan: how its work was laid out.
    """
    pair = f"{cluster.world_size} ranks and one process differ"
    first = replace(config, stop_after=min(STEPS, len(steps)))
    seen = [step.loss for step in steps[:STEPS]]
    single = relative_difference(seen, one_process(first).losses)
    double = replace(first, precision=PRECISIONS["fp64"])
    exact = largest_difference(cluster.run(on_rank.record, double, plan)[0], one_process(double))
    return [
        Check(f"{pair} on the first {len(seen)} losses above", single, ROUNDED),
        *(Check(f"in float64: on {what}", value, EXACT) for what, value in exact.items()),
    ]
