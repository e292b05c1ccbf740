"""EuroBERT: Llama as an encoder, with rope on halves of a head in GGUF, too."""

from __future__ import annotations

from octavo.models.encoder import llama_embed
from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import CAUSAL, HyperparamReader, Hyperparams


def hparams(r: HyperparamReader) -> Hyperparams:
    return llama_embed.read_encoder(r, interleaved=False)


def config_keys(config: Config) -> Keys:
    return {CAUSAL: False}


ARCH = Architecture(
    name="eurobert",
    hparams=hparams,
    keys=frozenset({CAUSAL}),
    tensors=llama_embed.tensors,
    build=llama_embed.build,
    classes={"EuroBertModel": config_keys, "EuroBertForMaskedLM": config_keys},
    names=names.LLAMA,
    outer=llama_embed.OUTER,
    unused=("lm_head.",),
    encoder=True,
    writable=False,
)
