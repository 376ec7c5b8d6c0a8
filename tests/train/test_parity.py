"""N ranks equal one process, exactly: in float64 only the order of additions differs, about 1e-15 a step."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from rankwise import on_rank
from reference.choices import MOMENTUM_TRAVELS, Optimizer
from reference.cluster import Cluster
from reference.config import TrainConfig, learning_rate
from reference.data_parallel import flat
from reference.errors import BadInput
from reference.memory.precision import PRECISIONS
from reference.models import GPT, PRESETS, GPTConfig, create, token_loss
from reference.oracle import largest_difference, on_ranks, one_process, relative_difference
from reference.parallelize import Plan
from reference.train import Training, batches_for, validation_loss

Clusters = Callable[..., Cluster]
TIED = TrainConfig(PRESETS["tiny"], steps=3, batch=12, sequence=16, warmup=2, precision=PRECISIONS["fp64"])
UNTIED = replace(TIED, model=GPTConfig(layers=1, width=24, heads=3, kv_heads=3, hidden=40), seed=7)
BY_SGD = replace(UNTIED, optimizer=Optimizer.SGD, learning_rate=0.5)
EXACT = 1e-10


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("config", [TIED, UNTIED, BY_SGD], ids=["tied", "untied", "sgd"])
def test_a_training_on_any_number_of_ranks_equals_one_process(clusters: Clusters, world_size: int, config: TrainConfig):
    oracle = one_process(config)
    for record in clusters(world_size).run(on_rank.record, config):
        difference = largest_difference(record, oracle)
        assert max(difference.values()) < EXACT, difference
        assert (
            record.gradients.keys()
            == oracle.gradients.keys()
            == dict(create(GPT, config.model).named_parameters()).keys()
        )


@pytest.mark.parametrize("optimizer", MOMENTUM_TRAVELS)
def test_one_process_has_no_momentum_that_travels(optimizer: Optimizer) -> None:
    with pytest.raises(BadInput, match=f"{optimizer} is about nothing else"):
        one_process(replace(TIED, optimizer=optimizer))


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_replicas_stay_equal_to_the_last_bit(clusters: Clusters, precision: str):
    first, *others = clusters(4).run(on_rank.record, replace(TIED, precision=PRECISIONS[precision]))
    for other in others:
        assert other.losses == first.losses
        assert all(torch.equal(other.parameters[name], value) for name, value in first.parameters.items())


def test_the_same_run_gives_the_same_bits_again(clusters: Clusters):
    config = replace(TIED, precision=PRECISIONS["fp32"])
    first, second = (clusters(3).run(on_rank.record, config)[0] for _ in range(2))
    assert first.losses == second.losses
    assert all(torch.equal(second.parameters[name], value) for name, value in first.parameters.items())


def averaged(gradients: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    flat(gradients, group)
    for gradient in gradients:
        gradient /= dist.get_world_size(group)


def but_one(gradients: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    flat(gradients[:-1], group)


def not_at_all(gradients: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    return


@pytest.mark.parametrize("wrong", [averaged, but_one, not_at_all])
def test_a_wrong_reduction_is_seen(clusters: Clusters, wrong: Callable):
    def run_wrongly(config: TrainConfig):
        return on_ranks(config, dist.group.WORLD, plan=Plan(wrong))

    difference = largest_difference(clusters(2).run(run_wrongly, TIED)[0], one_process(TIED))
    assert difference["gradients"] > 1e-3


def test_a_missing_number_is_infinitely_far():
    assert relative_difference([1.0, float("nan")], [1.0, 2.0]) == float("inf")
    assert relative_difference([1.0, 2.5], [1.0, 2.0]) == 0.25


def test_zeros_equal_zeros():
    assert relative_difference([0.0, 0.0], [0.0, 0.0]) == 0
    assert relative_difference([0.0, 1.0], [0.0, 0.0]) == float("inf")


def test_a_run_may_stop_on_its_way(clusters: Clusters):
    """The first steps of a long plan, not a short plan: the learning rate follows the plan."""
    long = replace(TIED, steps=40)
    stopped = clusters(2).run(on_rank.record, replace(long, stop_after=3))[0]
    assert stopped.losses == clusters(2).run(on_rank.record, long)[0].losses[:3]


def test_all_gradients_travel_in_one_flat_all_reduce(clusters: Clusters):
    config = replace(TIED, stop_after=1, precision=PRECISIONS["fp32"])
    _, trace = clusters(2).trace(on_rank.record, config)
    gradients, loss = trace.events[0]
    assert gradients.bytes == config.model.parameters * 4
    assert loss.bytes == 4


def test_validation_is_the_mean_over_the_held_out_tokens(clusters: Clusters, short_text: Path):
    def untrained(config: TrainConfig) -> float:
        return validation_loss(Training(config, dist.group.WORLD, torch.device("cpu")))

    config = replace(TIED, data=str(short_text))
    model, batches = create(GPT, config.model, dtype=torch.float64), batches_for(config, world_size=1)
    losses = [token_loss(model(x), y, global_tokens=1).item() for x, y in batches.validation()]
    mean = sum(losses) / (len(batches.held_out) * batches.sequence)
    assert clusters(3).run(untrained, config)[0] == pytest.approx(mean, rel=EXACT)


def test_a_few_steps_learn_something():
    losses = one_process(replace(TIED, steps=60, warmup=5, precision=PRECISIONS["fp32"])).losses
    assert losses[0] == pytest.approx(5.545, abs=0.2)  # about ln 256: it knows nothing yet
    assert sum(losses[-5:]) / 5 < 4.0


def test_the_learning_rate_rises_in_a_line_and_falls_to_a_tenth():
    config = TrainConfig(steps=1000, warmup=10, learning_rate=1.0)
    assert learning_rate(config, 4) == pytest.approx(0.5, rel=1e-3)
    assert learning_rate(config, 10) == pytest.approx(1.0, rel=1e-3)
    assert learning_rate(config, 999) == pytest.approx(0.1, rel=1e-2)
