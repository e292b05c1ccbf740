"""Jina Embeddings 3: XLM-RoBERTa with rope instead of learned positions, q, k and v in one matrix."""

import logging
from dataclasses import replace

from octavo.models.encoder import bert
from octavo.models.encoder.bert import BertEncoder
from octavo.models.shared.architecture import Modules, TensorLayout
from octavo.models.shared.config import Config, Keys, rope_parameters
from octavo.models.shared.decoder import FeedForward, FullAttention
from octavo.models.shared.reader import LIMITS, brief

log = logging.getLogger("octavo")

STORED = ".parametrizations.weight.original"
"""What the name of a weight ends in that has adapters beside it."""
WEIGHTS = {
    "mixer.Wqkv": "attn_qkv", "mixer.out_proj": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
}
EMBEDDINGS = {
    "embeddings.word_embeddings": "token_embd.weight", "embeddings.token_type_embeddings": "token_types.weight",
}


def config_keys(config: Config) -> Keys:
    """Of transformers' form. Positions are counted from 0, but as many are left out as XLM-RoBERTa has no use for."""
    bert.require_types(config)
    pad = config.count("pad_token_id", LIMITS["context_length"])
    positions = config.size("max_position_embeddings", LIMITS["context_length"])
    if positions <= pad + 1:
        raise config.error("max_position_embeddings", f"is {positions}", f"over {pad + 1}, as pad_token_id says")
    base = config.real("rope_theta", 20000.0, of=rope_parameters(config))
    return {"context_length": positions - pad - 1, "rope.freq_base": base}


def published(config: Config) -> Keys:
    """Of the form that Jina publishes, whose adapters are left out with a warning. Raises ModelError for learned
    positions."""
    config.only({"position_embedding_type": "rotary"})
    tasks = config.values.get("lora_adaptations")
    if isinstance(tasks, list) and tasks:
        listed = brief(", ".join(map(str, tasks)))
        log.warning("%s: vectors are those without a task, adapters for %s are left out", config.file, listed)
    return config_keys(config) | {"rope.freq_base": config.real("rotary_emb_base", 10000.0)}


ARCH = replace(
    bert.ARCH,
    name="jina-bert-v3",
    network=BertEncoder(
        mixer=FullAttention(joined=True, bias=True, output_bias=True),
        feed_forward=FeedForward(activation="gelu_erf", plain=True, bias=True),
    ),
    only={},
    classes={"JinaEmbeddingsV3Model": config_keys, "XLMRobertaModel with lora_adaptations": published},
    names=WEIGHTS | {module + STORED: part for module, part in WEIGHTS.items()} | {
        "norm1": "attn_output_norm", "norm2": "layer_output_norm",
    },
    base="roberta.",
    layer="encoder.layers",
    modules=Modules(rows=bert.ROWS, ignored=(".lora_A", ".lora_B")),
    outer={
        **{module + end: name for module, name in EMBEDDINGS.items() for end in (".weight", STORED)},
        "emb_ln.weight": "token_embd_norm.weight", "emb_ln.bias": "token_embd_norm.bias",
    },
    unused=("pooler.", "lm_head."),
    ropes=("default",),
    layout=TensorLayout(),
)
