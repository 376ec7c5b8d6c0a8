"""Our model as a GPTModel of Megatron Core: its settings, and the layers of a rank.

Attention over ranks it leaves to Transformer Engine, which takes GPUs: for `cp-ring` torch's ring is in its place.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from types import MappingProxyType

import torch
import torch.nn.functional as F
from megatron.core import parallel_state as here
from megatron.core import tensor_parallel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from reference.frameworks.adapters.context import Ring, _attention
from reference.frameworks.adapters.megatron_weights import load
from reference.frameworks.plain import Course

TENSOR, PIPELINE, EXPERT = (f"{kind}_model_parallel_size" for kind in ("tensor", "pipeline", "expert"))
VIRTUAL, CONTEXT = "virtual_pipeline_model_parallel_size", "context_parallel_size"
SIZES = (TENSOR, PIPELINE, VIRTUAL, CONTEXT, EXPERT)
SETTINGS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "gpt": {TENSOR: 2},
        "gpt-patched": {TENSOR: 2},
        "gpt-moved": {TENSOR: 2},
        "1f1b": {PIPELINE: 2},
        "interleaved": {PIPELINE: 2, VIRTUAL: 2},
        "interleaved-overlapped": {PIPELINE: 2, VIRTUAL: 2, "overlap_p2p_comm": True, "batch_p2p_comm": False},
        "cp": {CONTEXT: 2},
        "cp-ring": {CONTEXT: 2},
        "experts": {EXPERT: 2},
        "experts-patched": {EXPERT: 2, "moe_token_dispatcher_type": "allgather"},
        "experts-alltoall": {EXPERT: 2, "moe_token_dispatcher_type": "alltoall"},
    }
)
PLAIN = ("bias_dropout", "masked_softmax", "bias_activation", "apply_rope", "gradient_accumulation")  # kernels of GPUs


def config_of(course: Course, feature: str) -> TransformerConfig:
    """A Llama in Megatron's words."""
    ours, more = course.config, {f"{name}_fusion": False for name in PLAIN}
    if ours.experts:
        more |= {"num_moe_experts": ours.experts, "moe_router_topk": ours.top_k, "moe_router_dtype": "fp64"}
        more |= {"moe_router_load_balancing_type": "none", "moe_ffn_hidden_size": ours.expert_hidden}
    more |= {"params_dtype": course.dtype, "pipeline_dtype": course.dtype, "use_cpu_initialization": True}
    more |= {"normalization": "RMSNorm", "layernorm_epsilon": ours.norm_epsilon, "add_bias_linear": False}
    more |= {"gated_linear_unit": True, "activation_func": F.silu, "hidden_dropout": 0.0, "attention_dropout": 0.0}
    more |= {"num_query_groups": ours.kv_heads, "ffn_hidden_size": ours.hidden, "attention_softmax_in_fp32": False}
    sizes = {"num_layers": ours.layers, "hidden_size": ours.width, "num_attention_heads": ours.heads}
    return TransformerConfig(**sizes, **more, **SETTINGS.get(feature, {}))


def chunk_of(course: Course, config: TransformerConfig, stage: int, ring: bool = False) -> nn.Module:
    """The layers of one of this rank's stages, with our weights."""
    tensor_parallel.get_cuda_rng_tracker().fork = lambda *_: nullcontext()
    ours, which = course.config, {"vp_stage": stage} if config.virtual_pipeline_model_parallel_size else {}
    first, last = here.is_pipeline_first_stage, here.is_pipeline_last_stage
    spec = get_gpt_layer_local_spec(ours.experts or None, moe_grouped_gemm=False, normalization="RMSNorm")
    if ring:
        spec.submodules.self_attention.submodules.core_attention = RingInMegatron
    more = {
        name: given(ignore_virtual=False, **which) for name, given in (("pre_process", first), ("post_process", last))
    }
    more |= {"parallel_output": False, "position_embedding_type": "rope", "rotary_base": ours.rotary_base, **which}
    chunk = GPTModel(config, spec, ours.vocabulary, course.sequence, **more).to(course.dtype)
    pairs = torch.arange(0, ours.head_dim, 2, dtype=course.dtype) / ours.head_dim
    chunk.rotary_pos_emb.inv_freq = ours.rotary_base**-pairs  # else in float32
    load(chunk, course)
    return chunk


class RingInMegatron(nn.Module):
    """torch's ring, called as Megatron calls attention: [S, B, H, d] -> [S, B, H d]."""

    def __init__(self, **_: object) -> None:
        super().__init__()
        _attention._cp_options.enable_load_balance, _attention._cp_options.convert_to_f32 = True, False

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object) -> Tensor:
        """Causal, of tokens in zigzag order, as Megatron cuts them."""
        heads = (x.permute(1, 2, 0, 3).contiguous() for x in (query, key, value))
        return Ring.apply(*heads, here.get_context_parallel_group(), True).permute(2, 0, 1, 3).flatten(2)
