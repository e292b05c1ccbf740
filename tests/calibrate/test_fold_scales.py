"""Scales for whole models: they compute the same, and rounded they are nearer to what they were."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tools.methods.figures import groups_of_weights, rows_of_weights

from octavo.backends.reference import ReferenceBackend
from octavo.calibrate.fold import find_folds
from octavo.calibrate.fold.fold import ChangedFile, FoldPart, TensorChanges, scaled
from octavo.calibrate.methods.channel_scales import (
    METHODS,
    Rounding,
    smoothquant,
    tokens_int8,
)
from octavo.calibrate.runner import Samples
from octavo.calibrate.schemes.fold_scales import scale_model
from octavo.formats.spec import F32
from octavo.huggingface import open_model_file
from octavo.huggingface.tensors.tensor_names import is_linear
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from tests.models.table import TOKENS, error, logits, saved
from tests.models.tiny_checkpoints import TABLE
from tests.sampling import slow

SAMPLES = Samples([TOKENS[:60], TOKENS[10:70]])
FACTOR = 100.0


def with_outliers(file: GGUFFile) -> ChangedFile:
    """Three channels of each fold that products read made 100 times larger: the model computes the same."""
    changes = TensorChanges()
    for fold in find_folds(read_model(file)):
        if fold.readers and fold.name != "output_norm":
            scales = np.ones(fold.size)
            scales[[3, 11, 17]] = 1 / FACTOR
            changes.add_fold(fold, partial(_scaled, scales))
    return ChangedFile(file, changes)


def _scaled(scales: np.ndarray, part: FoldPart, values: F32) -> F32:
    return scaled(part, scales, values)


def rounded(file: GGUFFile, rounding: Rounding) -> ChangedFile:
    """The model with its linear layers' weights rounded."""
    changes = TensorChanges()
    for name, info in file.tensors.items():
        if is_linear(name) and len(info.shape) == 2:
            changes.add(name, rounding)
    return ChangedFile(file, changes)


def logits_of(file: GGUFFile) -> F32:
    return logits(file, ReferenceBackend(), TOKENS[:40], at_once=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("smoothing")

    def made(name: str) -> Path:
        if not (root / name).exists():
            saved(root / name, TABLE[name])
        return root / name

    return made


@pytest.mark.parametrize("name", ["llama", slow("mixtral"), slow("deepseek2-v3"), slow("qwen2moe")])
def test_outliers_are_found_and_repaired(name: str, folder: Callable[[str], Path]) -> None:
    with open_model_file(folder(name)) as file:
        spoiled = with_outliers(file)
        found = scale_model(spoiled, [ReferenceBackend()], SAMPLES, smoothquant, rows_of_weights(8), tokens_int8)
        assert error(logits_of(found.file), logits_of(file)) < 1e-4
    assert all(choice.after <= choice.before for choice in found.choices)
    assert len({choice.fold for choice in found.choices}) == len(found.choices)
    large = [choice for choice in found.choices if choice.setting is not None]
    assert len(large) >= 0.5 * len(found.choices)
    assert np.median([choice.after / choice.before for choice in large]) < 0.2
    assert {name.rpartition(".")[2] for name in found.left} == {"cache_k", "output_norm"}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_weights_of_4_bits_lose_less(method: str, folder: Callable[[str], Path]) -> None:
    """Columns next to those of outliers are what a group's scale is for."""
    rounding = groups_of_weights(4, 32)
    with open_model_file(folder("llama")) as file:
        want, spoiled = logits_of(file), with_outliers(file)
        found = scale_model(spoiled, [ReferenceBackend()], SAMPLES, METHODS[method], rounding)
        errors = [error(logits_of(rounded(f, rounding)), want) for f in (spoiled, found.file)]
    assert errors[1] < errors[0]
