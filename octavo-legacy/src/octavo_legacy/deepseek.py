"""DeepSeek's first mixtures (DeepSeekMoE 16B): Llama, whose experts are chosen by shares, some for all tokens."""

from functools import partial

from octavo.models.moe import bailingmoe
from octavo.models.shared import names, routed
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.routed import SOFTMAX

ARCH = Architecture(
    name="deepseek",
    network=bailingmoe.NETWORK,
    keys=routed.KEYS,
    sizes=routed.sizes(SOFTMAX),
    interleaved=True,
    experts=True,
    classes={"DeepseekForCausalLM": partial(routed.config_keys, gate=SOFTMAX, normalized=False)},
    names=names.LLAMA | names.ROUTED,
    ropes=("default", "linear"),
)
