"""Nemotron 4 and Minitron: layer norms, rope on a part of each head, and a squared ReLU between two matrices."""

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, TensorLayout
from octavo.models.shared.decoder import Attention, Decoder, FeedForward, NormNames

ARCH = Architecture(
    name="nemotron",
    network=Decoder(
        mixer=Attention(output_bias=None),
        feed_forward=FeedForward(activation="relu_squared", plain=True, bias=None),
        norms=NormNames(bias=True),
    ),
    layer_norms="norm_eps",
    classes={"NemotronForCausalLM": lambda config: {}},
    rotary_part=0.5,
    names=names.NORMS | names.ATTENTION | {"mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"},
    ropes=("default", "linear"),
    activation="relu2",
    layout=TensorLayout(norm_shift=1.0),
)
