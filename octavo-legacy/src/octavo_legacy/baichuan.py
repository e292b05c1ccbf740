"""Baichuan 1 and 2: Llama, whose larger models have attention that falls with the distance (ALiBi) in place of rope."""

from dataclasses import replace
from functools import partial

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, Sizes, TensorLayout, Unwritten
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.conversion import split_qkv
from octavo.models.shared.decoder import Attention, Decoder
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.reader import LIMITS, MetadataReader

MOST, USUAL = "attention.max_alibi_bias", 8.0
BY_LAYERS = {32: 0.0, 40: USUAL}
"""What slopes of heads are made of, by the layers of the published models: files of other converters don't say."""
SECOND_VOCABULARY = 125696
"""Tokens of Baichuan 2, in whose checkpoints rows of the output matrix have any length, and are to have one of 1."""


def complete(r: MetadataReader, hp: Hyperparams) -> Hyperparams:
    if not r.has(MOST) and hp.n_layer not in BY_LAYERS:
        problem = f"{hp.n_layer} does not tell whether there is rope, and there is no {r.key(MOST)}"
        raise r.error("block_count", problem, "32 (rope) or 40 (ALiBi)")
    return replace(hp, alibi=(r.positive(MOST) or 0.0) if r.has(MOST) else BY_LAYERS[hp.n_layer])


def config_keys(config: Config) -> Keys:
    """Models with rope say how many positions there are, the others how long a text they were made for."""
    placed = config.values.get("max_position_embeddings") is not None
    length = config.size("max_position_embeddings" if placed else "model_max_length", LIMITS["context_length"])
    return {"context_length": length, MOST: 0.0 if placed else USUAL}


def unit_output(config: Config) -> int | None:
    return 1 if config.values.get("vocab_size") == SECOND_VOCABULARY else None


ARCH = Architecture(
    name="baichuan",
    network=Decoder(mixer=Attention(rope=lambda hp, layer: not hp.alibi)),
    keys=(MOST,),
    sizes=Sizes(complete=complete),
    interleaved=True,
    classes={"BaichuanForCausalLM": config_keys, "BaiChuanForCausalLM": config_keys},
    names=names.LLAMA | {"self_attn.W_pack": "attn_q attn_k attn_v"},
    layout=TensorLayout(permuted=False, converted=partial(split_qkv, interleave=True), unit_output=unit_output),
    unwritten=Unwritten(classes=("BaichuanForCausalLM", "BaiChuanForCausalLM")),
    ropes=("default", "linear"),
)
