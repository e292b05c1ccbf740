"""Qwen3-VL, text: Qwen3, whose rope has sections. Features of pictures that some layers add are of pictures only."""

from __future__ import annotations

from octavo.models.dense import qwen3
from octavo.models.shared import mrope, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief
from octavo.models.shared.hparams import HyperparamReader, Hyperparams, read_shared

DEEPSTACK = "n_deepstack_layers"
"""The field of how many of the first layers add features of pictures to what they give."""
KEYS = frozenset({mrope.SECTIONS, DEEPSTACK})


def check_pictures(r: HyperparamReader, hp: Hyperparams) -> None:
    """Raises ModelError for sections and layers that do not fit the model."""
    mrope.check_sections(r, hp)
    r.whole(DEEPSTACK, 0, hp.n_layer)


def hparams(r: HyperparamReader) -> Hyperparams:
    hp = read_shared(r, has_experts=False)
    check_pictures(r, hp)
    return hp


def config_keys(config: Config) -> Keys:
    """Sections, and how many layers add features of pictures: as many as `vision_config` takes them from."""
    vision = config.values.get("vision_config")
    layers = vision.get("deepstack_visual_indexes", [8, 16, 24]) if isinstance(vision, dict) else []
    if not isinstance(layers, list) or not all(type(i) is int for i in layers):
        raise config.error("deepstack_visual_indexes", f"is {brief(layers)}", "a list of layers")
    return mrope.section_keys(config, [24, 20, 20]) | {DEEPSTACK: len(layers)}


ARCH = Architecture(
    name="qwen3vl",
    hparams=hparams,
    keys=KEYS,
    tensors=qwen3.tensors,
    build=qwen3.build,
    classes={"Qwen3VLForConditionalGeneration": config_keys},
    names=names.LLAMA | names.QK_NORMS,
    writable=False,
)
