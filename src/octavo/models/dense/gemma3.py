"""Gemma 3, text: GeGLU, norms before and behind, a window in most layers and a rope of their own for these."""

from dataclasses import replace

from octavo.models.dense import gemma
from octavo.models.dense.gemma2 import scale_key
from octavo.models.shared import names
from octavo.models.shared.config import Config, Keys, head_keys, local_rope
from octavo.models.shared.decoder import GEGLU, SANDWICH_NORMS, Attention, Decoder
from octavo.models.shared.hparams import Key, local_base
from octavo.models.shared.windows import Windows


def config_keys(config: Config) -> Keys:
    return head_keys(config, 256) | rope_bases(config)


def rope_bases(config: Config) -> Keys:
    """Of layers without a window and of those with one: by layers' kinds, or in older files side by side."""
    found, local = config.values.get("rope_parameters"), local_rope(config)
    full = found.get("full_attention") if isinstance(found, dict) else None
    own = config.real("rope_local_base_freq", 1e4) if local is None else config.real("rope_theta", 1e4, of=local)
    every = config.real("rope_theta", 1e6, of=full if isinstance(full, dict) else None)
    return {"rope.freq_base": every, "rope.freq_base_swa": own}


ARCH = replace(
    gemma.ARCH,
    name="gemma3",
    network=Decoder(
        mixer=Attention(qk_norm="heads", freq_factors=True), feed_forward=GEGLU, norms=SANDWICH_NORMS,
        scaled_by_width=True,
    ),
    keys=(
        scale_key(62), local_base(10000.0),
        Key("logit_cap", "final_logit_softcapping", "final_logit_softcapping", default=0.0),
    ),
    windows=Windows(6, 4096),
    classes={"Gemma3ForCausalLM": config_keys},
    only={"attn_logit_softcapping": None, "use_bidirectional_attention": False},
    names=names.SANDWICH_NORMS | names.ATTENTION | names.QK_NORMS | names.FFN,
)
