"""openPangu-Embedded: Llama with biases in attention, and rope on halves of a head."""

from __future__ import annotations

from functools import partial

from octavo.models.dense import llama
from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.hparams import read_shared

ARCH = Architecture(
    name="pangu-embedded",
    hparams=partial(read_shared, has_experts=False),
    tensors=llama.tensors,
    build=llama.build,
    classes={"PanguEmbeddedForCausalLM": lambda config: {}},
    names=names.LLAMA,
    ropes=("default", "linear"),
    writable=False,
)
