"""Tiny random checkpoints of each architecture, made with transformers and written to GGUF."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
import transformers

from octavo.formats import QTensor, by_name, quantize_reference
from octavo.io.gguf import GGUFFile
from tests.models.deci_layers import rebuild
from tests.models.plamo3_layers import rebuild_plamo3
from tests.models.rwkv7_layers import rebuild_rwkv7

VOCAB = 320
BASE = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": VOCAB, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
}


@dataclass(frozen=True)
class Case:
    """A transformers configuration, and what GGUF says of it beyond the usual keys.

    folder  the class that the folder becomes one of, where transformers does not have it, see `published_layouts`
    """

    arch: str
    config: str
    options: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    folder: str = ""


def scaled(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


LLAMA3_ROPE = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}
LONGROPE = {"pad_token_id": None, "rope_parameters": {
    "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
    "short_factor": [1 + i / 8 for i in range(24)], "long_factor": [2 + i / 2 for i in range(24)],
}}
GEMMA3 = {
    "head_dim": 64, "sliding_window": 20, "query_pre_attn_scalar": 40, "final_logit_softcapping": 3.0,
    "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6},
                        "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0}},
    "layer_types": ["sliding_attention", "full_attention"],
}


def longrope_keys(original: int) -> dict[str, Any]:
    """What llama.cpp writes of a longrope: its tensors say that it is one."""
    factor = float(np.sqrt(1 + np.log(512 / original) / np.log(original)))
    return {"rope.dimension_count": 48, "rope.scaling.original_context_length": original,
            "rope.scaling.attn_factor": factor}


QWEN_VISION = {
    "hidden_size": 32, "intermediate_size": 32, "depth": 1, "num_heads": 2, "patch_size": 14, "out_hidden_size": 128,
}
PICTURES: dict[str, dict[str, Any]] = {
    "Qwen2VLConfig": {"depth": 1, "embed_dim": 32, "num_heads": 2, "patch_size": 14, "hidden_size": 128},
    "Qwen2_5_VLConfig": {**QWEN_VISION, "fullatt_block_indexes": [0]},
    "Qwen3VLConfig": {**QWEN_VISION, "deepstack_visual_indexes": [0]},
    "Step3p7Config": {
        "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
        "mlp_ratio": 1.0},
    "Qwen3VLMoeConfig": {**QWEN_VISION, "deepstack_visual_indexes": [0]},
    "HunYuanVLConfig": {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "out_hidden_size": 128},
    "PaddleOCRVLConfig": {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28},
}
"""Of configurations of models that take pictures too, what makes these; a case's options are the text model's."""

UNMAPPED = {"Mistral4Config": "Mistral4ForCausalLM"}
"""Configurations of text models that transformers has no automatic class for."""

CASES = {
    "llama": Case("llama", "LlamaConfig"),
    "llama-tied": Case("llama", "LlamaConfig", {"tie_word_embeddings": True}),
    "llama-biased": Case("llama", "LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama3-rope": Case("llama", "LlamaConfig", scaled("llama3", **LLAMA3_ROPE)),
    "llama-linear": Case("llama", "LlamaConfig", scaled("linear", factor=4.0),
                         {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    "mistral": Case("llama", "MistralConfig", {"sliding_window": None, "num_key_value_heads": 1}),
    "mixtral": Case("llama", "MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2},
                    {"expert_count": 4, "expert_used_count": 2}),
    "qwen2": Case("qwen2", "Qwen2Config"),
    "qwen2-yarn": Case("qwen2", "Qwen2Config", scaled("yarn", factor=4.0, original_max_position_embeddings=64),
                       {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                        "rope.scaling.original_context_length": 64}),
    "qwen3": Case("qwen3", "Qwen3Config", {"head_dim": 128, "tie_word_embeddings": True}),
    "qwen3moe": Case("qwen3moe", "Qwen3MoeConfig",
                     {"head_dim": 64, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 256,
                      "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
                     {"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 256}),
    "phi3": Case("phi3", "Phi3Config", {"pad_token_id": None, "sliding_window": 20}, {"attention.sliding_window": 20}),
    "phi3-long": Case("phi3", "Phi3Config", {**LONGROPE, "original_max_position_embeddings": 64}, longrope_keys(64)),
    "phi3-short": Case("phi3", "Phi3Config", {**LONGROPE, "original_max_position_embeddings": 256},
                       longrope_keys(256)),
    "gemma3": Case("gemma3", "Gemma3TextConfig", GEMMA3,
                   {"attention.sliding_window": 20, "attention.sliding_window_pattern": 2, "attention.scale": 40**-0.5,
                    "rope.freq_base_swa": 5000.0, "final_logit_softcapping": 3.0}),
    "gemma3-linear": Case("gemma3", "Gemma3TextConfig",
                          {**GEMMA3, "num_hidden_layers": 3, "query_pre_attn_scalar": 64,
                           "final_logit_softcapping": None, "rope_parameters": {
                              "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                              "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}},
                           "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
                          {"attention.sliding_window": 20, "attention.sliding_window_pattern": [False, True, True],
                           "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}),
}

NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp", "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up",
}
GEMMA_NAMES = {
    **NAMES, "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


REBUILDS: dict[str, Callable[[Any], None]] = {"deci": rebuild, "plamo3": rebuild_plamo3, "rwkv7": rebuild_rwkv7}
"""What makes the layers of an architecture, or of a class, of a model that transformers has."""


def halved_gate(name: str, p: torch.Tensor) -> None:
    """A gate of one half."""
    if "shared_expert_gate" in name:
        p.zero_()


ADJUSTED: dict[str, Callable[[str, torch.Tensor], None]] = {"bailingmoe": halved_gate}
"""By architecture, what changes random parameters once more."""


def make(case: Case, seed: int = 0) -> Any:
    """A random transformers model; its norms and biases are random too, so that none can be left out unseen."""
    torch.manual_seed(seed)
    kind, auto = getattr(transformers, case.config), transformers.AutoModelForCausalLM
    options = copy.deepcopy({**BASE, **case.options})  # some configurations put values into what they are given
    if case.config in PICTURES:
        auto = transformers.AutoModelForImageTextToText
        options = {"text_config": options, "vision_config": PICTURES[case.config]}
    named = getattr(transformers, UNMAPPED[case.config])._from_config if case.config in UNMAPPED else auto.from_config
    model = named(kind(**options), attn_implementation="eager").eval().float()
    for kind_of in (case.arch, case.folder):
        if kind_of in REBUILDS:
            REBUILDS[kind_of](model)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 1:
                p.add_(torch.randn_like(p) * 0.2)
            elif "embed" not in name:
                p.copy_(torch.randn_like(p) / p.shape[-1] ** 0.5)
            if case.arch in ADJUSTED:
                ADJUSTED[case.arch](name, p)
        if case.arch == "bailingmoe":
            model.lm_head.weight /= torch.linalg.vector_norm(model.lm_head.weight, dim=0, keepdim=True)
        for name, buffer in model.named_buffers():
            if name.endswith(("correction_bias", "layer_scalar")):
                buffer.add_(torch.randn_like(buffer) * 0.2)
    return model


def interleave(w: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k reordered from rope on halves to rope on neighbours, as GGUF wants them for Llama."""
    return w.reshape(heads, 2, -1, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def tensors(case: Case, model: Any) -> dict[str, np.ndarray]:
    """The model's tensors by GGUF name, float32."""
    cfg, out = model.config, {}
    state = {k: v.float().numpy() for k, v in model.state_dict().items()}
    for name, value in state.items():
        if name == "model.embed_tokens.weight":
            out["token_embd.weight"] = value
        elif name == "model.norm.weight":
            out["output_norm.weight"] = value
        elif name == "lm_head.weight":
            if not cfg.tie_word_embeddings:
                out["output.weight"] = value
        else:
            _, _, layer, part = name.split(".", 3)
            out |= {f"blk.{layer}.{n}": v for n, v in block_tensors(case, cfg, part, value).items()}
    rope = rope_of(cfg)
    if rope["rope_type"] == "llama3":
        out["rope_freqs.weight"] = llama3_divisors(cfg)
    if rope["rope_type"] == "longrope":
        out |= {f"rope_factors_{n}.weight": np.array(rope[f"{n}_factor"], np.float32) for n in ("long", "short")}
    if case.arch == "gemma3":
        out = {name: value + 1 if name.endswith("norm.weight") else value for name, value in out.items()}
    return out


def rope_of(cfg: Any) -> dict[str, Any]:
    """The rope's parameters, of layers without a window where those with one have others."""
    found: dict[str, Any] = cfg.rope_parameters
    return found.get("full_attention", found)


def block_tensors(case: Case, cfg: Any, part: str, value: np.ndarray) -> dict[str, np.ndarray]:
    if part.endswith("experts.gate_up_proj"):  # [E, 2F, D]: gate's rows, then up's
        gate, up = np.split(value, 2, axis=1)
        return {"ffn_gate_exps.weight": gate, "ffn_up_exps.weight": up}
    if part.endswith("experts.down_proj"):
        return {"ffn_down_exps.weight": value}
    stem, kind = part.rsplit(".", 1)
    name = (GEMMA_NAMES if case.arch == "gemma3" else NAMES)[stem]
    heads = {"attn_q": cfg.num_attention_heads, "attn_k": cfg.num_key_value_heads}.get(name)
    if case.arch == "llama" and heads:
        value = interleave(value, heads)
    return {f"{name}.{kind}": value}


def llama3_divisors(cfg: Any) -> np.ndarray:
    """What Llama 3.1 divides each frequency by, from the model's own frequencies."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    plain = 10000.0 ** (-np.arange(0, 64, 2) / 64)
    return (plain / LlamaRotaryEmbedding(cfg).inv_freq.numpy()).astype(np.float32)


def metadata(case: Case, cfg: Any) -> dict[str, Any]:
    head_dim = getattr(cfg, "head_dim", None) or cfg.hidden_size // cfg.num_attention_heads
    keys = {
        "block_count": cfg.num_hidden_layers, "context_length": cfg.max_position_embeddings,
        "embedding_length": cfg.hidden_size, "feed_forward_length": cfg.intermediate_size,
        "attention.head_count": cfg.num_attention_heads, "attention.head_count_kv": cfg.num_key_value_heads,
        "attention.key_length": head_dim, "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": float(cfg.rms_norm_eps),
        "rope.freq_base": float(rope_of(cfg)["rope_theta"]), "rope.dimension_count": head_dim,
        **case.metadata,
    }
    return {f"{case.arch}.{k}": v for k, v in keys.items()}


class Write(Protocol):
    """Writes a model as GGUF, its matrices in a format (or the tensors given), and opens it."""

    def __call__(
        self, case: Case, model: Any, format_name: str = "F32", *, tensors: dict[str, np.ndarray] | None = None
    ) -> GGUFFile: ...


def stored(case: Case, model: Any, format_name: str) -> dict[str, QTensor]:
    """The model's tensors by GGUF name, matrices in the format."""
    fmt, plain = by_name(format_name), by_name("F32")
    return {
        name: quantize_reference(v, fmt if v.ndim > 1 and "gate_inp" not in name else plain, name)
        for name, v in tensors(case, model).items()
    }
