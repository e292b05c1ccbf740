"""What is done to every class: folds, adapters, stages, a GPU's kernels, and warnings about keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from legacy_cases import CASES
from tests.backends.gpu.weights import test_table as gpu
from tests.calibrate import test_layerwise as layerwise
from tests.calibrate.fold import test_same_logits as folds
from tests.huggingface import test_unread as unread
from tests.models import test_lora as lora
from tests.models.table import Models, made_in, save_only
from tests.sampling import slow

folds.BEHIND.update({"bloom", "rwkv6", "arwkv7", "plamo2"})
folds.STAYING.update({"rwkv6", "rwkv6-odd", "arwkv7", "arwkv7-odd"})
folds.GATED.update({"rwkv6", "arwkv7"})
folds.FIXED.update({
    **dict.fromkeys(("olmo-clipped", "mpt-clipped"), 0.75), **dict.fromkeys(("arwkv7", "arwkv7-odd"), 0.8),
    **dict.fromkeys(("rwkv6", "rwkv6-odd"), 1),
})
lora.COLUMNS.add("jais")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[folds.Models]:
    with ExitStack() as stack:
        yield folds.Models(tmp_path_factory.mktemp("folds"), stack)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    with made_in(tmp_path_factory.mktemp("table")) as made:
        yield made


QUICK = [("bloom", "scales"), ("openelm", "orders")]


@pytest.mark.parametrize(("name", "kind"), [c if c in QUICK else slow(c) for c in product(CASES, folds.KINDS)])
def test_scales_and_orders(name: str, kind: folds.Kind, folders: folds.Models) -> None:
    folds.test_scales_and_orders(name, kind, folders)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_rotations(name: str, folders: folds.Models) -> None:
    folds.test_rotations(name, folders)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_adapters(name: str, tmp_path: Path) -> None:
    lora.test_every_class(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_stages(name: str, models: Models) -> None:
    layerwise.test_every_class_of_checkpoint(name, models)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:overflow encountered")  # in sums for tokens beyond the last, which are not kept
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_logits_of_a_gpu(name: str, models: Models) -> None:
    gpu.test_logits(name, models)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_folders_say_nothing_that_is_not_read(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_only(tmp_path, CASES[name])
    assert not unread._lines(tmp_path, caplog)


@pytest.mark.parametrize(("name", "values", "named"), [
    ("mpt", {"attn_config": {"attn_uses_sequence_id": True, "attn_impl": "torch"}},
     "attn_config.attn_uses_sequence_id True"),
    ("dbrx", {"ffn_config": {"ffn_hidden_size": 256, "moe_num_experts": 6, "moe_top_k": 2, "moe_bias_rate": 0.1}},
     "ffn_config.moe_bias_rate 0.1"),
])
def test_objects_of_other_kinds(
    name: str, values: dict[str, Any], named: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unread.test_objects_of_other_kinds(name, values, named, tmp_path, caplog)
