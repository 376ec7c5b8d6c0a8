"""Branches train as they would alone, without a message, and are merged from their checkpoint."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference.choices import IslandText, Outer
from reference.cluster import Cluster
from reference.config import TrainConfig, learning_rate
from reference.data_parallel import gather_full
from reference.decentralized.branches import FEED_FORWARD, mixture
from reference.decentralized.merge import Merge, continued, merged_training, options_in, saved_options
from reference.decentralized.merge import on_ranks as merge_on_ranks
from reference.decentralized.rounds import whose_loss
from reference.errors import BadInput
from reference.models import architecture, create, preset, token_loss
from reference.models.data import Batches
from reference.options import configure
from reference.parallelize import DataParallelism, Plan
from reference.saves import Saves
from reference.trace import Op
from reference.train import Training, batches_for, train, validation_loss

from .one_process import EXACT, STEPS, Models, all_take, alone, config_of, far_apart, means, named, on_ranks
from .test_islands import CLOSE
from .test_saved_islands import sitting

Clusters = Callable[..., Cluster]
CONFIG = config_of(Outer.BRANCHES, inner_steps=None)
PLANS = {"fsdp": Plan(DataParallelism.FSDP), "tensor": Plan(tensor_parallel=2)}


def in_one_process(config: TrainConfig) -> Models:
    return alone(config, lambda taken, models: None)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_branches_of_any_plan_train_as_if_there_were_no_other(four: Cluster, plan: Plan) -> None:
    assert CONFIG.meets.island_text is IslandText.OWN
    for config in (CONFIG, replace(CONFIG, island_text=IslandText.SHARED)):
        models = in_one_process(config)
        for rank, (parameters, _) in enumerate(four.run(on_ranks, config, plan)):
            assert far_apart(parameters, models[rank // 2]) < CLOSE


def whole_run(config: TrainConfig) -> float:
    """As the command trains, and tells the loss in the end."""
    training = Training(config, dist.group.WORLD, torch.device("cpu"), Plan(DataParallelism.FSDP))
    dist.barrier()
    for step in range(config.steps):
        training.backward(step)
        training.update(step)
    loss = validation_loss(training)
    dist.barrier()
    return loss


def test_no_message_leaves_an_island_from_the_first_step_to_the_loss(four: Cluster) -> None:
    losses, trace = four.trace(whole_run, CONFIG)
    assert losses[0] == losses[1] != losses[2] == losses[3]
    for rank, events in enumerate(trace.events):
        between = [event for event in events if event.op is not Op.BARRIER]
        assert len(between) > STEPS
        first, *_, last = [event.posted for event in events if event.op is Op.BARRIER]
        for event in between:
            if first < event.posted < last:
                assert {rank // 2} == {each // 2 for each in event.group}


def seeded(config: TrainConfig) -> dict[str, Tensor]:
    return on_ranks(config)[0]


def test_branches_may_begin_with_a_model_that_was_trained_together(four: Cluster) -> None:
    config = replace(CONFIG, synchronous_steps=STEPS, island_text=IslandText.SHARED)
    together = in_one_process(EXACT)[0]
    assert all(far_apart(each, together) < CLOSE for each in four.run(seeded, config))


@pytest.fixture(scope="module")
def config(short_text: Path) -> TrainConfig:
    return replace(CONFIG, data=str(short_text))


@pytest.fixture(scope="module")
def saved(four: Cluster, config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Branches that islands of tensor parallelism have saved."""
    folder = tmp_path_factory.mktemp("branches") / "run"
    four.run(sitting, config, str(folder), False, Plan(tensor_parallel=2))
    return folder


def merged_parameters(config: TrainConfig, folder: Path, into: Merge) -> dict[str, Tensor]:
    training = Training(config, dist.group.WORLD, torch.device("cpu"))
    Saves(folder, resume=True).load(training)
    return gather_full(merged_training(training, into).form)


def test_an_average_is_the_mean_of_islands(clusters: Clusters, config: TrainConfig, saved: Path) -> None:
    wanted = means(in_one_process(config))
    assert all(
        far_apart(each, wanted) < CLOSE for each in clusters(2).run(merged_parameters, config, saved, Merge.AVERAGE)
    )


def test_an_expert_is_the_feed_forward_of_an_island(clusters: Clusters, config: TrainConfig, saved: Path) -> None:
    models, (found, same) = in_one_process(config), clusters(2).run(merged_parameters, config, saved, Merge.EXPERTS)
    assert far_apart(found, same) == 0
    for name, wanted in means(models).items():
        expert = name.replace(FEED_FORWARD, f"{FEED_FORWARD}experts.")
        if expert != name:
            wanted = torch.stack([named(model)[name].detach() for model in models])
        torch.testing.assert_close(found[expert], wanted, rtol=0, atol=CLOSE)


@torch.no_grad()
def held_out_of(model: nn.Module, batches: Batches) -> float:
    return sum(float(token_loss(model(t), y, batches.held_out_tokens)) for t, y in batches.validation())


