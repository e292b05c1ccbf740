from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.runtime import EngineConfig, Model, open_model
from tests.models.conftest import gguf
from tests.runtime import tiny

__all__ = ["gguf"]

Open = Callable[..., Model]


@pytest.fixture
def open_tiny(tmp_path: Path) -> Iterator[Open]:
    """Writes and loads tiny models on the reference backend; keyword arguments are fields of EngineConfig."""
    with ExitStack() as stack:
        count = 0

        def load(
            weights: Mapping[str, np.ndarray] | None = None, keys: Mapping[str, Any] | None = None, arch: str = "qwen3",
            **config: Any,
        ) -> Model:
            nonlocal count
            count += 1
            path = tiny.write(tmp_path / f"tiny{count}.gguf", arch, weights=weights, keys=keys)
            options = EngineConfig(**{"n_ctx": 64, "cache_type": "f32", **config})
            return stack.enter_context(open_model(path, [ReferenceBackend()], options))

        yield load
