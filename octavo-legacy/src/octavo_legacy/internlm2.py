"""InternLM 2 and 2.5: Llama, whose checkpoints have the queries, the key and the value of a few heads together."""

from octavo.formats.spec import AnyArray
from octavo.io.gguf import LazyTensor
from octavo.models.dense import llama
from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, TensorLayout
from octavo.models.shared.conversion import neighbouring, rows_moved
from octavo.models.shared.hparams import Hyperparams
from octavo_legacy.shared import by_kind


def converted(name: str, tensor: LazyTensor, hp: Hyperparams) -> LazyTensor:
    """Of the matrix of all three the rows of q, k or v; of q and k as rope on neighbours wants them."""
    kind = name.removesuffix(".weight").rpartition(".attn_")[2]
    if kind not in ("q", "k", "v"):
        return tensor
    heads = hp.n_head if kind == "q" else hp.n_head_kv

    def taken(rows: AnyArray) -> AnyArray:
        found = by_kind(rows, hp.n_head_kv, hp.head_dim)["qkv".index(kind)]
        return found if kind == "v" else neighbouring(found, heads)

    return rows_moved(tensor, taken, heads * hp.head_dim)


ARCH = Architecture(
    name="internlm2",
    network=llama.NETWORK,
    interleaved=True,
    only={"bias": False},
    classes={"InternLM2ForCausalLM": lambda config: {}},
    names={
        "attention_norm": "attn_norm", "ffn_norm": "ffn_norm", "attention.wqkv": "attn_q attn_k attn_v",
        "attention.wo": "attn_output", "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up",
        "feed_forward.w2": "ffn_down",
    },
    outer=names.outer("tok_embeddings", output="output"),
    layout=TensorLayout(converted=converted),
    ropes=("default", "linear"),
)
