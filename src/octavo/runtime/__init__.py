"""Running a model: sequences, the KV cache, sampling, generation.

Public names come from their modules when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.lazy import names_from

if TYPE_CHECKING:
    from octavo.io.model_path import resolve
    from octavo.runtime.engine.engine import Engine, EngineConfig
    from octavo.runtime.generation import Generation
    from octavo.runtime.grammar.grammar import Grammar
    from octavo.runtime.loading import load, open_model
    from octavo.runtime.model import Model
    from octavo.runtime.options import GenerateOptions
    from octavo.runtime.output.reply import Reply
    from octavo.runtime.sampling.sampler import SamplingParams

__all__ = [
    "Engine",
    "EngineConfig",
    "GenerateOptions",
    "Generation",
    "Grammar",
    "Model",
    "Reply",
    "SamplingParams",
    "load",
    "open_model",
    "resolve",
]

__getattr__ = names_from(__name__, {
    "octavo.io.model_path": ["resolve"],
    "octavo.runtime.engine.engine": ["Engine", "EngineConfig"],
    "octavo.runtime.generation": ["Generation"],
    "octavo.runtime.grammar.grammar": ["Grammar"],
    "octavo.runtime.loading": ["load", "open_model"],
    "octavo.runtime.model": ["Model"],
    "octavo.runtime.options": ["GenerateOptions"],
    "octavo.runtime.output.reply": ["Reply"],
    "octavo.runtime.sampling.sampler": ["SamplingParams"],
})
