"""Parts of stored tensors hold what the whole has there, of every format, and read no more of a file."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tests.models.table import save_only
from tests.models.tiny_checkpoints import TABLE

from octavo.errors import QuantFormatError
from octavo.formats import FORMATS, QTensor, channel_format, dequantize, group_format, quantize_reference
from octavo.formats.part import TensorPart, column_multiple
from octavo.formats.rows import SCHEMES
from octavo.formats.spec import BlockFormat
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile, mapped_tensor, write_gguf
from octavo.io.gguf.source import OpenFile

WIDTH = 1024
BLOCKS = [fmt for fmt in FORMATS if fmt.encode] + [group_format(4, 128), group_format(3, 16, "BF16", "zero")]
ROWS = [channel_format(scheme.format, WIDTH) for scheme in SCHEMES.values()]


def tensor(fmt: BlockFormat, *outer: int) -> QTensor:
    return quantize_reference(np.random.default_rng(0).standard_normal((*outer, WIDTH)).astype(np.float32), fmt, "w")


@pytest.mark.parametrize("fmt", BLOCKS + ROWS, ids=lambda fmt: fmt.name)
def test_columns_and_rows_are_those_of_the_whole(fmt: BlockFormat) -> None:
    step = column_multiple(fmt)
    columns, rows = ((step, 2 * step), (512, WIDTH)) if step < 512 else ((512, WIDTH),), ((1, 3), (4, 5))
    whole = tensor(fmt, 5)
    part = TensorPart(whole, rows, columns)
    values = np.concatenate([dequantize(whole)[a:b] for a, b in rows])
    values = np.concatenate([values[:, a:b] for a, b in columns], axis=1)
    assert part.shape == values.shape
    np.testing.assert_array_equal(dequantize(part), values)
    np.testing.assert_array_equal(part.rows(slice(1, 3)), part.data[1:3])
    np.testing.assert_array_equal(part.take(np.array([2, 0])), part.data[[2, 0]])
    assert part.nbytes == part.data.nbytes


def test_experts() -> None:
    whole = tensor(BLOCKS[0], 4, 3)
    part = TensorPart(whole, rows=((1, 3),), columns=((0, 512),), experts=((0, 1), (2, 4)))
    np.testing.assert_array_equal(dequantize(part), dequantize(whole)[[0, 2, 3], 1:3, :512])
    np.testing.assert_array_equal(part.stored().rows(slice(1, 5)), part.data.reshape(6, -1)[1:5])


@pytest.mark.parametrize("name", ["Q4_K", "INT4"])
def test_columns_that_cut_a_block(name: str) -> None:
    fmt = channel_format(name, WIDTH) if name == "INT4" else next(f for f in FORMATS if f.name == name)
    with pytest.raises(QuantFormatError, match=f"of {name} .allowed: multiples of {column_multiple(fmt)}"):
        TensorPart(tensor(fmt, 2), columns=((0, 64),))


def test_only_the_part_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows that are not short; these are read whole, as a read each would take longer."""
    q4_k = next(f for f in FORMATS if f.name == "Q4_K")
    stored = tensor(q4_k, 8)
    write_gguf(tmp_path / "m.gguf", "llama", {}, {"w": stored})
    read = list[int]()
    fill = OpenFile.fill
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        monkeypatch.setattr(OpenFile, "fill", lambda self, out, *at: read.append(len(out)) or fill(self, out, *at))
        for part in (TensorPart(file.tensor("w"), ((2, 4),)), TensorPart(file.tensor("w"), columns=((256, 768),))):
            read.clear()
            assert part.stored() is part
            data = part.data
            assert sum(read) == (data.nbytes if part._columns is None else stored.nbytes)
            expected = dequantize(TensorPart(stored, part._rows, part._columns))
            np.testing.assert_array_equal(dequantize(part), expected)
            monkeypatch.setattr(mapped_tensor, "LONG_ROW", 0)
            read.clear()
            np.testing.assert_array_equal(dequantize(part), expected)
            assert sum(read) == part.nbytes
            monkeypatch.setattr(mapped_tensor, "LONG_ROW", 1 << 14)


@pytest.mark.parametrize(("case", "name"), [
    ("qwen3", "blk.0.ffn_down.weight"), ("qwen3moe", "blk.0.ffn_down_exps.weight"),
])
def test_of_a_checkpoint_only_the_part_is_read(
    case: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matrices of floats that lie in it as they are computed with, and stacks of such."""
    save_only(tmp_path, TABLE[case])
    monkeypatch.setattr(mapped_tensor, "LONG_ROW", 0)
    read = list[int]()
    fill = OpenFile.fill
    with open_model_file(tmp_path) as file:
        monkeypatch.setattr(OpenFile, "fill", lambda self, out, *at: read.append(len(out)) or fill(self, out, *at))
        whole = file.tensor(name)
        n, k = whole.shape[-2:]
        for rows, columns in ((((1, n // 2),), None), (None, ((0, 16), (k - 16, k)))):
            read.clear()
            part = TensorPart(whole, rows, columns).stored()
            data = part.rows(slice(0, math.prod(part.shape[:-1])))
            assert sum(read) == data.nbytes == part.nbytes
            values = dequantize(whole)[..., 1 if rows else 0 : n // 2 if rows else n, :]
            values = values if columns is None else values[..., [*range(16), *range(k - 16, k)]]
            np.testing.assert_array_equal(dequantize(part), values)
