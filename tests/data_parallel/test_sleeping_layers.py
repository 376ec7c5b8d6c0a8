"""Layers that sleep: real gradients, real messages, and time for them to hide."""

import torch
import torch.distributed as dist

from reference.cluster import Cluster
from reference.data_parallel.answers.reduce_on_last import reduce_on_last
from reference.data_parallel.lab.sleeping_layers import sleeping_model, watch_step
from reference.data_parallel.plain import reduce_in_buckets
from reference.data_parallel.replicated import flat
from reference.trace.activity import Activity, Doing

LAYERS, WEIGHTS, SECONDS = 4, 1000, 0.01


def computing(own: list[Activity]) -> list[Activity]:
    return sorted((a for a in own if a.doing is not Doing.COMMUNICATION), key=lambda a: a.begin)


def messages(own: list[Activity]) -> list[Activity]:
    return sorted((a for a in own if a.doing is Doing.COMMUNICATION), key=lambda a: a.begin)


def after_backward() -> list[Activity]:
    model = sleeping_model(LAYERS, WEIGHTS, SECONDS)
    return watch_step(model, lambda: flat([p.grad for p in model.parameters()], dist.group.WORLD))


def in_buckets() -> list[Activity]:
    model = sleeping_model(LAYERS, WEIGHTS, SECONDS)
    return watch_step(model, reduce_in_buckets(model, dist.group.WORLD, 2 * 4 * WEIGHTS))


def accumulated() -> list[Activity]:
    model = sleeping_model(LAYERS, WEIGHTS, SECONDS)
    return watch_step(model, micro_batches=2, context=reduce_on_last(model, dist.group.WORLD))


def test_a_layer_adds_its_mean_and_its_gradient_is_that_of_a_mean():
    model = sleeping_model(2, 4, 0.0)
    with torch.no_grad():
        model[0].weight += torch.arange(4.0)
    x = torch.tensor(1.0, requires_grad=True)
    (3 * model(x)).backward()
    assert model(x).item() == 2.5
    assert [layer.weight.grad.tolist() for layer in model] == [[0.75] * 4] * 2
    assert x.grad.item() == 3


def test_forward_takes_its_time_and_backward_twice_as_long(ranks: Cluster) -> None:
    for own in ranks.trace(after_backward)[0]:
        spans = computing(own)
        assert [a.label for a in spans] == [f"layer {i}" for i in (0, 1, 2, 3, 3, 2, 1, 0)]
        assert all(a.end - a.begin >= SECONDS for a in spans[:LAYERS])
        assert all(a.end - a.begin >= 2 * SECONDS for a in spans[LAYERS:])


def test_one_message_after_backward_has_nothing_to_hide_behind(ranks: Cluster) -> None:
    for own in ranks.trace(after_backward)[0]:
        (message,) = messages(own)
        assert message.bytes == 4 * LAYERS * WEIGHTS
        assert message.begin >= computing(own)[-1].end


def test_the_first_bucket_leaves_when_half_of_backward_is_done(ranks: Cluster) -> None:
    for own in ranks.trace(in_buckets)[0]:
        first, second = messages(own)
        spans = computing(own)
        assert spans[LAYERS + 1].begin + 2 * SECONDS <= first.begin < spans[LAYERS + 2].end
        assert second.begin > first.begin + 2 * SECONDS


def test_micro_batches_are_silent_but_for_the_last(ranks: Cluster) -> None:
    for own in ranks.trace(accumulated)[0]:
        assert len(computing(own)) == 2 * 2 * LAYERS
        assert len(messages(own)) == LAYERS
        assert messages(own)[0].begin > computing(own)[2 * LAYERS].begin
