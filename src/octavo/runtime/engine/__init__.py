"""The engine: a model on its backends with a KV cache; a step's tokens in, logits out.

In: requests (`core`) or sequences (`engine`). Out: tokens, or logits. Begin with `core.EngineCore`, the loop of a
step; `batch` makes a step's arrays, `captured_sizes` keeps steps of few sizes, `placement` says which layers lie
where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.lazy import names_from

if TYPE_CHECKING:
    from octavo.runtime.engine.core import EngineCore
    from octavo.runtime.engine.engine import Engine
    from octavo.runtime.engine.engine_config import EngineConfig

__all__ = ["Engine", "EngineConfig", "EngineCore"]

__getattr__ = names_from(__name__, {
    "octavo.runtime.engine.engine_config": ["EngineConfig"],
    "octavo.runtime.engine.core": ["EngineCore"],
    "octavo.runtime.engine.engine": ["Engine"],
})
