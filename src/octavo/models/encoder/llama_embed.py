"""Llama as an encoder (llama-embed), as NVIDIA has it: tokens see all of a text, and there are no logits."""

from octavo.models.dense import llama
from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, Sizes
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import FeedForward, FullAttention, TransformerEncoder
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.reader import WINDOW, MetadataReader

OUTER = {name: gguf for name, gguf in names.OUTER.items() if not name.startswith("lm_head.")}
POOLINGS = {"avg": 1, "cls": 2, "last": 3}
"""Numbers of GGUF's `pooling_type` by what config.json calls them."""


def complete(r: MetadataReader, hp: Hyperparams) -> Hyperparams:
    if hp.n_window is not None:
        raise r.error(WINDOW, f"is {hp.n_window}", "0")
    return hp


NETWORK = TransformerEncoder(mixer=FullAttention(output_bias=None), feed_forward=FeedForward(bias=None))
SIZES = Sizes(complete=complete)


def config_keys(config: Config) -> Keys:
    return {"pooling_type": POOLINGS[config.one_of("pooling", tuple(POOLINGS), "avg")]}


ARCH = Architecture(
    name="llama-embed",
    network=NETWORK,
    sizes=SIZES,
    interleaved=True,
    classes={"LlamaBidirectionalModel": config_keys},
    names=names.LLAMA,
    outer=OUTER,
    ropes=llama.ARCH.ropes,
)
