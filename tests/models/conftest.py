from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.io.gguf import GGUFFile, write_gguf
from tests.models.checkpoints import Case, Write, metadata, stored


@pytest.fixture
def gguf(tmp_path: Path) -> Iterator[Write]:
    """Writes models as GGUF and opens them; they are closed after the test."""
    with ExitStack() as stack:

        def write(
            case: Case, model: Any, format_name: str = "F32", *, tensors: dict[str, np.ndarray] | None = None
        ) -> GGUFFile:
            path = tmp_path / f"{len(list(tmp_path.iterdir()))}.gguf"
            write_gguf(path, case.arch, metadata(case, model.config), tensors or stored(case, model, format_name))
            return stack.enter_context(GGUFFile.open(path))

        yield write
