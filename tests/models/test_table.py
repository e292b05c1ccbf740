"""The table of architectures and devices: logits of transformers, from checkpoint folders and from GGUF files.

Each cell takes a prompt at once from the folder and token by token from the file, past every window. Those of GPUs are
in `tests/backends/gpu/weights/test_table.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.backends.cpu import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.huggingface import open_model_file
from octavo.huggingface.config.config_json import own_classes
from octavo.io.gguf import GGUFFile
from octavo.models import ARCHITECTURES
from tests.models.checkpoints import PICTURES, Case
from tests.models.table import TOKENS, Models, error, in_format, logits, made_in, saved
from tests.models.tiny_checkpoints import TABLE, is_slow, wide
from tests.sampling import slow

FEW = 24
"""Tokens that go one by one."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    with made_in(tmp_path_factory.mktemp("table")) as made:
        yield made


FORMER = {"Ernie4_5_ForCausalLM", "PhiMoEForCausalLM", "Step3p5ForCausalLM"}
"""Other names of classes that the table has."""


OTHER_NAMES = {
    "gpt2": "GPT2LMHeadModel", "exaone": "ExaoneForCausalLM", "bailingmoe2": "BailingMoeV2ForCausalLM",
}
"""Of classes by architecture; of all but GPT-2 transformers has another that computes the same."""


def transformers_class(case: Case) -> str:
    if case.config in PICTURES:
        return case.config.removesuffix("Config") + "ForConditionalGeneration"
    return (
        case.folder
        or OTHER_NAMES.get(case.arch)
        or case.config.removesuffix("Config").removesuffix("Text") + "ForCausalLM"
    )


def test_no_class_is_left_out() -> None:
    """Those that give no logits are in `test_embeddings.py`."""
    generating = {name for name, arch in ARCHITECTURES.items() if not arch.encoder}
    classes = {c.partition(" with ")[0] for c, arch in own_classes().items() if not arch.encoder} - FORMER
    assert {transformers_class(case) for case in TABLE.values()} == classes
    assert {case.arch for case in TABLE.values()} == generating


WEIGHTS = [(name, kind) for name in TABLE for kind in ("Q4_K", "Q8_0") if not name.endswith("-odd")]


@pytest.mark.parametrize(("name", "kind"), [c if c == ("qwen3", "Q4_K") else slow(c) for c in WEIGHTS])
def test_quantized_weights_are_their_values(name: str, kind: str, tmp_path: Path) -> None:
    """Activations are float32 on the reference, so nothing but weights differs."""
    case = TABLE[name]
    saved(tmp_path / "hf", replace(case, options=wide(case.options)))
    with open_model_file(tmp_path / "hf") as folder:
        paths = in_format(folder, tmp_path / "m", kind)
    found = []
    for path in paths:
        with GGUFFile.open(path) as file:
            found.append(logits(file, ReferenceBackend(), TOKENS, at_once=True))
    assert error(*found) < 1e-5


CELLS = [(name, device) for name in TABLE for device in ("reference", "cpu")]


@pytest.mark.few(48)
@pytest.mark.parametrize(("name", "device"), [slow(cell) if is_slow(*cell) else cell for cell in CELLS])
def test_logits(name: str, device: str, models: Models) -> None:
    model, backend = models[name], ReferenceBackend() if device == "reference" else CpuBackend(threads=2)
    assert error(logits(model.folder, backend, TOKENS, at_once=True), model.want) < 1e-4
    assert error(logits(model.file, backend, TOKENS[:FEW], at_once=False), model.want[:FEW]) < 1e-4
