"""GPT-2: learned positions, layer norms, biases everywhere, q, k and v in one matrix, GELU."""

from octavo.io.gguf import LazyTensor
from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, Modules, TensorLayout, Unwritten
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.conversion import columns_as_rows
from octavo.models.shared.decoder import MLP, Attention, Decoder, NormNames
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.reader import FF_WIDTH, KV_HEADS, LIMITS

ATTENTION = Attention(joined=True, bias=True, output_bias=True, rope="none")


def config_keys(config: Config) -> Keys:
    return {
        KV_HEADS: config.n_head,
        FF_WIDTH: config.size("intermediate_size", LIMITS[FF_WIDTH], 4 * config.width),
        "rope.freq_base": None, "rope.dimension_count": None,
    }


def converted(name: str, tensor: LazyTensor, hp: Hyperparams) -> LazyTensor:
    """Matrices of layers, whose outputs are columns in a checkpoint."""
    return columns_as_rows(tensor) if name.startswith("blk.") and len(tensor.shape) == 2 else tensor


ARCH = Architecture(
    name="gpt2",
    network=Decoder(
        mixer=ATTENTION, feed_forward=MLP, norms=NormNames(bias=True), positions=True, freq_factors=False
    ),
    layer_norms="layer_norm_epsilon",
    classes={"GPT2LMHeadModel": config_keys},
    only={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    base="transformer.",
    layer="h",
    names={
        "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
        "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
    },
    outer=names.outer("wte", "ln_f", bias=True) | {"wpe.weight": "position_embd.weight"},
    modules=Modules(ignored=(".attn.bias", ".attn.masked_bias")),
    key_aliases={
        "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
        "n_positions": "max_position_embeddings", "n_inner": "intermediate_size", "activation_function": "hidden_act",
    },
    layout=TensorLayout(converted=converted),
    unwritten=Unwritten(tensors=("attn_qkv", "attn_output", "ffn_up", "ffn_down")),
    activation="gelu_new",
    tied=True,
)
