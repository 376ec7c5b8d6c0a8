"""Our model in TorchTitan: its Qwen 3, which is a Llama without norms of queries and keys, and may have experts."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims, utils
from torchtitan.models.common import CosSinRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common import config_utils as make
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.qwen3.model import Qwen3Model, Qwen3TransformerBlock

from reference.frameworks.plain import Course

NAMES = {
    "embedding": "tok_embeddings",
    "head": "lm_head",
    "attention.query": "attention.qkv_linear.wq",
    "attention.key": "attention.qkv_linear.wk",
    "attention.value": "attention.qkv_linear.wv",
    "attention.output": "attention.wo",
    "feed_forward_norm": "ffn_norm",
    "feed_forward.gate": "feed_forward.w1",
    "feed_forward.down": "feed_forward.w2",
    "feed_forward.up": "feed_forward.w3",
    "feed_forward.router": "moe.router.gate",
}
EXPERTS = {"gate": "w1_EFD", "down": "w2_EDF", "up": "w3_EFD"}


def prepared(course: Course, ranks: int, **degrees: object) -> tuple[Qwen3Model, dict[str, Any]]:
    """TorchTitan's model with our weights, and what its functions that parallelise one are given besides."""
    config = ParallelismConfig(spmd_backend="partial_dtensor", **degrees)
    utils.set_spmd_backend(config.spmd_backend)
    described = qwen(course)
    described.update_from_config(config=SimpleNamespace(parallelism=config))
    model = described.build()
    model.load_state_dict(dict(theirs(*each) for each in course.model().named_parameters()))
    training = TrainingConfig(mixed_precision_param="float32", local_batch_size=course.batch)
    dims = {"parallel_dims": ParallelDims.from_config(config, ranks), "parallelism": config, "training": training}
    return model, dims | {"compile_config": CompileConfig(), "ac_config": None, "dump_folder": course.folder}


def theirs(name: str, value: Tensor) -> tuple[str, Tensor]:
    """A parameter of ours under its name there; with `CosSinRoPE` rows have our order."""
    layer, _, path = name.rpartition("blocks.")[2].partition(".") if "blocks." in name else ("", "", name)
    place, module = f"layers.{layer}." if layer else "", path.removesuffix(".weight")
    if ".experts." in module:
        return f"{place}moe.routed_experts.inner_experts.{EXPERTS[module.rpartition('.')[2]]}", value.detach()
    return f"{place}{NAMES.get(module, module)}.weight", value.detach()


def qwen(course: Course) -> Qwen3Model.Config:
    """Our model in TorchTitan's words."""
    ours, width, start = course.config, course.config.width, {"weight": nn.init.zeros_}
    norm = RMSNorm.Config(normalized_shape=width, eps=ours.norm_epsilon, param_init=start)
    table = {"num_embeddings": ours.vocabulary, "embedding_dim": width}
    return Qwen3Model.Config(
        dim=width,
        vocab_size=ours.vocabulary,
        tok_embeddings=Embedding.Config(**table, param_init=start),
        norm=norm,
        lm_head=Linear.Config(in_features=width, out_features=ours.vocabulary, param_init=start),
        layers=[block(course, norm, start) for _ in range(ours.layers)],
    )


def block(course: Course, norm: RMSNorm.Config, start: dict) -> Qwen3TransformerBlock.Config:
    """A block, with plain attention, which has a backward on CPUs."""
    ours, size = course.config, {"dim": course.config.width, "hidden_dim": course.config.hidden}
    more = {"attention_norm": replace(norm), "ffn_norm": replace(norm)}
    rope = CosSinRoPE.Config(dim=ours.head_dim, max_seq_len=course.sequence, theta=ours.rotary_base)
    heads = {"dim": ours.width, "n_heads": ours.heads, "n_kv_heads": ours.kv_heads, "rope": rope}
    plain = {"inner_attention": ScaledDotProductAttention.Config(), "wqkv_param_init": start, "wo_param_init": start}
    if ours.experts:
        count = {"num_experts": ours.experts, "top_k": ours.top_k}
        gate = {"gate_param_init": start, "score_func": "softmax", "route_norm": True}
        router = make.make_router_config(dim=ours.width, **count, **gate)
        experts = make.make_routed_experts_config(**size, **count, param_init=start, comm_backend="standard")
        balance = {"load_balance_coeff": None, "num_experts": ours.experts}
        more["moe"] = make.make_moe_config(router=router, routed_experts=experts, **balance)
    else:
        more["feed_forward"] = make.make_ffn_config(**size, w1_param_init=start, w2w3_param_init=start)
    return Qwen3TransformerBlock.Config(attention=make.make_gqa_config(**heads, **plain), **more)
