"""DeepSeek's first mixtures (DeepSeekMoE 16B): Llama, whose experts are chosen by shares, some for all tokens."""

from __future__ import annotations

from octavo.models.moe import bailingmoe
from octavo.models.shared import names, routed
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import HyperparamReader, read_shared
from octavo.models.shared.routed import SOFTMAX, Routed


def hparams(r: HyperparamReader) -> Routed:
    hp = read_shared(r, interleaved=True, has_experts=True)
    return hp.extended(Routed, **routed.read(r, hp, SOFTMAX))


def config_keys(config: Config) -> Keys:
    return routed.config_keys(config, SOFTMAX, normalized=False)


ARCH = Architecture(
    name="deepseek",
    hparams=hparams,
    keys=routed.KEYS,
    tensors=bailingmoe.tensors,
    build=bailingmoe.build,
    classes={"DeepseekForCausalLM": config_keys},
    names=names.LLAMA | names.ROUTED,
    ropes=("default", "linear"),
    writable=False,
)
