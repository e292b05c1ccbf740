"""Octavo: run, quantize and measure low-bit language models from Python.

import octavo

model = octavo.load("demo")
for text in model.generate("What is the result of 5/0 in math?"):
    print(text, end="", flush=True)
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from octavo.errors import OctavoError
from octavo.lazy import names_from

if TYPE_CHECKING:
    from octavo.runtime import Generation, Grammar, Model, SamplingParams, load
    from octavo.text import ChatTemplate, Tokenizer

__version__ = "0.1.0"
__all__ = ["ChatTemplate", "Generation", "Grammar", "Model", "OctavoError", "SamplingParams", "Tokenizer", "load"]

_MODULES = (
    "bench", "errors", "evals", "formats", "huggingface", "io", "ops", "quantizers", "runtime", "text", "torch",
)

__getattr__ = names_from(__name__, {
    "octavo.runtime": ["Generation", "Grammar", "Model", "SamplingParams", "load"],
    "octavo.text": ["ChatTemplate", "Tokenizer"],
}, _MODULES)


def __dir__() -> list[str]:
    """The public names. `torch`, which takes seconds to import, is there too, but listed where torch is used only:
    help and completion look at all that is listed."""
    modules = [name for name in _MODULES if name != "torch" or "torch" in sys.modules]
    return [*__all__, *modules, *(name for name in globals() if name.startswith("__"))]
