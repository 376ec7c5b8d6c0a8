"""Any plan gives what one process gives: all that a plan can say, with every precision and with dropout."""

from collections.abc import Callable
from dataclasses import fields, replace

import pytest

from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.ledger import ledger_of
from reference.parallelize import PipelineSchedule, Plan

from .deal import MODELS, PRECISIONS, SCHEDULES, SEQUENCE, Deal, bound_of, dealt, differences

TURNS = 5  # each schedule five times in all, and 25 plans without a pipeline; `long_run` has time for all pairs
NUMBERS = [
    first + place for place in range(len(SCHEDULES)) for first in range(0, TURNS * len(SCHEDULES), len(SCHEDULES))
]
"""Each fifth of them are plans that are dealt one after the other: of each schedule one, of every other kind some."""
NOT_DEALT = {"offload_folder", "quantize_weights", "quantize_gradients", "ranks_per_node"}
"""Where, and not what; and what rounds: `tests.compression` holds it to bounds of its own."""


@pytest.mark.turns(TURNS)
@pytest.mark.parametrize("number", NUMBERS)
def test_every_plan_equals_one_process(clusters: Callable[..., Cluster], number: int) -> None:
    deal = dealt(number)
    found = differences(deal, clusters(deal.ranks))
    assert max(found.values()) < bound_of(deal), (deal, found)


@pytest.mark.turns(TURNS)
@pytest.mark.parametrize("number", NUMBERS)
def test_the_ledger_of_every_plan_is_clean(clusters: Callable[..., Cluster], number: int) -> None:
    """Each sum once, over the ranks that its spec says: also where equal numbers would hide a mistake."""
    deal = dealt(number)
    ledger = ledger_of(deal.config, deal.plan, clusters(deal.ranks))
    assert ledger.faults == [], deal


def test_every_field_of_a_plan_is_dealt() -> None:
    """A new field that is never dealt would never meet the others."""
    plans = [dealt(number).plan for number in range(119)]
    same = {field.name for field in fields(Plan) if len({getattr(plan, field.name) for plan in plans}) == 1}
    assert same == NOT_DEALT
    assert len({plan.schedule for plan in plans}) == len(PipelineSchedule)


@pytest.mark.parametrize("tied", [False, True])
def test_three_ranks_gather_for_weights_that_wait(clusters: Callable[..., Cluster], tied: bool) -> None:
    """Found by `long_run`: what is gathered when a weight's gradient is made is gathered outside of any backward."""
    model, _ = MODELS[1]
    slices = {"tensor_parallel": 3, "sequence_parallel": True}
    plan = Plan(micro_batches=4, pipeline_parallel=2, schedule=PipelineSchedule.ZB_V, **slices)
    config = TrainConfig(
        replace(model, tied=tied), steps=2, batch=4, sequence=SEQUENCE, warmup=1, precision=PRECISIONS["fp64"]
    )
    deal = Deal(6, config, plan)
    found = differences(deal, clusters(6))
    assert max(found.values()) < bound_of(deal), found
