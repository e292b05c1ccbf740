"""Embedding models on the GPU, kernels interpreted: what `transformers` gives, as nearly as float16 keys allow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.backends.gpu import GpuBackend
from octavo.huggingface import open_model_file
from octavo.models import read_model
from octavo.runtime.text_embedding import Embedder, embedding_engine
from octavo.text import Tokenizer
from tests.models.embedding_checkpoints import KINDS, save

TEXTS = ["The software is provided", "as is, to any one"]


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_embeddings(name: str, tmp_path: Path) -> None:
    original = save(tmp_path, KINDS[name])
    want = np.stack([original.embed(text, KINDS[name].pooling).numpy() for text in TEXTS])
    with open_model_file(tmp_path) as file:
        engine = embedding_engine(read_model(file), [GpuBackend()], n_ctx=64, strict=True)
        got = Embedder(engine, Tokenizer.from_gguf(file)).embed(TEXTS, None, normalize=True)
    assert np.abs(got - want).max() < 2e-3
    assert (got * want).sum(1).min() > 0.99999
