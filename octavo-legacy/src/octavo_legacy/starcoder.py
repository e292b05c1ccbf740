"""StarCoder and SantaCoder: GPT-2 with one head of keys."""

from dataclasses import replace

from octavo.models.dense import gpt2
from octavo.models.shared.architecture import TensorLayout, Unwritten
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.reader import KV_HEADS


def config_keys(config: Config) -> Keys:
    return gpt2.config_keys(config) | {KV_HEADS: 1}


ARCH = replace(
    gpt2.ARCH,
    name="starcoder",
    classes={"GPTBigCodeForCausalLM": config_keys},
    only={**gpt2.ARCH.only, "multi_query": True},
    layout=TensorLayout(),
    unwritten=Unwritten(),
    activation="gelu_pytorch_tanh",
)
