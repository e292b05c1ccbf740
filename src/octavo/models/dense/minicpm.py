"""MiniCPM 1, 2, 4 and MoE: Llama whose embeddings, residuals and logits are each multiplied by a number, longrope or
experts."""

import math

from octavo.models.dense import granite
from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, Sizes
from octavo.models.shared.config import Config, Keys, expert_keys
from octavo.models.shared.hparams import Key, with_longrope
from octavo.models.shared.reader import LIMITS

BASE_WIDTH, EMBEDDING_SCALE, DEPTH_SCALE = 256, 12.0, 1.4
"""What older files don't say: logits are divided by the width over BASE_WIDTH, residuals multiplied by DEPTH_SCALE over
the root of the number of layers."""


def config_keys(config: Config) -> Keys:
    """Residuals' and logits' numbers, of words that are 1 where config.json does not say, and experts."""
    experts = config.count("num_experts", LIMITS["expert_count"])
    n, width = (config.size(word, LIMITS[field]) for word, field in (
        ("num_hidden_layers", "block_count"), ("hidden_size", "embedding_length")))
    return (expert_keys(config, "num_experts") if experts else {}) | {
        "residual_scale": config.real("scale_depth", 1.0) / math.sqrt(n),
        "logit_scale": width / config.real("dim_model_base", 1.0),
    }


ARCH = Architecture(
    name="minicpm",
    network=granite.NETWORK,
    keys=(
        Key("embedding_scale", "embedding_scale", "scale_emb", default=EMBEDDING_SCALE, usual=1.0),
        Key("residual_scale", "residual_scale", default=lambda hp: DEPTH_SCALE / math.sqrt(hp.n_layer)),
        Key("logit_scale", "logit_scale", default=lambda hp: hp.n_embd / BASE_WIDTH, of=lambda by, hp: 1 / by),
    ),
    sizes=Sizes(complete=with_longrope),
    interleaved=True,
    experts=None,
    classes={"MiniCPMForCausalLM": config_keys},
    only={"sparse_config": None},
    names=names.LLAMA | names.moe("mlp", "w1", "w3", "w2"),
    ropes=("default", "linear", "longrope"),
    tied=True,
)
