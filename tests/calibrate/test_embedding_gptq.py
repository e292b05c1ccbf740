"""Rows of an embedding whose errors make up for each other in what reads them, and runs that look up what was made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.calibrate.gguf import gguf_method
from octavo.calibrate.runner import Layerwise, Samples
from octavo.formats import QTensor, by_name, dequantize
from octavo.formats.spec import F32
from octavo.graph.stages import stages
from octavo.io.gguf import GGUFFile
from octavo.models import ModelSpec, read_model
from octavo.quantizers.encoding.encoder import encode
from tests.runtime import tiny

NAME, FORMAT = "token_embd.weight", by_name("Q4_K")


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelSpec]:
    """A tiny model whose rows are 256 values."""
    tiny.widen(monkeypatch)
    with GGUFFile.open(tiny.write(tmp_path / "model.gguf")) as file:
        yield read_model(file)


def lost(spec: ModelSpec, off: F32) -> float:
    """What errors of rows come to in q, k and v, each next to what such a product gives of noise, and as they are."""
    values = {name: dequantize(spec.file.tensor(f"blk.0.{name}.weight")) for name in ("attn_q", "attn_k", "attn_v")}
    norm, k = dequantize(spec.file.tensor("blk.0.attn_norm.weight")), off.shape[1]
    given = [w * norm for w in values.values()]
    shares = [np.square(off @ w.T, dtype=np.float64).sum() / np.square(w, dtype=np.float64).sum() for w in given]
    return float(np.mean(shares) * k + np.square(off, dtype=np.float64).sum())


def test_rows_lose_less_in_what_reads_them(spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    table, parts = spec.file.tensor(NAME), stages(spec.graph(n_ctx=8))
    found = gguf_method.embedding_rows(table, FORMAT, parts, None, 1)
    assert found is not None
    rows = dequantize(table)
    alone = dequantize(QTensor(FORMAT, rows.shape, encode(rows, FORMAT)))
    after, before = lost(spec, dequantize(found.tensor(FORMAT, rows.shape)) - rows), lost(spec, alone - rows)
    assert after < 0.95 * before
    assert found.error == pytest.approx((after / lost(spec, rows)) ** 0.5, rel=1e-3)
    assert found.error < found.before
    monkeypatch.setattr(gguf_method, "VALUES", 256 * 5)
    some = gguf_method.embedding_rows(table, FORMAT, parts, None, 1)
    assert some is not None
    np.testing.assert_array_equal(some.data, found.data)


def test_a_table_that_nothing_reads_is_left(spec: ModelSpec) -> None:
    parts = stages(spec.graph(n_ctx=8))
    table = spec.file.tensor(NAME)
    other = QTensor(table.format, table.shape, table.data, "other.weight")
    assert gguf_method.embedding_rows(other, FORMAT, parts, None, 1) is None
    assert gguf_method.embedding_rows(table, FORMAT, parts[:1], None, 1) is None


def test_what_was_made_is_looked_up_but_in_the_original(spec: ModelSpec) -> None:
    rows = dequantize(spec.file.tensor(NAME))
    packed = encode(rows, FORMAT)
    tables = {NAME: QTensor(FORMAT, rows.shape, packed, NAME)}
    tokens = [1, 5, 2]
    run = Layerwise(spec, [ReferenceBackend()], Samples([tokens]), original=True, tables=tables)
    given = next(stage for stage in run.run() if stage.inputs).inputs[0]
    assert given.original is not None
    norm = dequantize(spec.file.tensor("blk.0.attn_norm.weight"))
    for vectors, looked in ((given.vectors, dequantize(tables[NAME])), (given.original[0], rows)):
        x = looked[tokens]
        want = x / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + 1e-5) * norm
        np.testing.assert_allclose(vectors, want, rtol=1e-4, atol=1e-5)
