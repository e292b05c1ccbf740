"""PLaMo: attention and feed-forward side by side behind one norm; in checkpoints heads share those of keys in turn."""

import numpy as np

from octavo.formats.spec import AnyArray
from octavo.io.gguf import LazyTensor
from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, TensorLayout, Unwritten
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.conversion import columns_moved, rows_moved
from octavo.models.shared.decoder import PARALLEL, Attention, Decoder
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.reader import KV_HEADS, LIMITS

LENGTH = 4096
"""The context that the published model was trained with."""


def config_keys(config: Config) -> Keys:
    """Heads that share one of keys; what config.json says of heads of keys is that of queries."""
    heads = config.n_head
    shared = config.size("n_shared_head", heads)
    if heads % shared:
        raise config.error("n_shared_head", f"is {shared}", f"a divisor of {heads} heads")
    length = config.size("max_position_embeddings", LIMITS["context_length"], LENGTH)
    return {KV_HEADS: heads // shared, "context_length": length}


def converted(name: str, tensor: LazyTensor, hp: Hyperparams) -> LazyTensor:
    """Heads of queries one after the other that share a head of keys: of rows, or of columns behind attention."""
    order = np.arange(hp.n_head).reshape(-1, hp.n_head_kv).T.ravel()
    if name.endswith("attn_output.weight"):
        return columns_moved(tensor, order)
    if not name.endswith("attn_q.weight"):
        return tensor

    def moved(rows: AnyArray) -> AnyArray:
        return rows.reshape(hp.n_head, -1, rows.shape[1])[order].reshape(rows.shape)

    return rows_moved(tensor, moved)


ARCH = Architecture(
    name="plamo",
    network=Decoder(mixer=Attention(bias=False), norms=PARALLEL),
    classes={"PlamoForCausalLM": config_keys},
    layer="layers.layers",
    names=names.ATTENTION | names.FFN | {"norm": "attn_norm"},
    layout=TensorLayout(converted=converted),
    unwritten=Unwritten(tensors=("attn_q", "attn_output")),
    ropes=("default", "linear"),
)
