"""Mamba-2: scans alone, without attention and feed-forwards (arXiv 2405.21060)."""

from dataclasses import replace

from octavo.models.shared import names, ssd
from octavo.models.shared.architecture import Architecture, Modules, Sizes, TensorLayout
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import Decoder
from octavo.models.shared.hparams import CONTEXT, NO_ATTENTION
from octavo.models.shared.reader import LIMITS, RMS_EPS, MetadataReader
from octavo.models.shared.ssd import Mamba2

WORDS = {
    "taps": "conv_kernel", "keys": "state_size", "heads": "num_heads", "scan_groups": "n_groups", "size": "head_dim",
    "limit": "time_step_limit",
}


def complete(r: MetadataReader, hp: Mamba2) -> Mamba2:
    ssd.check(r, hp)
    return replace(hp, attends=(False,) * hp.n_layer, scans=(True,) * hp.n_layer)


def config_keys(config: Config) -> Keys:
    width = config.width * config.size("expand", 64, 2)
    return ssd.config_keys(ssd.with_head_size(config, WORDS, width), WORDS) | plain_keys(config)


def plain_keys(config: Config) -> Keys:
    """Those of a model without attention beside what its scans have."""
    return dict.fromkeys(NO_ATTENTION, 0) | {
        RMS_EPS: config.real("rms_norm_eps", 1e-5),
        "context_length": config.size("max_position_embeddings", LIMITS["context_length"], CONTEXT),
    }


ARCH = Architecture(
    name="mamba2",
    network=Decoder(mixer=ssd.SCAN, feed_forward=None),
    keys=ssd.keys_of(WORDS),
    sizes=Sizes(kind=Mamba2, complete=complete, attention=False),
    only={"use_bias": False},
    classes={"Mamba2ForCausalLM": config_keys},
    names={"norm": "attn_norm", **ssd.names("mixer.")},
    base="backbone.",
    modules=Modules(other_bases=("model.backbone.", "model.")),
    outer=names.outer("embeddings", "norm_f"),
    key_aliases={"layer_norm_epsilon": "rms_norm_eps"},
    layout=TensorLayout(converted=ssd.converted),
)
