"""The table of architectures on the GPU backend, its kernels interpreted: logits of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

import pytest

from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.recurrent.scan_tiles import MIN_TOKENS
from tests.backends.gpu.conftest import INTERPRETED
from tests.models.table import TOKENS, Models, error, logits, made_in
from tests.models.tiny_checkpoints import TABLE
from tests.models.tiny_options import WINDOW
from tests.test_packages import wanted

FEW = WINDOW + 2
NEWER = {"granitehybrid-odd", "mamba2", "minimax-m2"}
"""What transformers computes, or writes down, rightly only from the version on that the extra `test` asks for."""


@pytest.fixture(autouse=True)
def right_transformers(name: str) -> None:
    """A card's machine may have an older one. CI has a new one, and leaves nothing out."""
    asked, here = wanted("test")["transformers"].specifier, version("transformers")
    if not INTERPRETED and name in NEWER and not asked.contains(here):
        pytest.skip(f"{name} needs transformers {asked}, {here} is here")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    with made_in(tmp_path_factory.mktemp("table")) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
@pytest.mark.filterwarnings("ignore:overflow encountered")  # in sums for tokens beyond the last, which are not kept
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_logits(name: str, models: Models) -> None:
    model = models[name]
    want = model.want[:FEW]
    assert error(logits(model.folder, GpuBackend(), TOKENS[:FEW], at_once=True), want) < 1e-4
    assert error(logits(model.file, GpuBackend(), TOKENS[:2], at_once=False), want[:2]) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen35", "qwen3next", "granitehybrid", "granitehybrid-odd"])
def test_prompts_in_chunks(name: str, models: Models) -> None:
    """Of the gated delta rule and the selective scan, which fewer tokens go through one by one.

    Numbers are right to 17 bits there, and a norm after it makes errors larger where a query happens to see little.
    """
    model, n = models[name], MIN_TOKENS + 3
    assert error(logits(model.folder, GpuBackend(), TOKENS[:n], at_once=True), model.want[:n]) < 5e-4
