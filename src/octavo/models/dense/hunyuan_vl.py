"""HunyuanOCR, text: Hunyuan, whose rope has sections and a base that a factor of NTK's stretches."""

from dataclasses import replace

from octavo.models.dense import hunyuan_dense
from octavo.models.shared.architecture import Sizes
from octavo.models.shared.config import Config, Keys, rope_parameters
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.mrope import Sections
from octavo.models.shared.reader import MetadataReader

ALPHA = "rope.scaling.alpha"
"""The field of the factor: the base is theta * alpha^(d / (d - 2)) for heads of d values."""


def complete(r: MetadataReader, hp: Hyperparams) -> Hyperparams:
    alpha, d = r.positive(ALPHA), hp.head_dim
    return hp if alpha is None else replace(hp, rope=replace(hp.rope, base=hp.rope.base * alpha ** (d / max(1, d - 2))))


def config_keys(config: Config) -> Keys:
    found = rope_parameters(config)
    scaled = found.get("rope_type", found.get("type", "default")) != "default"
    return {ALPHA: config.real("alpha", of=found)} if scaled else {}


ARCH = replace(
    hunyuan_dense.ARCH,
    name="hunyuan_vl",
    keys=(Sections(optional=True, word="xdrope_section"), ALPHA),
    sizes=Sizes(complete=complete),
    classes={"HunYuanVLForConditionalGeneration": config_keys},
    only=hunyuan_dense.ONLY | {"num_experts": 1},
    key_aliases={"attention_head_dim": "head_dim"},
    ropes=("default", "dynamic", "xdrope"),
    tied=True,
)
