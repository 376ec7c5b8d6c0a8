"""Any plan gives what one process gives: all that a plan can say, with every precision and with dropout."""

from collections.abc import Callable
from dataclasses import fields

import pytest

from reference.cluster import Cluster
from reference.parallelize import PipelineSchedule, Plan

from .deal import bound_of, dealt, differences

NUMBERS = range(85)  # each schedule five times, and 25 plans without a pipeline; `long_run` has time for all pairs
NOT_DEALT = {"offload_folder"}  # where, and not what


@pytest.mark.parametrize("number", NUMBERS)
def test_every_plan_equals_one_process(clusters: Callable[..., Cluster], number: int) -> None:
    deal = dealt(number)
    found = differences(deal, clusters(deal.ranks, preload=("torch._dynamo",)))
    assert max(found.values()) < bound_of(deal), (deal, found)


def test_every_field_of_a_plan_is_dealt() -> None:
    """A new field that nobody deals would never meet the others."""
    plans = [dealt(number).plan for number in range(119)]
    same = {field.name for field in fields(Plan) if len({getattr(plan, field.name) for plan in plans}) == 1}
    assert same == NOT_DEALT
    assert len({plan.schedule for plan in plans}) == len(PipelineSchedule)
