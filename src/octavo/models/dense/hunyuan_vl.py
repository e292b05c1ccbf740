"""HunyuanOCR, text: Hunyuan, whose rope has sections and a base that a factor of NTK's stretches."""

from __future__ import annotations

from dataclasses import replace

from octavo.models.dense import hunyuan_dense
from octavo.models.shared import mrope, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, rope_parameters
from octavo.models.shared.hparams import HyperparamReader, Hyperparams, read_shared

ALPHA = "rope.scaling.alpha"
"""The field of the factor: the base is theta * alpha^(d / (d - 2)) for heads of d values."""


def hparams(r: HyperparamReader) -> Hyperparams:
    hp = read_shared(r, has_experts=False)
    if r.has(mrope.SECTIONS):
        mrope.check_sections(r, hp)
    alpha, d = r.positive(ALPHA), hp.head_dim
    return hp if alpha is None else replace(hp, rope=replace(hp.rope, base=hp.rope.base * alpha ** (d / max(1, d - 2))))


def config_keys(config: Config) -> Keys:
    """Raises ModelError for a rope that follows the length of the text, for experts, and as Hunyuan's does."""
    hunyuan_dense.refuse(config)
    config.only({"num_experts": 1})
    found = rope_parameters(config)
    keys = mrope.section_keys(config, found.get("xdrope_section"))
    if found.get("rope_type", found.get("type", "default")) != "default":
        keys[ALPHA] = config.real("alpha", of=found)
    return keys


ARCH = Architecture(
    name="hunyuan_vl",
    hparams=hparams,
    keys=frozenset({ALPHA, mrope.SECTIONS}),
    tensors=hunyuan_dense.tensors,
    build=hunyuan_dense.build,
    classes={"HunYuanVLForConditionalGeneration": config_keys},
    names=hunyuan_dense.NAMES | names.FFN,
    key_aliases={"attention_head_dim": "head_dim"},
    ropes=("default", "dynamic", "xdrope"),
    tied=True,
    writable=False,
)
