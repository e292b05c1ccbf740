"""Maincoder: norms of q and k behind the rope, as Hunyuan has them, and rope on neighbours in folders, too."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from octavo.models.dense import hunyuan_dense
from octavo.models.shared import names
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import read_shared


def config_keys(config: Config) -> Keys:
    """Raises ModelError for heads without norms."""
    config.only_flags({"use_qk_norm": True})
    return {}


ARCH = replace(
    hunyuan_dense.ARCH,
    name="maincoder",
    hparams=partial(read_shared, interleaved=True, has_experts=False),
    classes={"MaincoderForCausalLM": config_keys},
    names=names.LLAMA | names.QK_NORMS,
    ropes=("default",),
    reordered=False,
)
