"""Gemma 2: GeGLU, norms before and behind, a window in every other layer, scores and logits that are capped."""

from dataclasses import replace

from octavo.models.dense import gemma
from octavo.models.shared import names
from octavo.models.shared.config import Config, Keys, head_keys
from octavo.models.shared.decoder import GEGLU, SANDWICH_NORMS, Decoder
from octavo.models.shared.hparams import Hyperparams, Key
from octavo.models.shared.windows import Windows

CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
"""Fields of scores' cap and of logits', and what files mean that do not say."""


def scale_key(layers_by_width: int) -> Key:
    """The row of what scores are multiplied by. The model of `layers_by_width` layers has heads of another size than
    the width says, and scales by the width; no key says so."""
    def usual(hp: Hyperparams) -> float:
        return float((hp.n_embd / hp.n_head if hp.n_layer == layers_by_width else hp.head_dim) ** -0.5)

    return Key(
        "query_scale", "attention.scale", "query_pre_attn_scalar", default=usual, usual=256, said=lambda x: x**-0.5
    )


def config_keys(config: Config) -> Keys:
    """Caps, which null takes off."""
    capped = {word: config.values.get(word, usual) is not None for word, usual in CAPS.items()}
    return head_keys(config, 256) | {
        word: config.real(word, usual) if capped[word] else 0.0 for word, usual in CAPS.items()
    }


ARCH = replace(
    gemma.ARCH,
    name="gemma2",
    network=Decoder(feed_forward=GEGLU, norms=SANDWICH_NORMS, scaled_by_width=True),
    keys=(
        scale_key(46),
        Key("score_cap", "attn_logit_softcapping", default=CAPS["attn_logit_softcapping"], zero="value"),
        Key("logit_cap", "final_logit_softcapping", default=CAPS["final_logit_softcapping"], zero="value"),
    ),
    windows=Windows(2, 4096, tokens=4096),
    classes={"Gemma2ForCausalLM": config_keys},
    names=names.SANDWICH_NORMS | names.ATTENTION | names.FFN,
)
