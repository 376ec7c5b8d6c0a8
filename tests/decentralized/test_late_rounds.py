"""Rounds that come late: delayed Nesterov is DiLoCo where none is late, and a record makes the same run again."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.choices import Outer
from reference.cluster import Cluster
from reference.collectives.default import over
from reference.config import TrainConfig, learning_rate
from reference.decentralized.lab.late_rounds import WAYS, compared
from reference.decentralized.late_rounds import (
    DelayedNesterov,
    Round,
    RoundServer,
    local_rounds,
    replay_rounds,
    steps_by_speed,
)
from reference.decentralized.meeting import flat
from reference.decentralized.parameter_server import Arrival, serve, work
from reference.errors import BadInput
from reference.models import architecture, create, token_loss
from reference.train import batches_for

from .one_process import EXACT, OuterSGD, all_take, alone, initial, means, named

ISLANDS, H = 2, 3
CONFIG = replace(EXACT, steps=4 * H)
SLOW_STEPS = 2  # of a round of the last island, where rounds are not equally long


def rounds_of(config: TrainConfig, island: int, steps: int = H) -> Round:
    """An island that trains the tiny GPT by AdamW."""
    batches, model = batches_for(config, ISLANDS), initial(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.95), weight_decay=config.weight_decay)

    def inner_step(step: int) -> None:
        tokens, targets = batches.of_step(step, island, ISLANDS)
        optimizer.zero_grad()
        with torch.enable_grad():
            token_loss(model(tokens), targets, batches.tokens // ISLANDS).backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.param_groups[0]["lr"] = learning_rate(config, step)
        optimizer.step()

    return local_rounds([*model.parameters()], inner_step, steps)


def begin() -> Tensor:
    return flat(create(architecture, CONFIG.model, CONFIG.seed, dtype=torch.float64).parameters())


def on_a_rank(bound: int | None, steps: tuple[int, ...], resumed: bool = False) -> tuple[Tensor, list[Arrival]] | None:
    """The first rank is the server. With `resumed` it saves after half of the rounds, and another one goes on."""
    torch.set_num_threads(1)
    rank, communicator, anchor = dist.get_rank(), over(dist.group.WORLD), begin()
    workers = range(1, ISLANDS + 1)
    if rank > ISLANDS:
        return None
    halves = [range(2), range(2, 4)] if resumed else [range(4)]
    if rank in workers:
        a_round = rounds_of(CONFIG, rank - 1, steps[rank - 1])
        for half in halves:
            work(anchor, a_round, half, communicator, [0])
        return None
    server = None
    for _ in halves:
        before, server = server, RoundServer(begin(), workers, DelayedNesterov(anchor, ISLANDS), bound)
        if before:
            server.load_state_dict(before.state_dict())
        serve(server, communicator)
    return server.weights, server.arrivals


@pytest.fixture(scope="module")
def three(clusters: Callable[..., Cluster]) -> Iterator[Cluster]:
    yield clusters(3)


def test_rounds_of_which_none_is_late_are_diloco(three: Cluster) -> None:
    outer = OuterSGD(initial(CONFIG), 0.7, 0.9)

    def meet(taken: int, models: list[nn.Module]) -> None:
        if taken % H == 0:
            now = means(models)
            all_take(models, {name: outer.step(name, outer.anchors[name].detach() - now[name]) for name in now})

    wanted = alone(replace(CONFIG, islands=ISLANDS, outer=Outer.DILOCO), meet)[0]
    weights, arrivals = three.run(on_a_rank, 0, (H, H))[0]
    assert [each.staleness for each in arrivals] == [0, 1] * 4
    torch.testing.assert_close(weights, flat(named(wanted).values()), rtol=0, atol=1e-11)


@pytest.mark.parametrize("resumed", [False, True], ids=["at once", "resumed"])
def test_a_replay_of_rounds_equals_the_recorded_run(three: Cluster, resumed: bool) -> None:
    steps = (H, SLOW_STEPS)
    weights, arrivals = three.run(on_a_rank, None, steps, resumed)[0]
    assert sorted((each.worker, each.step) for each in arrivals) == [(w, k) for w in (1, 2) for k in range(4)]
    rounds = {island + 1: rounds_of(CONFIG, island, steps[island]) for island in range(ISLANDS)}
    assert torch.equal(replay_rounds(begin(), rounds, arrivals, DelayedNesterov(begin(), ISLANDS)), weights)


def test_the_order_matters_and_a_record_that_no_run_has_made_is_refused() -> None:
    def again(record: list[Arrival]) -> Tensor:
        start = torch.zeros(3, dtype=torch.float64)
        rounds = {island: lambda number, anchor, at=island: anchor - at - number for island in (1, 2)}
        return replay_rounds(start, rounds, record, DelayedNesterov(start, 2))

    on_time = [Arrival(1, 0, 0, 0), Arrival(2, 0, 1, 1)]
    late = [Arrival(1, 0, 0, 0), Arrival(2, 0, 0, 1)]
    assert (again(on_time) - again(late)).abs().max() > 0.1
    with pytest.raises(BadInput, match="a change of version 1, and 1 have been"):
        again([Arrival(1, 0, 1, 0)])
    with pytest.raises(BadInput, match="not after 0"):
        DelayedNesterov(torch.zeros(1), 0)


def test_momentum_waits_for_all_islands() -> None:
    anchor = torch.zeros(1, dtype=torch.float64)
    outer, moved = DelayedNesterov(anchor, 3, rate=0.5, momentum=0.8), []
    for _ in range(6):
        outer.step(anchor, torch.ones_like(anchor))
        moved.append(-float(anchor))
    third, first, second = 0.5 / 3, 0.5 * 0.8 * 1.0, 0.5 * 0.8 * 1.8
    wanted = [third, 2 * third, 3 * third + first, 4 * third + first, 5 * third + first, 6 * third + first + second]
    assert moved == pytest.approx(wanted, rel=1e-12)


def test_slower_islands_take_fewer_steps() -> None:
    assert steps_by_speed(50, [1.0, 0.5, 0.25, 0.001]) == [50, 25, 12, 1]


def test_in_the_lab_late_momentum_is_the_worst_and_rounds_by_speed_are_never_late() -> None:
    found = {name: each for name, each in zip(WAYS, compared(), strict=True)}
    losses = {name: each.loss for name, each in found.items()}
    assert losses["asynchronous, Nesterov for each"] > 2 * losses["asynchronous, delayed Nesterov"]
    assert (
        found["delayed Nesterov, steps by speed"].most_late <= 4 - 1 < found["asynchronous, delayed Nesterov"].most_late
    )
    assert found["delayed Nesterov, steps by speed"].seconds < 0.5 * found["synchronous"].seconds
    assert len({each.steps for each in found.values()}) == 1, "equal tokens"
