"""XVERSE: Llama by another name."""

from __future__ import annotations

from functools import partial

from octavo.models.dense import llama
from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.hparams import read_shared

ARCH = Architecture(
    name="xverse",
    hparams=partial(read_shared, interleaved=True, has_experts=False),
    tensors=llama.tensors,
    build=llama.build,
    classes={"XverseForCausalLM": lambda config: {}},
    names=names.LLAMA,
    ropes=("default", "linear"),
    writable=False,
)
