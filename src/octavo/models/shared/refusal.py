"""What is said of files that Octavo can't run: what they are, what to do about it, and which names are near."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from octavo.errors import INSTALL_LEGACY, ModelError, shown
from octavo.io.foreign import adapter
from octavo.io.gguf import GGUFFile
from octavo.models.shared.reader import NEXTN

_NO_MODELS = {
    "mmproj": "is a projector (mmproj), which makes of pictures or sounds what a model reads, and Octavo can't run it: "
    "give the GGUF file of the text model",
    "imatrix": "is an importance matrix, no model: `octavo quantize --imatrix` takes it",
    "controlvector": "is a control vector, no model, and Octavo can't apply it",
    "eagle3": "is an EAGLE-3 head, no model by itself: give it as --draft beside the model that it is of",
}
"""By GGUF's `general.type`."""
_TYPES = {"clip": "mmproj", "controlvector": "controlvector", "eagle3": "eagle3"}
"""What files of an architecture are, whatever their type says."""
_LONGEST = 80
LEGACY = frozenset(
    """arctic arwkv7 baichuan bloom chatglm codeshell dbrx deepseek falcon gptj gptneox grovemoe internlm2 jais minicpm3
    mpt olmo openelm orion plamo plamo2 plm qwen refact rwkv6 smallthinker stablelm starcoder xverse
    ArcticForCausalLM BaiChuanForCausalLM BaichuanForCausalLM BloomForCausalLM BloomModel
    ChatGLMForConditionalGeneration ChatGLMModel CodeShellForCausalLM DbrxForCausalLM DeepseekForCausalLM
    FalconForCausalLM GPTBigCodeForCausalLM GPTJForCausalLM GPTNeoXForCausalLM GPTRefactForCausalLM GlmForCausalLM
    GroveMoeForCausalLM InternLM2ForCausalLM JAISLMHeadModel MPTForCausalLM MiniCPM3ForCausalLM MptForCausalLM
    OlmoForCausalLM OpenELMForCausalLM OrionForCausalLM PLMForCausalLM Plamo2ForCausalLM PlamoForCausalLM
    QWenLMHeadModel Rwkv6ForCausalLM RwkvHybridForCausalLM SmallThinkerForCausalLM StableLmForCausalLM
    XverseForCausalLM""".split()
)
"""Architectures of the package octavo-legacy as GGUF names them, and the classes that config.json names."""


def require_model(file: GGUFFile) -> None:
    """Raise ModelError for a GGUF file that is known to hold something else than a model."""
    kind = file.metadata.get_str("general.type", "model")
    arch = file.metadata.get_str("general.architecture", "")
    if kind == "adapter":
        raise ModelError(adapter(file.metadata.get("general.base_model.0.name")), file=file.path)
    problem = _NO_MODELS.get(_TYPES.get(arch, kind))
    if problem is not None:
        raise ModelError(problem, file=file.path)


def is_next_layer(file: GGUFFile) -> bool:
    """Whether a file has a block that guesses tokens, and no model before it."""
    name = file.metadata.get_str("general.architecture", "")
    guesses = f"{name}.{NEXTN}" in file.metadata and file.metadata.get_int(f"{name}.{NEXTN}") > 0
    return guesses and not any(tensor.startswith("blk.0.") for tensor in file.tensors)


def unknown(name: str, known: Iterable[str], what: str = "") -> str:
    """That Octavo can't run `name`, which is a `what`, the up to three of the `known` names that are nearest to it, and
    where all are listed; or which package brings it."""
    if name in LEGACY:
        return f"{what}{shown(name)} needs the package octavo-legacy ({INSTALL_LEGACY})"
    stems = {_stem(other): other for other in known}
    close = ", ".join(stems[stem] for stem in get_close_matches(_stem(name), stems, n=3, cutoff=0.65))
    near = f" (nearest: {close})" if close else ""
    return f"Octavo can't run {what}{shown(name)} yet{near}; docs/models.md lists what it runs"


def _stem(name: str) -> str:
    """A name without what a class does: "qwen3" of Qwen3ForCausalLM."""
    return re.split("For[A-Z]", name[:_LONGEST])[0].casefold()
