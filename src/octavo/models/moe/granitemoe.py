"""Granite with experts for a feed-forward, and in some models one more that all tokens go through."""

from __future__ import annotations

from functools import partial

from octavo.models.dense import granite
from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, expert_keys
from octavo.models.shared.hparams import LIMITS


def config_keys(config: Config) -> Keys:
    return granite.config_keys(config) | expert_keys(config, "num_local_experts")


def shared(config: Config) -> Keys:
    """The width of the shared expert too; there is none where that is 0."""
    if not config.values.get("shared_intermediate_size"):
        return config_keys(config)
    width = config.size("shared_intermediate_size", LIMITS["feed_forward_length"])
    return config_keys(config) | {granite.SHARED_WIDTH: width}


ARCH = Architecture(
    name="granitemoe",
    hparams=partial(granite.hparams, has_experts=True),
    keys=granite.KEYS,
    tensors=granite.tensors,
    build=granite.build,
    classes={"GraniteMoeForCausalLM": config_keys, "GraniteMoeSharedForCausalLM": shared},
    names=names.NORMS | names.ATTENTION | {
        "block_sparse_moe.router.layer": "ffn_gate_inp", "block_sparse_moe.input_linear": names.GATE_UP,
        "block_sparse_moe.output_linear": "ffn_down_exps", "shared_mlp.input_linear": names.SHARED_GATE_UP,
        "shared_mlp.output_linear": "ffn_down_shexp", **names.stacked("block_sparse_moe"),
        **names.switch("block_sparse_moe.switch_mlp"),
    },
    ropes=("default", "linear", "yarn", "llama3"),
    writable=False,
)
