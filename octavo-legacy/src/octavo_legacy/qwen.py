"""Qwen 1: q, k and v in one matrix with biases; the feed-forward is half as wide as a file says."""

from dataclasses import replace

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, Sizes, VocabularyFile
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import Attention, Decoder, FeedForward
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.reader import FF_WIDTH, KV_HEADS, LIMITS, MetadataReader


def complete(r: MetadataReader, hp: Hyperparams) -> Hyperparams:
    """A file counts the rows of gate and up together."""
    if hp.n_ff % 2:
        raise r.error(FF_WIDTH, f"{hp.n_ff} is odd", "the widths of gate and up together")
    return replace(hp, n_ff=hp.n_ff // 2)


def config_keys(config: Config) -> Keys:
    """The context ends where scores would grow with its logarithm, or the rope's base with it."""
    length = config.size("max_position_embeddings", LIMITS["context_length"])
    if config.flag("use_logn_attn", False) or config.flag("use_dynamic_ntk", False):
        length = min(length, config.size("seq_length", LIMITS["context_length"], length))
    return {"context_length": length, KV_HEADS: config.n_head}


ARCH = Architecture(
    name="qwen",
    network=Decoder(
        mixer=Attention(joined=True, bias=True, output_bias=None), feed_forward=FeedForward(bias=None)
    ),
    sizes=Sizes(complete=complete),
    only={"rotary_pct": 1.0},
    classes={"QWenLMHeadModel": config_keys},
    base="transformer.",
    layer="h",
    names={
        "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
        "mlp.w2": "ffn_gate", "mlp.w1": "ffn_up", "mlp.c_proj": "ffn_down",
    },
    outer=names.outer("wte", "ln_f"),
    key_aliases={"layer_norm_epsilon": "rms_norm_eps", "kv_channels": "head_dim", "rotary_emb_base": "rope_theta"},
    vocabulary=VocabularyFile(
        file="qwen.tiktoken", pre="qwen2", nfc=True,
        behind=("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))),
    ),
    ropes=("default",),
)
