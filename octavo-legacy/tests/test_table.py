"""The table of architectures and devices, as in `tests/models/test_table.py`, and names as in `test_names.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from legacy_cases import CASES
from octavo.huggingface.config.config_json import classes_of
from octavo.models.shared.refusal import LEGACY
from octavo.models.shared.registry import installed
from tests.huggingface import test_class_docs as docs
from tests.models import test_names as names
from tests.models import test_table as table
from tests.models.table import Models, made_in
from tests.models.tiny_checkpoints import is_slow
from tests.sampling import slow

FORMER = {"ChatGLMForConditionalGeneration", "MPTForCausalLM", "BloomModel"}
"""Other names of classes that the table has."""
table.OTHER_NAMES.update(internlm2="InternLM2ForCausalLM", deepseek="DeepseekForCausalLM")
names.NEWER.update(
    refact=("attn_q",), plamo2=tuple(f"{n}_norm" for n in ("attn_q", "attn_k", "ssm_b", "ssm_c", "ssm_dt"))
)
names.CHANGED["arwkv7"] = {"self_attn": "attention", "time_mixer.": ""}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    with made_in(tmp_path_factory.mktemp("table")) as made:
        yield made


def test_no_class_is_left_out() -> None:
    classes = {name.partition(" with ")[0] for name in classes_of(installed().values())}
    assert {table.transformers_class(case) for case in CASES.values()} == classes - FORMER
    assert {case.arch for case in CASES.values()} == set(installed())


def test_octavo_knows_what_this_package_has() -> None:
    """It says how to install it where a model needs it."""
    classes = {name.partition(" with ")[0] for name in classes_of(installed().values())}
    assert set(installed()) | classes == LEGACY
    assert {architecture.name for architecture in installed().values()} == set(installed())


@pytest.mark.parametrize("name", classes_of(installed().values()))
def test_a_row_names_the_class(name: str) -> None:
    row = next((row for row in docs.ROWS if re.search(rf"\b{name}\b", row)), None)
    assert row is not None
    assert re.search(rf"\b{classes_of(installed().values())[name].name}\b", row.split("|")[1])


WEIGHTS = [(name, kind) for name in CASES for kind in ("Q4_K", "Q8_0") if not name.endswith("-odd")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), WEIGHTS)
def test_quantized_weights_are_their_values(name: str, kind: str, tmp_path: Path) -> None:
    table.test_quantized_weights_are_their_values(name, kind, tmp_path)


CELLS = [(name, device) for name in CASES for device in ("reference", "cpu")]


@pytest.mark.parametrize(("name", "device"), [slow(cell) if is_slow(*cell) else cell for cell in CELLS])
def test_logits(name: str, device: str, models: Models) -> None:
    table.test_logits(name, device, models)


@pytest.mark.parametrize("name", installed())
def test_modules_of_checkpoints_are_named_as_converters_name_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names.test_modules_of_checkpoints_are_named_as_converters_name_them(name, monkeypatch)


@pytest.mark.parametrize("name", installed())
def test_keys_of_an_architectures_own_are_known(name: str) -> None:
    names.test_keys_of_an_architectures_own_are_known(name)
