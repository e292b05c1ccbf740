"""StarCoder and SantaCoder: GPT-2 with one head of keys."""

from __future__ import annotations

from dataclasses import replace

from octavo.models.dense import gpt2
from octavo.models.shared.config import Config, Keys


def config_keys(config: Config) -> Keys:
    """Raises ModelError for as many heads of keys as of queries, whose rows lie otherwise."""
    config.only_flags({"multi_query": True})
    return gpt2.config_keys(config) | {"attention.head_count_kv": 1}


ARCH = replace(
    gpt2.ARCH,
    name="starcoder",
    classes={"GPTBigCodeForCausalLM": config_keys},
    remade=lambda name, tensor, hp: tensor,
    unwritten_tensors=(),
    activation="gelu_pytorch_tanh",
)
