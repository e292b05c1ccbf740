"""Running a model: sequences, the KV cache, sampling, generation."""

from octavo.io.named import resolve
from octavo.runtime.engine import Engine, EngineConfig
from octavo.runtime.generation import Generation
from octavo.runtime.grammar import Grammar
from octavo.runtime.model import Model, load, open_model
from octavo.runtime.options import GenerateOptions
from octavo.runtime.reply import Reply
from octavo.runtime.sampling import SamplingParams

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
