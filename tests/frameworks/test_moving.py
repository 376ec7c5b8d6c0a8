"""Checkpoints there and back, exactly: to torch's DCP and to Hugging Face's Llama."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from reference.cluster import Cluster
from reference.errors import BadInput
from reference.frameworks import moving
from reference.frameworks.adapters import checkpoint, fsdp
from reference.frameworks.plain import DENSE, EXPERTS, Course
from reference.models import GPTConfig, preset

COURSE = Course(steps=4)


def ours_then_torch(folder: str, course: Course) -> tuple[list[float], dict[str, Tensor]]:
    """On a rank: two steps with our FSDP, saved; two more with torch's, from there. The losses of these; who I am."""
    from reference import config
    from reference.frameworks.adapters.ours import ENDLESS
    from reference.plan import DataParallelism, Plan
    from reference.train import Training
    from reference.zero.checkpoint import save

    wanted = config.TrainConfig(
        course.config, steps=ENDLESS, batch=course.batch, sequence=course.sequence, learning_rate=course.rate,
        warmup=0, clip=float("inf"), precision=config.precision("fp64"),
    )  # fmt: skip
    training = Training(wanted, dist.group.WORLD, torch.device("cpu"), Plan(data_parallel=DataParallelism.FSDP))
    for step in range(2):
        training.backward(step)
        training.update(step)
    save(f"{folder}/ours", training.form, training.optimizer, 2, {}, dist.group.WORLD)
    if dist.get_rank() == 0:
        whole = course.model()
        moving.to_torch(f"{folder}/ours", whole, course.optimizer(whole.parameters()), f"{folder}/torch")
    dist.barrier()
    model = fsdp.sharded(course.model(), "fsdp2")
    optimizer = course.optimizer(model.parameters())
    checkpoint.load(f"{folder}/torch", model, optimizer)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    losses = [checkpoint.train_step(course, model, optimizer, step, rank, ranks) for step in (2, 3)]
    checkpoint.save(f"{folder}/after", model, optimizer)
    return losses, {name: p.full_tensor().detach() for name, p in model.named_parameters()}


def test_ours_goes_on_in_torch_and_comes_back(clusters: Callable[..., Cluster], tmp_path: Path) -> None:
    from reference.frameworks.plain import one_process

    found = clusters(2).run(ours_then_torch, str(tmp_path), COURSE)
    mean = [sum(each) / 2 for each in zip(*(losses for losses, _ in found), strict=True)]
    assert mean == pytest.approx(one_process(COURSE)[2:], rel=1e-10)
    parameters, _, step = moving.ours(tmp_path / "ours")
    assert step == 2
    assert parameters.keys() == dict(COURSE.model().named_parameters()).keys()
    back, held = moving.from_torch(tmp_path / "after"), found[0][1]
    assert back.keys() == held.keys()
    assert all(torch.equal(back[name], held[name]) for name in held)


@pytest.mark.parametrize("config", [DENSE, preset("tiny")], ids=["own head", "tied"])
def test_a_llama_of_hugging_face_gives_the_same_logits(config: GPTConfig) -> None:
    transformers = pytest.importorskip("transformers")
    course = Course(config=config)
    model = course.model().eval()
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**moving.llama_config(config))).double().eval()
    names = moving.to_llama(dict(model.named_parameters()))
    assert names.keys() == dict(theirs.named_parameters()).keys()
    theirs.load_state_dict(names, strict=False)
    tokens, _ = course.read(0)
    with torch.no_grad():
        assert torch.allclose(theirs(tokens).logits, model(tokens), rtol=0, atol=1e-6)
    back = moving.from_llama(dict(theirs.named_parameters()))
    assert all(torch.equal(back[name], value) for name, value in model.named_parameters())


def test_what_cannot_move_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no other name"):
        moving.to_llama({"blocks.0.feed_forward.router.weight": torch.zeros(1)})
    with pytest.raises(BadInput, match="not a model of MoEConfig"):
        moving.llama_config(EXPERTS)
    with pytest.raises(BadInput, match="no checkpoint"):
        moving.tensors_in(tmp_path)
