"""ChatGLM 2, ChatGLM 3 and GLM-4 (9B): rope on neighbouring pairs of half of each head, gate and up in one matrix."""

from octavo.io.gguf import LazyTensor
from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, Modules, TensorLayout, Unwritten, VocabularyFile
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.conversion import split_qkv
from octavo.models.shared.decoder import Attention, Decoder, FeedForward
from octavo.models.shared.hparams import Hyperparams

ROLES = ("system", "user", "assistant", "observation")
"""Roles of messages, each with a token of its own in ChatGLM 3."""


def first_keys(config: Config) -> Keys:
    """Of the models' first form. Raises ModelError for norms and biases that the published ones do not have.

    `rope_ratio` stretches the base of the rope.
    """
    config.only({
        "quantization_bit": 0, "pre_seq_len": 0,
        "rmsnorm": True, "post_layer_norm": True, "apply_residual_connection_post_layernorm": False,
        "add_bias_linear": False, "multi_query_attention": True, "original_rope": True, "interleaved_qkv": False,
    })
    return {"rope.freq_base": 10000.0 * config.real("rope_ratio", 1.0)}


def converted(name: str, tensor: LazyTensor, hp: Hyperparams) -> LazyTensor:
    """q, k or v of the matrix of all, in checkpoints of the first form."""
    return split_qkv(name, tensor, hp) if ".query_key_value." in tensor.name else tensor


ARCH = Architecture(
    name="chatglm",
    network=Decoder(mixer=Attention(joined=None), feed_forward=FeedForward(joined=True)),
    interleaved=True,
    rotary_part=0.5,
    classes={
        "ChatGLMModel": first_keys, "ChatGLMForConditionalGeneration": first_keys,
        "GlmForCausalLM": lambda config: {},
    },
    modules=Modules(
        other_bases=("transformer.encoder.", "transformer.", "encoder."), ignored=("rotary_pos_emb.inv_freq",)
    ),
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
    vocabulary=VocabularyFile(
        file="tokenizer.model", pre="chatglm-bpe",
        behind=("[MASK]", "[gMASK]", "[sMASK]", "sop", "eop", *(f"<|{r}|>" for r in ROLES)),
    ),
    layout=TensorLayout(permuted=False, converted=converted),
    unwritten=Unwritten(classes=("ChatGLMModel", "ChatGLMForConditionalGeneration")),
    ropes=("default",),
)
