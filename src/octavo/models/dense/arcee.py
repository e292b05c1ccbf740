"""Arcee (AFM): Llama with a feed-forward of two matrices, between them a squared ReLU."""

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.decoder import Attention, Decoder, FeedForward

ARCH = Architecture(
    name="arcee",
    network=Decoder(
        mixer=Attention(output_bias=None),
        feed_forward=FeedForward(activation="relu_squared", plain=True, bias=None),
    ),
    interleaved=True,
    classes={"ArceeForCausalLM": lambda config: {}},
    names=names.NORMS | names.ATTENTION | {"mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"},
    activation="relu2",
)