@torch.no_grad()
def held_out_of_all(models: Models, batches: Batches) -> float:
    total = 0.0
    for tokens, targets in batches.validation():
        each = [model(tokens).log_softmax(2).gather(2, targets[..., None])[..., 0] for model in models]
        total -= float(mixture(torch.stack(each)).sum())
    return total / batches.held_out_tokens


@pytest.mark.parametrize("into", Merge)
def test_losses_are_those_of_one_process(clusters: Clusters, config: TrainConfig, saved: Path, into: Merge) -> None:
    models, batches = in_one_process(config), batches_for(config, 1)
    for found in clusters(2).run(merge_on_ranks, config, saved, into, None, {}):
        assert found.branches == pytest.approx([held_out_of(model, batches) for model in models], abs=CLOSE)
        if into is Merge.ENSEMBLE:
            assert found.merged == pytest.approx(held_out_of_all(models, batches), abs=CLOSE)
            assert found.merged < max(found.branches)
        if into is Merge.AVERAGE:
            assert found.merged == pytest.approx(held_out_of(mean_of(models), batches), abs=CLOSE)


@torch.no_grad()
def mean_of(models: Models) -> nn.Module:
    """A model of their mean."""
    model = deepcopy(models[0])
    all_take([model], means(models))
    return model


def on_with(config: TrainConfig, folder: Path) -> dict[str, Tensor]:
    """Resume on all ranks, as one island."""
    saves = Saves(folder, resume=True)
    plan = Plan(DataParallelism.FSDP)
    return gather_full(train(config, dist.group.WORLD, torch.device("cpu"), plan, saves=saves).form)


def test_an_average_trains_on(
    four: Cluster, clusters: Clusters, config: TrainConfig, saved: Path, tmp_path: Path
) -> None:
    """As in one process: from the mean, with an optimizer that begins anew, from the same step on."""
    clusters(2).run(merge_on_ranks, config, saved, Merge.AVERAGE, tmp_path / "merged", {})
    longer = replace(continued(config, Merge.AVERAGE), steps=STEPS + 2)
    wanted = trained_on(longer, means(in_one_process(config)))
    assert all(far_apart(found, wanted) < CLOSE for found in four.run(on_with, longer, tmp_path / "merged"))


def test_a_mixture_of_experts_is_found_again_under_another_plan(
    four: Cluster, clusters: Clusters, config: TrainConfig, saved: Path, tmp_path: Path
) -> None:
    wanted = clusters(2).run(merged_parameters, config, saved, Merge.EXPERTS)[0]
    clusters(2).run(merge_on_ranks, config, saved, Merge.EXPERTS, tmp_path / "merged", {})
    same, longer = (replace(continued(config, Merge.EXPERTS), steps=STEPS + more) for more in (0, 1))
    assert all(far_apart(found, wanted) == 0 for found in four.run(on_with, same, tmp_path / "merged"))
    assert far_apart(four.run(on_with, longer, tmp_path / "merged")[0], wanted) > 1e-5


def test_a_merged_model_has_a_name_by_which_it_trains_on() -> None:
    words = {"model": "tiny", "islands": 3, "outer": "branches", "dropout": 0.25, "optimizer": "muon"}
    branches, plan = configure(**words)
    for into, name in ((Merge.AVERAGE, "tiny"), (Merge.EXPERTS, "3xtiny")):
        words_then = saved_options(words, into, 3)
        assert words_then["model"] == name
        assert configure(**words_then) == (continued(branches, into), plan)
    for name, reason in (
        ("1xtiny", "a mixture is of 2 branches or more, not of 1"),
        ("2xnone", "no model is called 'none'"),
    ):
        with pytest.raises(BadInput, match=reason):
            preset(name)


def trained_on(config: TrainConfig, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Two more steps on one rank."""
    model = create(architecture, config.model, config.seed, dtype=torch.float64)
    model.load_state_dict(parameters, strict=False)  # a tied table has two names
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.95), weight_decay=config.weight_decay)
    batches = batches_for(config, 1)
    for step in range(STEPS, config.steps):
        tokens, targets = batches.of_step(step)
        optimizer.zero_grad()
        token_loss(model(tokens), targets, batches.tokens).backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.param_groups[0]["lr"] = learning_rate(config, step)
        optimizer.step()
    return {name: p.detach() for name, p in named(model).items()}


def test_what_cannot_be_merged_is_refused(four: Cluster, config: TrainConfig, saved: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    four.run(sitting, config_of(Outer.DILOCO), str(plain), False, Plan())
    with pytest.raises(BadInput, match="has no branches: train with --islands 2 --outer branches"):
        options_in(plain)
    with pytest.raises(BadInput, match="does not tell the options of its run"):
        options_in(saved)
    with pytest.raises(BadInput, match="--inner-steps is of --outer local-sgd"):
        replace(config, inner_steps=5)


def test_a_loss_of_one_island_says_so() -> None:
    assert whose_loss(CONFIG) == " of island 0"
    apart = config_of(Outer.DILOCO)
    assert whose_loss(apart) == whose_loss(EXACT) == whose_loss(replace(apart, stop_after=STEPS)) == ""
    assert whose_loss(replace(apart, stop_after=STEPS - 2)) == " of island 0"
