"""Whole models in layouts that other tools publish, on the GPU backend with its kernels interpreted."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.backends.gpu import GpuBackend
from octavo.huggingface import open_model_file
from octavo.models import read_model
from octavo.runtime.engine.engine import Engine, EngineConfig
from tests.backends.gpu.rounding_bounds import reference
from tests.backends.row_products import nmse
from tests.huggingface.published_layouts import COMPUTED
from tests.huggingface.published_models import TOKENS, publish, says_what_the_reference_says
from tests.huggingface.test_published_heads import publish_latent

pytestmark = [
    pytest.mark.slow, pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:overflow encountered"),  # in sums for tokens beyond the last, which are not kept
    pytest.mark.filterwarnings("ignore:invalid value encountered"),
]


def check(folder: Path) -> None:
    """Logits of one prompt, and the text of 32 replies at once."""
    expected, allowed = reference(folder, TOKENS)
    with open_model_file(folder) as file:
        got = Engine(read_model(file), [GpuBackend()], EngineConfig(n_ctx=64, strict=True)).logits(TOKENS)
    assert nmse(got, expected) < allowed
    says_what_the_reference_says(folder, GpuBackend(), allowed)


@pytest.mark.parametrize("name", COMPUTED)
def test_logits(tmp_path: Path, name: str) -> None:
    publish(tmp_path, name)
    check(tmp_path)


@pytest.mark.parametrize("name", ["gptq-act-order", "ct-nvfp4", "fp8-block"])
def test_latent_attention(tmp_path: Path, name: str) -> None:
    publish_latent(tmp_path, name)
    check(tmp_path)
