"""The table of architectures on the GPU backend, its kernels interpreted: logits of transformers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from octavo.backends.gpu import GpuBackend
from tests.models.table import TOKENS, Models, error, logits, made_in
from tests.models.tiny_checkpoints import TABLE, WINDOW

FEW = WINDOW + 2


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    with made_in(tmp_path_factory.mktemp("table")) as made:
        yield made


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TABLE)
@pytest.mark.filterwarnings("ignore:overflow encountered")  # in sums for tokens beyond the last, which are not kept
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_logits(name: str, models: Models) -> None:
    model = models[name]
    want = model.want[:FEW]
    assert error(logits(model.folder, GpuBackend(), TOKENS[:FEW], at_once=True), want) < 1e-4
    assert error(logits(model.file, GpuBackend(), TOKENS[:2], at_once=False), want[:2]) < 1e-4
