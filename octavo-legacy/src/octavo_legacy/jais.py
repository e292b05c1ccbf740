"""Jais 1: GPT-2 with ALiBi in place of positions, SwiGLU, scores over the size of a head, and scaled vectors."""

from collections.abc import Mapping
from dataclasses import replace

from octavo.formats.spec import F32
from octavo.models.dense import gpt2
from octavo.models.shared.architecture import Architecture, Modules, Sizes, TensorLayout, Unwritten
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import Decoder, FeedForward, NormNames
from octavo.models.shared.hparams import Hyperparams, Key
from octavo.models.shared.reader import KV_HEADS, LIMITS, MetadataReader, brief

MOST, USUAL = "attention.max_alibi_bias", 8.0


def complete(r: MetadataReader, hp: Hyperparams) -> Hyperparams:
    return replace(hp, query_scale=1 / hp.head_dim)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for slopes of another steepness, and scores that are scaled otherwise."""
    by_size = "mup_scale_qk_dot_by_d" if "mup_scale_qk_dot_by_d" in config.values else "scale_qk_dot_by_d"
    if not config.flag(by_size, False):
        raise config.error(by_size, "is false", "true")
    embedding, output = _scales(config)
    tied = config.flag("tie_word_embeddings", True)
    return {
        MOST: USUAL, "context_length": _context(config), "logit_scale": output / embedding if tied else None,
        KV_HEADS: config.n_head,
        "rope.freq_base": None, "rope.dimension_count": None,
    }


def _context(config: Config) -> int:
    """Positions up to which slopes are those of the file: beyond `train_seq_len` they fall with a text's length."""
    n = config.size("max_position_embeddings", LIMITS["context_length"])
    scaling = config.values.get("alibi_scaling")
    if scaling is None:
        return n
    usual = {"type": (None, "linear"), "factor": (None, 1)}
    if not isinstance(scaling, dict) or any(scaling.get(key) not in known for key, known in usual.items()):
        allowed = "an object with train_seq_len, of type linear, and no factor"
        raise config.error("alibi_scaling", f"is {brief(scaling)}", allowed)
    return min(n, Config(scaling, config.file).size("train_seq_len", LIMITS["context_length"]))


def _scales(config: Config) -> tuple[float, float]:
    """What embeddings are multiplied by, and what logits are."""
    embedding = config.real("mup_embeddings_scale", config.real("embeddings_scale", 1.0))
    if config.values.get("mup_output_alpha") is None:
        return embedding, config.real("width_scale", 1.0)
    return embedding, config.real("mup_output_alpha") * config.real("mup_width_scale", 1.0)


def factors(config: Config) -> Mapping[str, float | F32]:
    embedding, output = _scales(config)
    return {"token_embd.weight": embedding, "output.weight": output}


ARCH = Architecture(
    name="jais",
    network=Decoder(
        mixer=gpt2.ATTENTION, feed_forward=FeedForward(bias=True), norms=NormNames(bias=True), freq_factors=False
    ),
    keys=(Key("alibi", MOST, default=USUAL, zero="refused"), Key("logit_scale", "logit_scale", default=1.0)),
    sizes=Sizes(complete=complete),
    layer_norms="layer_norm_epsilon",
    only={
        "position_embedding_type": "alibi", "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False,
    },
    classes={"JAISLMHeadModel": config_keys},
    base=gpt2.ARCH.base,
    layer=gpt2.ARCH.layer,
    names={**gpt2.ARCH.names, "mlp.c_fc2": "ffn_gate"},
    outer={name: part for name, part in gpt2.ARCH.outer.items() if not name.startswith("wpe.")},
    modules=Modules(ignored=(*gpt2.ARCH.modules.ignored, "relative_pe.slopes")),
    key_aliases=gpt2.ARCH.key_aliases,
    layout=TensorLayout(converted=gpt2.converted, factors=factors),
    unwritten=Unwritten(tensors=(*gpt2.ARCH.unwritten.tensors, "ffn_gate")),
    activation="swiglu",
    tied=True,
)
