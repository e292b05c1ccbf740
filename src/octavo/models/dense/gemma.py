"""Gemma, the first: Llama with GeGLU, whose embeddings are multiplied by the root of the width."""

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, TensorLayout
from octavo.models.shared.config import Config, Keys, head_keys
from octavo.models.shared.decoder import GEGLU, Decoder


def config_keys(config: Config) -> Keys:
    """Older files name the GELU with tanh as if it were the other."""
    named = {word: None for word in ("hidden_act", "hidden_activation") if config.values.get(word) == "gelu"}
    return head_keys(config, 256) | named


ARCH = Architecture(
    name="gemma",
    network=Decoder(feed_forward=GEGLU, scaled_by_width=True),
    classes={"GemmaForCausalLM": config_keys},
    only={"use_bidirectional_attention": False},
    names=names.LLAMA,
    ropes=("default", "linear"),
    activation="gelu_pytorch_tanh",
    tied=True,
    layout=TensorLayout(norm_shift=1.0),
)
