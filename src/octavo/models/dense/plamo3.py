"""PLaMo 3: norms before and behind attention and feed-forward, of q and k too, a window in most layers with its rope.

Both this and PLaMo 2 have what attends and what feeds forward under `mixer` and `mlp`, and norms whose weights a
checkpoint has less a number each.
"""

from typing import Any

import numpy as np

from octavo.io.gguf import LazyTensor
from octavo.models.shared.architecture import Architecture, TensorLayout, Unwritten, VocabularyFile
from octavo.models.shared.config import Config, Keys, head_keys, local_rope
from octavo.models.shared.conversion import of_values
from octavo.models.shared.decoder import Attention, Decoder, FeedForward, NormNames
from octavo.models.shared.hparams import local_base
from octavo.models.shared.reader import brief
from octavo.models.shared.windows import Windows, layer_window_keys

PERIOD = 8
"""The last layer of each period has no window, where a file does not say which ones have."""
MIXED, FED = "post_attention_norm", "post_ffw_norm"
"""Norms behind the parts of a layer, whose names in a file have no end."""
NORMS = NormNames(after_mixer=f"{MIXED}.", after_feed_forward=f"{FED}.")
SHIFTS = {"attn_norm": 1.0, MIXED: 1 / 5, "ffn_norm": 1.0, FED: 5**-1.5, "output_norm": 1.0}
"""What is added to the weights of norms, which GGUF has ready to multiply with."""
QK_SHIFTS = {"attn_q_norm": 1.0, "attn_k_norm": 1.0}
NAMES = {
    "pre_mixer_norm": "attn_norm", "post_mixer_norm.weight": MIXED, "pre_mlp_norm": "ffn_norm",
    "post_mlp_norm.weight": FED, "mixer.qkv_proj": "attn_qkv", "mixer.o_proj": "attn_output",
    "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
WHY_UNWRITTEN = "norms of its folders have other weights than those of GGUF files"
PLAIN: dict[str, object] = {"linear_type": "normal", "image_token_id": None, "fp8_accum_dtype": None}
"""Keys of config.json that have no computation here with other values: pictures, and matrices of another type."""


def config_keys(config: Config) -> Keys:
    windows = layer_window_keys(config, PERIOD, 0)
    base = {"rope.freq_base_swa": config.real("rope_local_theta", 1e4)} if windows else {}
    return head_keys(config, 128) | windows | base


def usual_config(config: Config) -> Config:
    """config.json in the usual words: windows of older files, SwiGLU, and a rope that is stretched."""
    values = config.copy()
    if isinstance(listed := values.get("sliding_window"), list):
        values |= _windows(config, listed)
    if values.get("sliding_window") is None:
        values["sliding_window"] = values.get("window_size")
    if values.get("hidden_activation") == "swiglu":
        values["hidden_activation"] = "silu"
    if values.get("rope_theta") is None:
        values["rope_theta"] = values.get("rope_global_theta", 150000.0)
    if (local := local_rope(config)) is not None:
        values["rope_local_theta"] = local.get("rope_theta", values.get("rope_local_theta"))
    elif (factor := values.get("rope_scaling_factor")) not in (None, 1, 1.0):
        values["rope_parameters"] = {
            "rope_type": "yarn", "rope_theta": values["rope_theta"], "factor": factor, "truncate": False,
            "original_max_position_embeddings": values.get("initial_context_length"),
        }
    return config.replaced(values)


def _windows(config: Config, listed: list[Any]) -> dict[str, Any]:
    """A window for each layer, null for none, as one window and the layers that have it."""
    sizes = {size for size in listed if size is not None and type(size) is int}
    if len(sizes) != 1 or any(size is not None and size not in sizes for size in listed):
        raise config.error("sliding_window", f"is {brief(listed)}", "one window for those layers that have one")
    kinds = ["full_attention" if size is None else "sliding_attention" for size in listed]
    return {"sliding_window": sizes.pop(), "layer_types": kinds}


def shifted(name: str, tensor: LazyTensor, shifts: dict[str, float]) -> LazyTensor:
    """A norm's weights with what is added to them; other tensors as they are."""
    shift = shifts.get(name.removesuffix(".weight").rpartition(".")[2])
    return tensor if shift is None else of_values(tensor, lambda values: values + np.float32(shift))


ARCH = Architecture(
    name="plamo3",
    network=Decoder(
        mixer=Attention(joined=True, bias=False, qk_norm="heads"), feed_forward=FeedForward(joined=True), norms=NORMS
    ),
    keys=(local_base(),),
    windows=Windows(PERIOD),
    whole_pairs=False,
    classes={"Plamo3ForCausalLM": config_keys},
    only=PLAIN | {"attention_bias": False, "scale_embedding": False},
    usual_config=usual_config,
    layer="layers.layers",
    names=NAMES | {f"mixer.{n}_norm": f"attn_{n}_norm" for n in "qk"},
    layout=TensorLayout(converted=lambda name, tensor, hp: shifted(name, tensor, SHIFTS | QK_SHIFTS)),
    ropes=("default", "yarn"),
    tied=True,
    vocabulary=VocabularyFile(file="tokenizer.jsonl", pre="default", breaks=True),
    unwritten=Unwritten(why=lambda hp: WHY_UNWRITTEN),
)
