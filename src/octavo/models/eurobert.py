"""EuroBERT: Llama as an encoder, with rope on halves of a head in GGUF, too."""

from __future__ import annotations

from octavo.models import llama_embed, names
from octavo.models.architecture import Architecture
from octavo.models.config import Config, Keys
from octavo.models.hparams import CAUSAL, HyperparamReader, Hyperparams


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
