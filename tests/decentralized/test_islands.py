"""Islands of any plan are islands of one process: each way to meet, in float64, through several rounds."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch

from reference.choices import Compress, GossipTopology, Offload, Optimizer, Outer, RoundLength, Wire
from reference.cluster import Cluster
from reference.config import TrainConfig, learning_rate
from reference.decentralized import plain_unscheduled
from reference.decentralized.neighbours import chosen
from reference.decentralized.noloco import partner
from reference.decentralized.rounds import ends_of_rounds
from reference.decentralized.wire import BLOCK, decode, encode
from reference.errors import BadInput
from reference.models import token_loss
from reference.models.moe_config import Balance
from reference.parallelize import DataParallelism, Plan
from reference.train import batches_for, require_fit

from .one_process import (
    ENDS,
    EXACT,
    EXPERTS,
    STEPS,
    H,
    Meet,
    Models,
    MuonAndAdamW,
    OuterSGD,
    all_take,
    alone,
    config_of,
    far_apart,
    initial,
    means,
    named,
    on_ranks,
)

Clusters = Callable[..., Cluster]
CLOSE = 1e-11


def meet_diloco(config: TrainConfig, rate: float, momentum: float, ends=ENDS) -> Meet:
    outer = OuterSGD(initial(config), rate, momentum)

    def meet(taken: int, models: Models) -> None:
        if taken in ends:
            now = means(models)
            all_take(models, {name: outer.step(name, outer.anchors[name].detach() - now[name]) for name in now})

    return meet


def hold(
    cluster: Cluster, config: TrainConfig, meet: Meet, plan: Plan | None = None, make: Callable = torch.optim.AdamW
) -> None:
    """Every rank has the parameters of its island in one process."""
    models = alone(config, meet, make)
    found = cluster.run(on_ranks, config, plan or Plan())
    each = len(found) // config.islands
    for rank, (parameters, _) in enumerate(found):
        assert far_apart(parameters, models[rank // each]) < CLOSE


PLANS = {
    "fsdp": Plan(DataParallelism.FSDP),
    "ddp in two micro-batches": Plan(DataParallelism.DDP, micro_batches=2),
    "tensor": Plan(tensor_parallel=2),
    "pipeline": Plan(pipeline_parallel=2, micro_batches=2),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_diloco_between_islands_of_any_plan(four: Cluster, plan: Plan) -> None:
    config = config_of(Outer.DILOCO)
    hold(four, config, meet_diloco(config, 0.7, 0.9), plan)


def test_islands_of_fsdp_and_tensor_parallelism(eight: Cluster) -> None:
    config = config_of(Outer.DILOCO, outer_rate=0.5, outer_momentum=0.8)
    hold(eight, config, meet_diloco(config, 0.5, 0.8), Plan(DataParallelism.FSDP, tensor_parallel=2))


INSIDE = {
    "muon": ({"optimizer": Optimizer.MUON}, Plan(DataParallelism.FSDP), MuonAndAdamW),
    "sgd": (
        {"optimizer": Optimizer.SGD, "learning_rate": 0.1},
        Plan(DataParallelism.FSDP),
        partial(torch.optim.SGD, weight_decay=EXACT.weight_decay),
    ),
    "top-k of all": (
        {"compress": Compress.TOP_K, "compress_share": 1.0},
        Plan(DataParallelism.DDP),
        torch.optim.AdamW,
    ),
    "experts": ({"model": EXPERTS}, Plan(DataParallelism.FSDP, expert_parallel=2), torch.optim.AdamW),
}


@pytest.mark.parametrize(("options", "plan", "make"), INSIDE.values(), ids=INSIDE.keys())
def test_an_island_may_train_in_other_ways(four: Cluster, options: dict, plan: Plan, make: Callable) -> None:
    config = config_of(Outer.DILOCO, **options)
    hold(four, config, meet_diloco(config, 0.7, 0.9), plan, make)


def test_what_a_meeting_does_not_carry_is_refused() -> None:
    for options, plan, reason in (
        ({"model": replace(EXPERTS, balance=Balance.BIAS)}, Plan(), "take a --balance that is a loss"),
        ({"optimizer": Optimizer.ONE_BIT_ADAM}, Plan(), "take adamw with --compress one-bit"),
        ({}, Plan(offload=Offload.CPU), "what --offload would spare"),
    ):
        with pytest.raises(BadInput, match=reason):
            require_fit(config_of(Outer.DILOCO, **options), plan, 4)


def test_local_sgd_takes_the_mean_of_all_models(four: Cluster) -> None:
    def meet(taken: int, models: Models) -> None:
        if taken in ENDS:
            all_take(models, means(models))

    hold(four, config_of(Outer.LOCAL_SGD, 4), meet)


def meet_streaming(config: TrainConfig, fragments: int, delay: int, keep: float) -> Meet:
    outer, sent = OuterSGD(initial(config), 0.7, 0.9), {}

    def fragment_of(name: str) -> int:
        layer = re.search(r"blocks\.(\d+)\.", name)
        return int(layer[1]) % fragments if layer else 0

    def use(name: str, models: Models, keep: float) -> None:
        anchor = outer.step(name, sent[name])
        for model in models:
            own = named(model)[name]
            own.copy_(keep * own + (1 - keep) * anchor)

    def meet(taken: int, models: Models) -> None:
        last = taken == config.steps
        for name in named(models[0]):
            due = taken - fragment_of(name) * H // fragments
            if name in sent and ((due - delay) % H == 0 or last):
                use(name, models, keep)
                del sent[name]
            if due % H == 0 or last:
                sent[name] = outer.anchors[name].detach() - means(models)[name]
                if delay == 0 or last:
                    use(name, models, 0.0 if last else keep)
                    del sent[name]

    return meet


@pytest.mark.parametrize(("fragments", "delay", "keep"), [(2, 1, 0.5), (2, 2, 0.25), (1, 0, 0.0), (2, 0, 0.0)])
def test_streaming(four: Cluster, fragments: int, delay: int, keep: float) -> None:
    config = config_of(Outer.STREAMING, fragments=fragments, overlap_steps=delay, keep_own=keep)
    hold(four, config, meet_streaming(config, fragments, delay, keep), Plan(DataParallelism.FSDP))


def test_streaming_with_one_fragment_and_no_delay_is_diloco(four: Cluster) -> None:
    streaming = config_of(Outer.STREAMING, fragments=1, overlap_steps=0)
    mine, its = (four.run(on_ranks, config) for config in (streaming, config_of(Outer.DILOCO)))
    for (parameters, losses), (others, expected) in zip(mine, its, strict=True):
        assert far_apart(parameters, others) == 0 and losses == expected


def test_eager_updates(four: Cluster) -> None:
    config = config_of(Outer.EAGER, 4)
    outers = [OuterSGD(initial(config), 0.7, 0.9) for _ in range(4)]
    before: list[dict[str, torch.Tensor]] = []

    def meet(taken: int, models: Models) -> None:
        if taken not in ENDS:
            return
        changed = [
            {name: outer.anchors[name].detach() - p.detach() for name, p in named(model).items()}
            for outer, model in zip(outers, models, strict=True)
        ]
        for island, (outer, model) in enumerate(zip(outers, models, strict=True)):
            for name, parameter in named(model).items():
                others = [each[name] for other, each in enumerate(before) if other != island]
                parameter.copy_(outer.step(name, (changed[island][name] + sum(others)) / 4))
        before[:] = changed
        if taken == STEPS:
            all_take(models, means(models))

    hold(four, config, meet)


def test_elastic_averaging(four: Cluster) -> None:
    config = config_of(Outer.EASGD, 4, elasticity=0.8)
    centre = {name: p.detach().clone() for name, p in named(initial(config)).items()}

    def meet(taken: int, models: Models) -> None:
        if taken not in ENDS:
            return
        pulls = [{name: p.detach() - centre[name] for name, p in named(model).items()} for model in models]
        for model, pull in zip(models, pulls, strict=True):
            for name, parameter in named(model).items():
                parameter -= 0.2 * pull[name]
                centre[name] += 0.2 * pull[name]
        if taken == STEPS:
            all_take(models, centre)

    hold(four, config, meet)


def test_pairs_of_noloco(four: Cluster) -> None:
    config, alpha, beta = config_of(Outer.NOLOCO, 4), 0.5, 0.7
    gamma = 1 + alpha / 2
    start = named(initial(config))
    anchors = [{name: p.detach().clone() for name, p in start.items()} for _ in range(4)]
    velocities = [{name: torch.zeros_like(p) for name, p in start.items()} for _ in range(4)]

    def meet(taken: int, models: Models) -> None:
        if taken not in ENDS:
            return
        for name in start:
            changes = [anchors[i][name] - named(models[i])[name].detach() for i in range(4)]
            now = [anchors[i][name].clone() for i in range(4)]
            for i in range(4):
                j = partner(i, 4, f"0 {taken}")
                velocities[i][name] = (
                    alpha * velocities[i][name]
                    - beta * (changes[i] + changes[j]) / 2
                    - gamma * (now[i] - (now[i] + now[j]) / 2)
                )
                anchors[i][name] = now[i] + velocities[i][name]
                named(models[i])[name].copy_(anchors[i][name])
        if taken == STEPS:
            all_take(models, means(models))

    hold(four, config, meet)


def test_partners_have_each_other() -> None:
    for islands in (2, 4, 6):
        for step in range(20):
            with_whom = [partner(i, islands, f"0 {step}") for i in range(islands)]
            assert all(with_whom[with_whom[i]] == i != with_whom[i] for i in range(islands))
    assert len({tuple(partner(i, 6, f"0 {step}") for i in range(6)) for step in range(40)}) > 5


def meet_gossip(config: TrainConfig) -> Meet:
    """The plain algorithm, where a gradient is what a round has changed. In the first round all are equal."""
    topology, n = chosen(config.meets.topology, config.seed), config.islands
    x = torch.stack([flat(initial(config))] * n)
    rounds = iter([torch.eye(n, dtype=torch.float64), *(topology(n, number) for number in range(len(ENDS)))])

    def meet(taken: int, models: Models) -> None:
        nonlocal x
        if taken not in ENDS:
            return
        began, now = x, torch.stack([flat(model) for model in models])
        x = plain_unscheduled.gossip(began, next(rounds), lambda rank, own: own - now[rank], rate=1.0)
        for island, model in enumerate(models):
            put(model, x.mean(0) if taken == STEPS else x[island])

    return meet


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def put(model: torch.nn.Module, values: torch.Tensor) -> torch.nn.Module:
    torch.nn.utils.vector_to_parameters(values.clone(), model.parameters())
    return model


@pytest.mark.parametrize("topology", GossipTopology)
def test_gossip_over_each_topology(four: Cluster, topology: GossipTopology) -> None:
    config = config_of(Outer.GOSSIP, 4, topology=topology)
    hold(four, config, meet_gossip(config))


def test_gossip_between_islands_of_fsdp(eight: Cluster) -> None:
    config = config_of(Outer.GOSSIP, 4)
    hold(eight, config, meet_gossip(config), Plan(DataParallelism.FSDP))


@pytest.mark.parametrize("stop", [STEPS - 1, STEPS])
def test_gossip_in_each_step_is_decentralized_sgd(four: Cluster, stop: int) -> None:
    """As the paper has it: a gradient is of the weights before they are mixed. At the end all take the mean."""
    config = config_of(Outer.GOSSIP, 4, inner_steps=1, clip=float("inf"), learning_rate=0.1)
    model, batches, topology = initial(config), batches_for(config, 4), chosen(GossipTopology.RING, 0)
    x = torch.stack([flat(model)] * 4)

    def gradient(step: int, island: int, own: torch.Tensor) -> torch.Tensor:
        tokens, targets = batches.of_step(step, island, 4)
        loss = token_loss(put(model, own)(tokens), targets, batches.tokens // 4)
        return torch.cat([each.flatten() for each in torch.autograd.grad(loss, [*model.parameters()])])

    for step in range(stop):
        x = plain_unscheduled.gossip(x, topology(4, step), partial(gradient, step), learning_rate(config, step))
    found = four.run(on_ranks, config, stop=stop, inside=torch.optim.SGD)
    for island, (parameters, _) in enumerate(found):
        assert far_apart(parameters, put(model, x.mean(0) if stop == STEPS else x[island])) < CLOSE
    apart = far_apart(found[0][0], found[1][0])
    assert apart == 0 if stop == STEPS else apart > 1e-3


def test_sparta_of_all_parameters_is_their_mean_and_of_few_moves_few(four: Cluster) -> None:
    everything = config_of(Outer.SPARTA, sparse_share=1.0, inner_steps=H)
    hold(four, everything, lambda taken, models: all_take(models, means(models)) if taken in ENDS else None)
    few = replace(everything, sparse_share=0.25, inner_steps=1, steps=3, stop_after=None)
    two = [[each for each, _ in four.run(on_ranks, few, plan, stop=2)] for plan in (Plan(tensor_parallel=2), Plan())]
    for found in two:
        equal = [float((found[0][name] == found[2][name]).double().mean()) for name in found[0]]
        assert 0.2 < sum(equal) / len(equal) < 0.3  # the others have moved in the step before they were averaged
        for name in found[0]:
            assert torch.equal(found[0][name], found[1][name])  # ranks of one island stay equal


def test_a_round_of_one_step_is_data_parallelism_with_sgd_inside_and_outside(four: Cluster) -> None:
    free = replace(EXACT, clip=float("inf"), learning_rate=0.1)
    outside = {"outer": Outer.DILOCO, "inner_steps": 1, "outer_rate": 1.0, "outer_momentum": 0.0}
    together = four.run(on_ranks, free, inside=torch.optim.SGD)
    for islands in (2, 4):
        apart = four.run(on_ranks, replace(free, islands=islands, **outside), inside=torch.optim.SGD)
        assert max(far_apart(mine, its) for (mine, _), (its, _) in zip(apart, together, strict=True)) < CLOSE
    longer = replace(free, islands=4, **(outside | {"inner_steps": 2}))
    assert far_apart(four.run(on_ranks, longer, inside=torch.optim.SGD)[0][0], together[0][0]) > 1e-5


def test_one_island_is_its_inner_optimizer_only_where_the_outer_one_changes_nothing(clusters: Clusters) -> None:
    one, plain = clusters(1), alone(EXACT, lambda taken, models: None)[0]
    neutral = config_of(Outer.DILOCO, 1, outer_rate=1.0, outer_momentum=0.0)
    assert far_apart(one.run(on_ranks, neutral)[0][0], plain) < CLOSE
    for options in ({"outer_rate": 0.7, "outer_momentum": 0.0}, {"outer_rate": 1.0, "outer_momentum": 0.5}):
        config = config_of(Outer.DILOCO, 1, **options)  # Lookahead (Zhang et al. 2019)
        found = one.run(on_ranks, config)[0][0]
        assert far_apart(found, plain) > 1e-4
        assert far_apart(found, alone(config, meet_diloco(config, *options.values()))[0]) < CLOSE
    eager = config_of(Outer.EAGER, 1)  # of nobody else anything comes late
    assert far_apart(one.run(on_ranks, eager)[0][0], alone(eager, meet_diloco(eager, 0.7, 0.9))[0]) < CLOSE


def test_steps_that_share_gradients_are_data_parallelism_and_rounds_begin_after_them(four: Cluster) -> None:
    config = config_of(Outer.LOCAL_SGD, 4, synchronous_steps=STEPS)
    together = alone(EXACT, lambda taken, models: None)[0]
    for parameters, _ in four.run(on_ranks, config):
        assert far_apart(parameters, together) < CLOSE
    assert ends_of_rounds(replace(config, synchronous_steps=2)) == {5, 7}


@pytest.mark.parametrize("islands", [1, 2])
def test_a_round_has_h_inner_steps_and_not_one_more(islands: int) -> None:
    for h in (1, 2, 3, 5):
        ends = sorted(ends_of_rounds(config_of(Outer.DILOCO, islands, inner_steps=h, steps=11)))
        assert [b - a for a, b in zip([0, *ends], ends, strict=False)][: 11 // h] == [h] * (11 // h)
        assert ends[-1] == 11


def test_rounds_become_longer_as_the_learning_rate_falls() -> None:
    config = config_of(Outer.LOCAL_SGD, inner_steps=2, steps=400, warmup=10, round_length=RoundLength.QSR)
    ends = sorted(ends_of_rounds(config))
    lengths = [b - a for a, b in zip([0, *ends], ends, strict=False)]
    assert lengths[:8] == [2] * 8 and lengths[:-1] == sorted(lengths[:-1]) and max(lengths) > 20


def test_what_makes_no_sense_is_refused() -> None:
    for options, reason in (
        ({"islands": 4}, "4 islands never meet: say how, such as --outer diloco"),
        ({"inner_steps": 5}, "--inner-steps is of --outer"),
        ({"outer": Outer.DILOCO, "fragments": 2}, "--fragments is of --outer streaming, not of diloco"),
        ({"outer": Outer.STREAMING, "inner_steps": 4, "overlap_steps": 4}, "under way for fewer, not for 4"),
        ({"outer": Outer.NOLOCO, "islands": 3}, "in pairs"),
        ({"outer": Outer.DILOCO, "inner_steps": 0}, "1 or more"),
        ({"outer": Outer.NOLOCO, "topology": GossipTopology.RING}, "--topology is of --outer gossip, not of noloco"),
        ({"outer": Outer.GOSSIP, "wire": Wire.INT8}, "--wire is of --outer local-sgd, .*, not of gossip"),
        ({"outer": Outer.GOSSIP, "islands": 5, "topology": GossipTopology.TORUS}, "5 islands are no rows and columns"),
        ({"outer": Outer.LOCAL_SGD, "outer_momentum": 0.9}, "not of local-sgd"),
    ):
        with pytest.raises(BadInput, match=reason):
            TrainConfig(**options)


@pytest.mark.parametrize("wire", [Wire.BF16, Wire.INT8, Wire.INT4])
def test_few_bits_come_near(wire: Wire) -> None:
    x = torch.randn(4 * BLOCK, generator=torch.Generator().manual_seed(1))
    x[BLOCK : 2 * BLOCK] = 0
    steps = {Wire.BF16: 2**-8, Wire.INT8: 0.5 / 127, Wire.INT4: 0.5 / 7}[wire]
    error = (decode(encode(x, wire), wire, x.dtype) - x).view(4, -1).abs().amax(1)
    assert (error <= 1.01 * steps * x.view(4, -1).abs().amax(1)).all() and error[0] > 0


@pytest.mark.parametrize("outer", [Outer.DILOCO, Outer.STREAMING])
def test_islands_that_speak_in_few_bits_stay_equal_and_close(four: Cluster, outer: Outer) -> None:
    whole = four.run(on_ranks, config_of(outer, 4))[0][0]
    for wire, most in ((Wire.BF16, 5e-4), (Wire.INT8, 5e-4), (Wire.INT4, 5e-3)):
        found = [parameters for parameters, _ in four.run(on_ranks, config_of(outer, 4, wire=wire))]
        assert all(far_apart(each, found[0]) == 0 for each in found)
        assert 0 < far_apart(found[0], whole) < most
