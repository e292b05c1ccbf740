"""ChatGLM 2, ChatGLM 3 and GLM-4 (9B): rope on neighbouring pairs of half of each head, gate and up in one matrix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture, Vocabulary
from octavo.models.shared.config import Config, Keys, rotary_keys
from octavo.models.shared.hparams import HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.remaking import parted_qkv
from octavo.models.shared.weights import Tensors, Weights, matrix, vector, with_scales

ROLES = ("system", "user", "assistant", "observation")
"""Roles of messages, each with a token of its own in ChatGLM 3."""


@dataclass(frozen=True, kw_only=True)
class ChatGlm(Hyperparams):
    """Whether q, k and v are one matrix, as in files that are made of the models' first form."""

    joined: bool


def hparams(r: HyperparamReader) -> ChatGlm:
    hp = read_shared(r, interleaved=True, has_experts=False)
    return hp.extended(ChatGlm, joined="blk.0.attn_qkv.weight" in r.shapes)


def tensors(hp: ChatGlm) -> Tensors:
    attention = layers.joined_qkv_tensors(hp) if hp.joined else layers.attention_tensors(hp)
    attention.pop("attn_output.bias", None)
    feed_forward = with_scales({
        "ffn_up.weight": matrix(2 * hp.n_ff, hp.n_embd), "ffn_down.weight": matrix(hp.n_embd, hp.n_ff),
    })
    return layers.model_tensors(hp, attention | feed_forward | {"ffn_norm.weight": vector(hp.n_embd)})


def build(g: GraphBuilder, hp: ChatGlm, w: Weights) -> Node:
    rope, qkv = layers.rotary(g, hp.rope, w), layers.joined_qkv if hp.joined else layers.qkv
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        h = layers.linear(g, b, "ffn_up", g.rms_norm(x, b["ffn_norm"], hp.eps))
        x = g.add(x, layers.linear(g, b, "ffn_down", g.swiglu(*g.columns(h, hp.n_ff, hp.n_ff))))
    return layers.logits(g, hp, w, x)


def first_keys(config: Config) -> Keys:
    """Of the models' first form. Raises ModelError for norms and biases that the published ones do not have.

    `rope_ratio` stretches the base of the rope.
    """
    config.only_flags({
        "rmsnorm": True, "post_layer_norm": True, "apply_residual_connection_post_layernorm": False,
        "add_bias_linear": False, "multi_query_attention": True, "original_rope": True, "interleaved_qkv": False,
    })
    config.only({"quantization_bit": 0, "pre_seq_len": 0})
    return rotary_keys(config, default=0.5) | {"rope.freq_base": 10000.0 * config.real("rope_ratio", 1.0)}


def remade(name: str, tensor: LazyTensor, hp: Hyperparams) -> LazyTensor:
    """q, k or v of the matrix of all, in checkpoints of the first form."""
    return parted_qkv(name, tensor, hp) if ".query_key_value." in tensor.name else tensor


ARCH = Architecture(
    name="chatglm",
    hparams=hparams,
    tensors=tensors,
    build=build,
    classes={
        "ChatGLMModel": first_keys, "ChatGLMForConditionalGeneration": first_keys,
        "GlmForCausalLM": partial(rotary_keys, default=0.5),
    },
    other_bases=("transformer.encoder.", "transformer.", "encoder."),
    names=names.NORMS | names.ATTENTION | {
        "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.dense_h_to_4h": "ffn_up",
        "mlp.dense_4h_to_h": "ffn_down", "self_attention.query_key_value": "attn_q attn_k attn_v",
        "self_attention.dense": "attn_output",
    },
    outer=names.OUTER | {
        "embedding.word_embeddings.weight": "token_embd.weight", "final_layernorm.weight": "output_norm.weight",
        "output_layer.weight": "output.weight",
    },
    key_aliases={
        "num_layers": "num_hidden_layers", "ffn_hidden_size": "intermediate_size", "kv_channels": "head_dim",
        "padded_vocab_size": "vocab_size", "layernorm_epsilon": "rms_norm_eps", "seq_length": "max_position_embeddings",
        "multi_query_group_num": "num_key_value_heads",
    },
    ignored=("rotary_pos_emb.inv_freq",),
    vocabulary=Vocabulary(
        file="tokenizer.model", pre="chatglm-bpe",
        behind=("[MASK]", "[gMASK]", "[sMASK]", "sop", "eop", *(f"<|{r}|>" for r in ROLES)),
    ),
    remade=remade,
    unwritten_classes=("ChatGLMModel", "ChatGLMForConditionalGeneration"),
    ropes=("default",),
    reordered=False,
    writable=False,
)
