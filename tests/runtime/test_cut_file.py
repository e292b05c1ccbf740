"""A model whose file is cut after it was opened: one error, wherever the reading stands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from octavo.backends.cpu import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.errors import GGUFError
from octavo.graph.protocol import Backend
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.runtime import Engine, EngineConfig
from tests.runtime import tiny


@pytest.mark.parametrize("backend", [ReferenceBackend, CpuBackend])
def test_cut_between_opening_and_loading(tmp_path: Path, backend: type[Backend]) -> None:
    path = tiny.write(tmp_path / "model.gguf")
    with GGUFFile.open(path) as file:
        engine = Engine(read_model(file), [backend()], EngineConfig(n_ctx=64))
        last = max(file.tensors.values(), key=lambda info: info.offset)
        os.truncate(path, last.offset)
        with pytest.raises(GGUFError, match=rf"tensor '{last.name}': the file was truncated while it was open"):
            engine.load()


def test_cut_while_it_is_loaded(tmp_path: Path) -> None:
    """The second half of every tensor is gone by the time its first half is read."""
    path = tiny.write(tmp_path / "model.gguf")
    with GGUFFile.open(path) as file:
        info = file.tensors["token_embd.weight"]
        tensor = file.tensor(info.name).stored()
        half = info.shape[0] // 2
        assert len(tensor.rows(slice(0, half))) == half
        os.truncate(path, info.offset + info.nbytes // 2)
        assert len(tensor.rows(slice(0, half))) == half
        with pytest.raises(GGUFError, match=r"model\.gguf, byte \d+, tensor 'token_embd.weight': the file was trunc"):
            tensor.rows(slice(half, 2 * half))
