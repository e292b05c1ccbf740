"""Phi-3 and Phi-4: Llama with q, k and v in one matrix, gate and up in another, longrope and a window in all layers."""

from dataclasses import replace

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, Sizes
from octavo.models.shared.config import window_keys
from octavo.models.shared.decoder import Attention, Decoder, FeedForward
from octavo.models.shared.hparams import Hyperparams, with_longrope
from octavo.models.shared.reader import MetadataReader


def complete(r: MetadataReader, hp: Hyperparams) -> Hyperparams:
    """With the window in all layers, where there is one."""
    return replace(with_longrope(r, hp), windowed=(hp.n_window is not None,) * hp.n_layer)


ARCH = Architecture(
    name="phi3",
    network=Decoder(mixer=Attention(joined=True, bias=False), feed_forward=FeedForward(joined=True)),
    sizes=Sizes(complete=complete),
    classes={"Phi3ForCausalLM": lambda config: window_keys(config, 0)},
    rotary_part=1.0,
    names=names.NORMS | {
        "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output",
        "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    },
    ropes=("default", "longrope"),
)
