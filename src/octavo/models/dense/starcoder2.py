"""StarCoder 2: layer norms, biases everywhere, and a feed-forward of two matrices with GELU between."""

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import window_keys
from octavo.models.shared.decoder import MLP, Attention, Decoder, NormNames
from octavo.models.shared.windows import Windows

ARCH = Architecture(
    name="starcoder2",
    network=Decoder(mixer=Attention(bias=True, output_bias=True), feed_forward=MLP, norms=NormNames(bias=True)),
    windows=Windows(0),
    layer_norms="norm_epsilon",
    classes={"Starcoder2ForCausalLM": lambda config: window_keys(config, 0)},
    only={"use_bias": True},
    names=names.NORMS | names.ATTENTION | {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
    activation="gelu_pytorch_tanh",
    tied=True,
)
