"""Checkpoints there and back, exactly: to torch's DCP, DeepSpeed's, Megatron's, and to Hugging Face's Llama."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from reference.cluster import Cluster, RankError
from reference.errors import BadInput
from reference.frameworks import moving, moving_deepspeed, moving_megatron
from reference.frameworks.adapters import checkpoint, fsdp, moved
from reference.frameworks.catalogue import find
from reference.frameworks.environments import python_of
from reference.frameworks.lab import runs
from reference.frameworks.plain import DENSE, EXPERTS, Course, one_process
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


def contents_of(config: GPTConfig, dtype: torch.dtype = torch.float32) -> moving.Contents:
    """What a checkpoint of a model may hold, with moments that are as good as any."""
    parameters = {name: p.detach() for name, p in Course(config=config, dtype=dtype).model().named_parameters()}
    torch.manual_seed(0)
    state = {word: {n: torch.rand_like(p) for n, p in parameters.items()} for word in ("exp_avg", "exp_avg_sq")}
    return parameters, state, 7


class Ourselves:
    """A framework that is ours, for the way of a run that moves."""

    def __init__(self, course: Course, forgets: bool) -> None:
        self.course, self.forgets = course, forgets

    def load(self, contents: moving.Contents) -> None:
        parameters, state, self.steps = contents
        self.model = self.course.model()
        self.model.load_state_dict(dict(parameters))
        self.optimizer = self.course.optimizer(self.model.parameters())
        for name, parameter in () if self.forgets else self.model.named_parameters():
            moments = {word: held[name].clone() for word, held in state.items()}
            self.optimizer.state[parameter] = {"step": torch.tensor(float(self.steps)), **moments}

    def step(self, number: int) -> float:
        self.steps += 1
        tokens, targets = self.course.read(number)
        self.optimizer.zero_grad()
        loss = self.course.loss(self.model(tokens), targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def saved(self) -> moving.Contents | None:
        if dist.get_rank():
            return None
        named = dict(self.model.named_parameters())
        held = {name: self.optimizer.state[parameter] for name, parameter in named.items()}
        words = ("exp_avg", "exp_avg_sq") if all(held.values()) else ()
        state = {word: {name: held[name][word].clone() for name in named} for word in words}
        return {name: parameter.detach().clone() for name, parameter in named.items()}, state, self.steps


def a_run_that_moves(course: Course, forgets: bool) -> list[float]:
    return list(moved.losses(course, Ourselves(course, forgets)))


def test_a_run_goes_to_another_program_and_comes_back(clusters: Callable[..., Cluster], tmp_path: Path) -> None:
    course = Course(steps=6, folder=str(tmp_path))
    first, second = clusters(2).run(a_run_that_moves, course, False)
    assert [(a + b) / 2 for a, b in zip(first, second, strict=True)] == pytest.approx(one_process(course), rel=1e-10)


def test_a_program_that_forgets_moments_is_found_out(clusters: Callable[..., Cluster], tmp_path: Path) -> None:
    with pytest.raises(RankError, match=r"loaded and saved again, these are other ones: exp_avg\.blocks\.0"):
        clusters(2).run(a_run_that_moves, Course(steps=6, folder=str(tmp_path)), True)


def test_what_differs_is_named() -> None:
    some, others = contents_of(DENSE), contents_of(DENSE)
    assert moving.unlike(some, others) == []
    others[1]["exp_avg"]["norm.weight"][3] += 1e-7
    del others[0]["head.weight"]
    assert moving.unlike(some, (*others[:2], 8)) == ["exp_avg.norm.weight", "head.weight", "the step"]


def test_equal_numbers_in_other_bits_differ_and_a_nan_is_like_itself() -> None:
    some = contents_of(DENSE)
    some[0]["norm.weight"] = torch.tensor([0.0, 1.0, torch.nan])
    assert moving.unlike(some, some) == []
    for other in (torch.tensor([-0.0, 1.0, torch.nan]), some[0]["norm.weight"].double(), torch.zeros(3)):
        assert moving.unlike(some, ({**some[0], "norm.weight": other}, *some[1:])) == ["norm.weight"]


def test_to_deepspeed_and_back(tmp_path: Path) -> None:
    given = contents_of(DENSE)
    moving_deepspeed.to_deepspeed(*given, tmp_path)
    assert (tmp_path / "global_step7" / "zero" / "blocks.3.attention.query.weight" / "exp_avg.pt").exists()
    assert moving.unlike(given, moving_deepspeed.from_deepspeed(tmp_path)) == []
    with pytest.raises(BadInput, match="global_step7 is there already: take another folder"):
        moving_deepspeed.to_deepspeed(*given, tmp_path)
    assert moving.unlike(given, moving_deepspeed.from_deepspeed(tmp_path)) == []


def test_deepspeed_has_no_checkpoint_of_float64(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"in float32, and embedding.weight is in torch.float64"):
        moving_deepspeed.to_deepspeed(*contents_of(DENSE, torch.float64), tmp_path)
    with pytest.raises(BadInput, match="ds_to_universal"):
        moving_deepspeed.from_deepspeed(tmp_path)
    parameters, state, step = contents_of(DENSE)
    state["exp_avg"] = {name: x.double() for name, x in state["exp_avg"].items()}
    with pytest.raises(BadInput, match=r"is in torch\.float64"):
        moving_deepspeed.to_deepspeed(parameters, state, step, tmp_path)


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("zero/norm.weight/fp32.pt", "lacks fp32.pt of norm.weight"),
        ("zero/embedding.weight/exp_avg.pt", "lacks exp_avg.pt of embedding.weight"),
        ("*_model_states.pt", "lacks mp_rank_00_model_states.pt"),
    ],
)
def test_a_checkpoint_of_deepspeed_that_lacks_a_part_is_refused(gone: str, said: str, tmp_path: Path) -> None:
    moving_deepspeed.to_deepspeed(*contents_of(DENSE), tmp_path)
    for path in (tmp_path / "global_step7").glob(gone):
        path.unlink()
    with pytest.raises(BadInput, match=said):
        moving_deepspeed.from_deepspeed(tmp_path)


@pytest.mark.parametrize("config", [DENSE, preset("tiny")], ids=["own head", "tied"])
def test_to_megatron_and_back(config: GPTConfig, tmp_path: Path) -> None:
    given = contents_of(config)
    moving_megatron.to_megatron(*given, config, [{"lr": 1e-3}, {"lr": 1e-3}], tmp_path)
    assert moving.unlike(given, moving_megatron.from_megatron(tmp_path, config)) == []


def test_masters_of_a_distributed_optimizer_are_read_where_it_has_them(tmp_path: Path) -> None:
    parameters, state, step = contents_of(DENSE)
    halved = {name: p.bfloat16() for name, p in parameters.items()}  # what the model computes with
    tensors = moving_megatron.to_names(halved, DENSE)
    for word, held in {"param": parameters, **state}.items():
        tensors |= {f"optimizer.state.{word}.{n}": x for n, x in moving_megatron.to_names(held, DENSE).items()}
    checkpoint.dcp.save(tensors, checkpoint_id=tmp_path, no_dist=True)
    torch.save({"optimizer": {"optimizer": {"param_groups": [{"step": float(step)}]}}}, tmp_path / "common.pt")
    assert moving.unlike((parameters, state, step), moving_megatron.from_megatron(tmp_path, DENSE)) == []


def test_megatron_has_queries_keys_and_values_by_groups_of_heads() -> None:
    """Two groups: two heads of queries, one of keys, one of values; and again."""
    parameters, *_ = contents_of(DENSE)
    stacked = moving_megatron.to_names(parameters, DENSE)["decoder.layers.self_attention.linear_qkv.weight"]
    assert stacked.shape == (DENSE.layers, 64, DENSE.width)
    query, key, value = (parameters[f"blocks.2.attention.{kind}.weight"] for kind in ("query", "key", "value"))
    for group in range(2):
        rows = stacked[2, 32 * group : 32 * (group + 1)]
        assert torch.equal(rows[:16], query[16 * group : 16 * (group + 1)])
        assert torch.equal(rows[16:24], key[8 * group : 8 * (group + 1)])
        assert torch.equal(rows[24:], value[8 * group : 8 * (group + 1)])


def test_megatron_has_gate_over_up_and_norms_by_the_layer_behind_them() -> None:
    parameters, *_ = contents_of(DENSE)
    names = moving_megatron.to_names(parameters, DENSE)
    fused = names["decoder.layers.mlp.linear_fc1.weight"][1]
    assert torch.equal(fused[:96], parameters["blocks.1.feed_forward.gate.weight"])
    assert torch.equal(fused[96:], parameters["blocks.1.feed_forward.up.weight"])
    norms = names["decoder.layers.self_attention.linear_qkv.layer_norm_weight"]
    assert torch.equal(norms[1], parameters["blocks.1.attention_norm.weight"])


def test_what_megatron_cannot_hold_is_refused(tmp_path: Path) -> None:
    parameters, *_ = contents_of(DENSE)
    with pytest.raises(BadInput, match="not a model of MoEConfig"):
        moving_megatron.to_names(parameters, EXPERTS)
    with pytest.raises(BadInput, match="without biases"):
        moving_megatron.to_names(parameters, replace(DENSE, biases=("query",)))
    with pytest.raises(BadInput, match=r"lacks decoder.final_layernorm.weight"):
        moving_megatron.from_names({}, DENSE)
    checkpoint.dcp.save({"model": {}}, checkpoint_id=tmp_path, no_dist=True)
    with pytest.raises(BadInput, match="no optimizer by names"):
        moving_megatron.from_megatron(tmp_path, DENSE)


@pytest.mark.parametrize("other", [{"layers": 2}, {"layers": 6}, {"kv_heads": 4}, {"hidden": 64}], ids=str)
def test_another_model_is_refused_in_both_directions(other: dict[str, int]) -> None:
    parameters, *_ = contents_of(DENSE)
    with pytest.raises(BadInput, match="another model"):
        moving_megatron.to_names(parameters, replace(DENSE, **other))
    with pytest.raises(BadInput, match="another model"):
        moving_megatron.from_names(moving_megatron.to_names(parameters, DENSE), replace(DENSE, **other))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "feature"), [("deepspeed", "zero1-moved"), ("deepspeed", "zero3-moved"), ("megatron", "gpt-moved")]
)
def test_a_run_moves_to_a_framework_and_back(name: str, feature: str) -> None:
    framework, features = find(name, feature)
    try:
        python_of(name, framework)
    except BadInput as missing:
        pytest.skip(str(missing))
    row = runs.run(name, framework, feature, features[feature])
    assert row.error == ""
    assert row.is_equal, row
