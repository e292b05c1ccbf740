from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import octavo
from octavo.backends.reference import ReferenceBackend
from octavo.io.gguf import GGUFFile
from octavo.models import ModelSpec, read_model
from octavo.runtime import Engine, EngineConfig, Model
from tests.runtime import tiny


@pytest.fixture(scope="session")
def random_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.write(tmp_path_factory.mktemp("tiny") / "random.gguf")


@pytest.fixture(scope="session")
def alphabet_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.write(tmp_path_factory.mktemp("tiny") / "alphabet.gguf", weights=tiny.alphabet())


@pytest.fixture
def random_model(random_path: str) -> Iterator[Model]:
    with octavo.load(random_path, device="reference", n_ctx=256) as model:
        yield model


@pytest.fixture
def alphabet(alphabet_path: str) -> Iterator[Model]:
    """A model that answers with the alphabet."""
    with octavo.load(alphabet_path, device="reference", n_ctx=256) as model:
        yield model


@pytest.fixture
def architecture(random_path: str) -> Iterator[ModelSpec]:
    with GGUFFile.open(random_path) as file:
        yield read_model(file)


@pytest.fixture
def make_engine(architecture: ModelSpec) -> Callable[..., Engine]:
    """Makes engines of the random model from the fields of EngineConfig."""

    def make(**config: object) -> Engine:
        options = {"n_ctx": 256, "cache_type": "f32", **config}
        return Engine(architecture, [ReferenceBackend()], EngineConfig(**options))  # type: ignore[arg-type]

    return make
