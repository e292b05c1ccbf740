"""DeepSeek's first mixtures (DeepSeekMoE 16B): Llama, whose experts are chosen by shares, some for all tokens."""

from functools import partial

from octavo.models.moe import bailingmoe
from octavo.models.shared import experts, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.experts import SOFTMAX

ARCH = Architecture(
    name="deepseek",
    network=bailingmoe.NETWORK,
    keys=experts.KEYS,
    sizes=experts.sizes(SOFTMAX),
    interleaved=True,
    experts=True,
    classes={"DeepseekForCausalLM": partial(experts.config_keys, gate=SOFTMAX, normalized=False)},
    names=names.LLAMA | names.ROUTED,
    ropes=("default", "linear"),
)
