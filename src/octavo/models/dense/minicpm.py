"""MiniCPM 1, 2, 4 and MoE: Llama whose embeddings, residuals and logits are each multiplied by a number, longrope or
experts."""

from __future__ import annotations

import math

from octavo.models.dense import granite
from octavo.models.dense.granite import Granite
from octavo.models.dense.phi3 import with_longrope
from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, expert_keys
from octavo.models.shared.hparams import LIMITS, HyperparamReader, read_shared

KEYS = frozenset({"embedding_scale", "residual_scale", "logit_scale"})
BASE_WIDTH, EMBEDDING_SCALE, DEPTH_SCALE = 256, 12.0, 1.4
"""What older files don't say: logits are divided by the width over BASE_WIDTH, residuals multiplied by DEPTH_SCALE over
the root of the number of layers."""


def hparams(r: HyperparamReader) -> Granite:
    hp = with_longrope(r, read_shared(r, interleaved=True))
    return hp.extended(
        Granite,
        query_scale=hp.attention_scale,
        embedding_scale=r.positive("embedding_scale") or EMBEDDING_SCALE,
        residual_scale=r.positive("residual_scale") or DEPTH_SCALE / math.sqrt(hp.n_layer),
        logit_scale=1 / (r.positive("logit_scale") or hp.n_embd / BASE_WIDTH),
        n_ff_shared=0,
    )


def config_keys(config: Config) -> Keys:
    """The three numbers, of words that are 1 where config.json does not say, and experts.

    Raises ModelError for attention that is sparse in long contexts.
    """
    config.only({"sparse_config": None})
    experts = config.count("num_experts", LIMITS["expert_count"])
    n, width = (config.size(word, LIMITS[field]) for word, field in (
        ("num_hidden_layers", "block_count"), ("hidden_size", "embedding_length")))
    return (expert_keys(config, "num_experts") if experts else {}) | {
        "embedding_scale": config.real("scale_emb", 1.0),
        "residual_scale": config.real("scale_depth", 1.0) / math.sqrt(n),
        "logit_scale": width / config.real("dim_model_base", 1.0),
    }


ARCH = Architecture(
    name="minicpm",
    hparams=hparams,
    keys=KEYS,
    tensors=granite.tensors,
    build=granite.build,
    classes={"MiniCPMForCausalLM": config_keys},
    names=names.LLAMA | names.moe("mlp", "w1", "w3", "w2"),
    ropes=("default", "linear", "longrope"),
    tied=True,
    writable=False,
)
