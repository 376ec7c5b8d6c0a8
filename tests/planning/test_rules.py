"""Rules of thumb decide one after the other, each by its name, and what they lose multiplies to what the list loses."""

from dataclasses import fields, replace
from functools import cache
from math import prod

import pytest

from reference.choices import Recompute
from reference.errors import BadInput
from reference.models.config import preset
from reference.plan import PipelineSchedule
from reference.planning.hardware import GpuCluster, gpu
from reference.planning.job import Job
from reference.planning.layouts import Layouts, Sharding
from reference.planning.predict import predict
from reference.planning.rules import FILLED, LONG, RULES, Advice, advise, models, priced, works
from reference.planning.search import search

H100 = gpu("h100")
JOBS = {
    "1b on 8": Job(models()["llama3.2-1b"], GpuCluster(H100, 8), 8192, 64),
    "8b on 64": Job(preset("llama3-8b"), GpuCluster(H100, 64), 8192, 512),
    "70b on 64": Job(preset("llama3-70b"), GpuCluster(H100, 64), 8192, 256),
    "405b on 512": Job(preset("llama3-405b"), GpuCluster(H100, 512), 8192, 1024),
    "mixtral on 64": Job(preset("mixtral-8x7b"), GpuCluster(H100, 64), 4096, 256),
    "8b, long": Job(preset("llama3-8b"), GpuCluster(H100, 64), 131_072, 32),
    "405b on 8": Job(preset("llama3-405b"), GpuCluster(H100, 8), 8192, 64),
    "8b, few windows": Job(preset("llama3-8b"), GpuCluster(H100, 64), 4096, 16),
}


@cache
def advice(name: str) -> Advice:
    return advise(JOBS[name])


def test_every_column_and_choice_is_decided_by_one_rule_and_what_is_left_is_data_parallelism() -> None:
    decided = [name for rule in RULES for name in rule.decides]
    assert len(set(decided)) == len(decided)
    assert {each.name for each in fields(Layouts)} - set(decided) == {"dp"}


def test_every_rule_has_a_name_a_reason_and_a_source() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.because and any(letter.isdigit() for letter in rule.source) for rule in RULES)


@pytest.mark.parametrize("name", [name for name in JOBS if name != "405b on 8"])
def test_what_the_rules_take_works_and_says_who_decided(name: str) -> None:
    found, layout = advice(name), advice(name).prediction.layouts
    assert found.works and works(JOBS[name], layout)
    assert [decision.rule for decision in found.decisions] == list(RULES)
    for decision in found.decisions:
        assert all(getattr(layout, each) == value for each, value in decision.values.items())


@pytest.mark.parametrize("name", JOBS)
def test_the_tensor_axis_stays_in_its_node_and_pipelines_begin_where_a_node_is_full(name: str) -> None:
    layout, per_node = advice(name).prediction.layouts, JOBS[name].cluster.per_node
    assert layout.tp <= per_node and layout.ep * layout.etp <= per_node
    if layout.pp > 1:
        assert layout.tp == per_node
    assert layout.sequence_parallel == (layout.tp > 1)


@pytest.mark.parametrize("name", JOBS)
def test_no_smaller_axis_would_have_done(name: str) -> None:
    """The axis that grew last could not be half as long, before recomputation and chunks."""
    job, layout = JOBS[name], advice(name).prediction.layouts
    axis = "pp" if layout.pp > 1 else "tp"
    if getattr(layout, axis) == 1:
        return
    narrower = {axis: getattr(layout, axis) / 2, "dp": 2 * layout.dp}
    usual = {"micro_batch": 1, "chunks": 1, "schedule": PipelineSchedule.ONE_F_ONE_B, "recompute": Recompute.NONE}
    usual["sequence_parallel"] = bool(narrower.get("tp", layout.tp) > 1)
    assert not works(job, replace(layout, **narrower, **usual))


def test_a_small_model_needs_nothing_but_data_parallelism() -> None:
    layout = advice("1b on 8").prediction.layouts
    assert (layout.dp, layout.sharding, layout.recompute) == (8, Sharding.ZERO1, Recompute.NONE)


def test_experts_are_shared_out_before_their_matrices() -> None:
    layout = advice("mixtral on 64").prediction.layouts
    assert (layout.ep, layout.etp) == (8, 1)


def test_long_windows_are_shared() -> None:
    job, layout = JOBS["8b, long"], advice("8b, long").prediction.layouts
    assert layout.cp == 16 and job.sequence / layout.cp == LONG


def test_ranks_without_a_window_become_tensor_parallel() -> None:
    layout = advice("8b, few windows").prediction.layouts
    assert layout.dp <= 16 and layout.tp >= 4


@pytest.mark.parametrize("name", JOBS)
def test_a_larger_micro_batch_would_not_fit_or_not_fill_the_pipeline(name: str) -> None:
    job, layout = JOBS[name], advice(name).prediction.layouts
    if not advice(name).works:
        return
    larger = replace(layout, micro_batch=2 * layout.micro_batch)
    m = float(larger.micro_batches(job))
    uneven = layout.schedule is PipelineSchedule.INTERLEAVED and m % layout.pp
    assert not works(job, larger) or uneven or (layout.pp > 1 and m < FILLED * layout.pp)


@pytest.mark.parametrize("name", ["8b on 64", "70b on 64", "mixtral on 64"])
def test_losses_multiply_to_that_of_the_whole_list_and_none_gains(name: str) -> None:
    found = priced(JOBS[name])
    assert all(decision.loss >= 0 for decision in found.decisions)
    whole = prod(1 + decision.loss for decision in found.decisions)
    assert whole == pytest.approx(1 + found.loss, rel=1e-9)
    assert float(found.best.seconds) == float(search(JOBS[name], count=1).best[0].seconds)


def test_a_rule_more_is_a_line_more() -> None:
    """A list is data: without its last rules, their columns stay as they were."""
    short = advise(JOBS["1b on 8"], RULES[:5])
    assert len(short.decisions) == 5 and short.prediction.layouts.micro_batch == 1
    assert short.prediction.seconds == predict(JOBS["1b on 8"], short.prediction.layouts).seconds


def test_experts_of_which_each_rank_has_its_own_leave_no_state_to_share_out() -> None:
    job = Job(preset("mixtral-8x7b"), GpuCluster(gpu("gb200"), 8), 4096, 1)
    found = priced(job)
    assert found.works and found.prediction.layouts.sharding is Sharding.NONE
    assert all(decision.loss >= 0 for decision in found.decisions)


def test_rules_that_find_no_room_say_so_and_where_nothing_fits_there_is_no_price() -> None:
    found = advice("405b on 8")
    assert not found.works and not bool(found.prediction.fits)
    with pytest.raises(BadInput, match=r"no layout of 405\.9B parameters fits into 8 GPUs of 80 GB: take more GPUs"):
        priced(JOBS["405b on 8"])
