"""Granite with experts for a feed-forward, and in some models one more that all tokens go through."""

from dataclasses import replace

from octavo.models.dense import granite
from octavo.models.dense.granite import SHARED_WIDTH
from octavo.models.shared import names
from octavo.models.shared.architecture import Modules
from octavo.models.shared.config import Config, Keys, expert_keys
from octavo.models.shared.hparams import Key
from octavo.models.shared.reader import LIMITS

SHARED = Key("n_ff_shared", SHARED_WIDTH, default=0, limit=LIMITS[SHARED_WIDTH])


def config_keys(config: Config) -> Keys:
    return expert_keys(config, "num_local_experts")


def shared(config: Config) -> Keys:
    """The width of the shared expert too; there is none where that is 0."""
    width = config.count("shared_intermediate_size", LIMITS[SHARED_WIDTH])
    return config_keys(config) | ({SHARED_WIDTH: width} if width else {})


NAMES = names.NORMS | names.ATTENTION | {
    "block_sparse_moe.router.layer": "ffn_gate_inp", "block_sparse_moe.input_linear": names.GATE_UP,
    "block_sparse_moe.output_linear": "ffn_down_exps", "shared_mlp.input_linear": names.SHARED_GATE_UP,
    "shared_mlp.output_linear": "ffn_down_shexp", **names.stacked("block_sparse_moe"),
    **names.ffn("block_sparse_moe.switch_mlp", "_exps"),
}

ARCH = replace(
    granite.ARCH,
    name="granitemoe",
    keys=(*granite.KEYS, SHARED),
    experts=True,
    classes={"GraniteMoeForCausalLM": config_keys, "GraniteMoeSharedForCausalLM": shared},
    names=NAMES,
    modules=Modules(),
)
