"""ERNIE 4.5: Llama whose checkpoints have rope on neighbouring pairs, too."""

from __future__ import annotations

from functools import partial

from octavo.models.dense import llama
from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.hparams import read_shared

ARCH = Architecture(
    name="ernie4_5",
    hparams=partial(read_shared, interleaved=True, has_experts=False),
    tensors=llama.tensors,
    build=llama.build,
    classes=dict.fromkeys(("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"), lambda config: {}),
    names=names.LLAMA,
    tied=True,
    reordered=False,
    biases={"use_bias": ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")},
)
