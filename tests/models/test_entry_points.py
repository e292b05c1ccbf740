"""Architectures of other packages: found by entry points; where one is missing, what is said names its command."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

from octavo.errors import ModelError
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile
from octavo.models import ARCHITECTURES, read_model
from octavo.models.shared import registry
from octavo.models.shared.refusal import LEGACY
from octavo.quantizers.job.job_source import gguf_source
from tests.convert import folders
from tests.models.checkpoints import CASES
from tests.models.test_hostile import refused
from tests.runtime import tiny

INSTALL = "pip install ./octavo-legacy in Octavo's folder"


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """The entry points that there are instead of those of installed packages."""
    found: list[EntryPoint] = []
    monkeypatch.setattr(registry, "entry_points", lambda group: [p for p in found if p.group == group])
    registry.installed.cache_clear()
    yield found
    registry.installed.cache_clear()


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, "octavo.architectures")


def test_none_is_octavos_own() -> None:
    assert not LEGACY & set(ARCHITECTURES)
    assert not LEGACY & {name for architecture in ARCHITECTURES.values() for name in architecture.classes}


@pytest.mark.parametrize("arch", ["mpt", "gptneox"])
def test_files_of_missing_packages(arch: str, points: list[EntryPoint], tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf", arch, weights=tiny.tensors())
    refused(path, ModelError, f"architecture '{arch}' needs the package octavo-legacy ({INSTALL})")
    with GGUFFile.open(path) as file:
        assert gguf_source(file).arch == arch, "which asks for no computation"


@pytest.mark.parametrize("name", ["MptForCausalLM", "ChatGLMModel", "RwkvHybridForCausalLM"])
def test_folders_of_missing_packages(name: str, points: list[EntryPoint], tmp_path: Path) -> None:
    folders.save(tmp_path, CASES["qwen3"])
    folders.edit(tmp_path, "config.json", architectures=[name])
    with pytest.raises(ModelError) as caught:
        open_model_file(tmp_path)
    assert str(caught.value).endswith(f"architectures: '{name}' needs the package octavo-legacy ({INSTALL})")


def test_entry_points_bring_architectures(
    points: list[EntryPoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny.write(tmp_path / "m.gguf", "qwen3")
    own = ARCHITECTURES["qwen3"]
    others = {name: arch for name, arch in ARCHITECTURES.items() if name != "qwen3"}
    monkeypatch.setattr(registry, "ARCHITECTURES", others)
    refused(path, ModelError, "can't run architecture 'qwen3' yet")
    registry.installed.cache_clear()
    points.append(point("qwen3", "octavo.models.dense.qwen3"))
    with GGUFFile.open(path) as file:
        assert read_model(file).architecture is own


@pytest.mark.parametrize("value", ["octavo.models.no_such", "octavo.models.shared.names"])
def test_packages_that_do_not_fit(value: str, points: list[EntryPoint], tmp_path: Path) -> None:
    """As those of another version: what is said names them, and models of Octavo's own architectures run."""
    broken = point("mpt", value)
    vars(broken).update(dist=SimpleNamespace(name="octavo-other"))
    points.append(broken)
    path = tiny.write(tmp_path / "m.gguf", "mpt", weights=tiny.tensors())
    with (
        GGUFFile.open(path) as file,
        pytest.raises(ModelError, match="mpt of the package octavo-other can't be loaded: "),
    ):
        read_model(file)
    with GGUFFile.open(tiny.write(tmp_path / "own.gguf")) as file:
        assert read_model(file).architecture is ARCHITECTURES["qwen3"]
