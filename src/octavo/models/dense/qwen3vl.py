"""Qwen3-VL, text: Qwen3, whose rope has sections. Features of pictures that some layers add are of pictures only."""

from octavo.models.dense import qwen3
from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, Sizes
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.mrope import Sections
from octavo.models.shared.reader import MetadataReader, brief

DEEPSTACK = "n_deepstack_layers"
"""The field of how many of the first layers add features of pictures to what they give."""
KEYS = Sections((24, 20, 20)), DEEPSTACK


def complete(r: MetadataReader, hp: Hyperparams) -> Hyperparams:
    r.count(DEEPSTACK, hp.n_layer)
    return hp


def config_keys(config: Config) -> Keys:
    """How many layers add features of pictures: as many as `vision_config` takes them from."""
    vision = config.values.get("vision_config")
    layers = vision.get("deepstack_visual_indexes", [8, 16, 24]) if isinstance(vision, dict) else []
    if not isinstance(layers, list) or not all(type(i) is int for i in layers):
        raise config.error("deepstack_visual_indexes", f"is {brief(layers)}", "a list of layers")
    return {DEEPSTACK: len(layers)}


ARCH = Architecture(
    name="qwen3vl",
    network=qwen3.ARCH.network,
    keys=KEYS,
    sizes=Sizes(complete=complete),
    classes={"Qwen3VLForConditionalGeneration": config_keys},
    names=names.LLAMA | names.QK_NORMS,
)
