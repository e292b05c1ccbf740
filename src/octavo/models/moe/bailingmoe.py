"""Ling and Ring, first models: Llama with DeepSeek's experts; q, k and v in one matrix of a checkpoint."""

from dataclasses import replace
from functools import partial

from octavo.models.shared import experts, names
from octavo.models.shared.architecture import Architecture, Sizes, TensorLayout
from octavo.models.shared.conversion import split_qkv
from octavo.models.shared.decoder import Attention, Decoder
from octavo.models.shared.experts import SOFTMAX, Routed
from octavo.models.shared.reader import MetadataReader

NETWORK = Decoder(mixer=Attention(output_bias=None), feed_forward=experts.FEED_FORWARD)


def complete(r: MetadataReader, hp: Routed) -> Routed:
    found = replace(hp, **experts.read(r, hp, SOFTMAX))
    if found.n_dense:
        raise r.error(experts.N_DENSE, f"is {found.n_dense}", "0, as all layers have experts")
    return found


ARCH = Architecture(
    name="bailingmoe",
    network=NETWORK,
    keys=experts.KEYS,
    sizes=Sizes(kind=Routed, complete=complete),
    interleaved=True,
    experts=True,
    classes={"BailingMoeForCausalLM": partial(experts.config_keys, gate=SOFTMAX, normalized=True)},
    only={"use_qkv_bias": False, "use_bias": False, "norm_softmax": False},
    names=names.NORMS | names.ROUTED | {
        "attention.query_key_value": "attn_q attn_k attn_v", "attention.dense": "attn_output",
    },
    outer=names.OUTER | {"word_embeddings.weight": "token_embd.weight"},
    key_aliases={"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"},
    layout=TensorLayout(
        permuted=False, converted=partial(split_qkv, interleave=True),
        unit_output=lambda config: 0 if config.flag("norm_head", False) else None,
    ),
)
