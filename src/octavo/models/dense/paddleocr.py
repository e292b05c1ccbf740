"""PaddleOCR-VL, text: ERNIE 4.5 with rope on halves of a head, which has sections."""

from __future__ import annotations

from octavo.models.dense import llama
from octavo.models.shared import mrope, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import HyperparamReader, Hyperparams, read_shared

SECTIONS = [16, 24, 24]
"""Those of the published models, where config.json does not say."""


def hparams(r: HyperparamReader) -> Hyperparams:
    hp = read_shared(r, has_experts=False)
    mrope.check_sections(r, hp)
    return hp


def config_keys(config: Config) -> Keys:
    """Raises ModelError for windows, and for rope on neighbours."""
    config.only({"sliding_window": None})
    config.only_flags({"rope_is_neox_style": True})
    return mrope.section_keys(config, SECTIONS)


ARCH = Architecture(
    name="paddleocr",
    hparams=hparams,
    keys=frozenset({mrope.SECTIONS}),
    tensors=llama.tensors,
    build=llama.build,
    classes={"PaddleOCRVLForConditionalGeneration": config_keys},
    names=names.LLAMA,
    ropes=("default",),
    tied=True,
    writable=False,
)
