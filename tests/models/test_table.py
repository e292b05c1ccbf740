"""The table of architectures and devices: logits of transformers, from checkpoint folders and from GGUF files.

Each cell takes a prompt at once from the folder and token by token from the file, past every window. Those of GPUs are
in `tests/backends/gpu/test_table.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from octavo.backends.cpu import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.huggingface.config import CLASSES
from octavo.models import ARCHITECTURES
from tests.models.checkpoints import Case
from tests.models.table import TOKENS, Models, error, logits, made_in
from tests.models.tiny_checkpoints import TABLE, is_slow
from tests.sampling import slow

FEW = 24
"""Tokens that go one by one."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    with made_in(tmp_path_factory.mktemp("table")) as made:
        yield made


def transformers_class(case: Case) -> str:
    return case.config.removesuffix("Config").removesuffix("Text") + "ForCausalLM"


def test_no_class_is_left_out() -> None:
    """Those that give no logits are in `test_embeddings.py`."""
    generating = {name for name, arch in ARCHITECTURES.items() if not arch.encoder}
    assert {transformers_class(case) for case in TABLE.values()} == {c for c, a in CLASSES.items() if not a.encoder}
    assert {case.arch for case in TABLE.values()} == generating


CELLS = [(name, device) for name in TABLE for device in ("reference", "cpu")]


@pytest.mark.parametrize(("name", "device"), [slow(cell) if is_slow(*cell) else cell for cell in CELLS])
def test_logits(name: str, device: str, models: Models) -> None:
    model, backend = models[name], ReferenceBackend() if device == "reference" else CpuBackend(threads=2)
    assert error(logits(model.folder, backend, TOKENS, at_once=True), model.want) < 1e-4
    assert error(logits(model.file, backend, TOKENS[:FEW], at_once=False), model.want[:FEW]) < 1e-4
