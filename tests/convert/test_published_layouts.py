"""Quantized folders to GGUF: exactly where a type holds them, else Q8_0 with a warning, and floats if asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.convert import convert_checkpoint
from octavo.errors import UsageError
from octavo.formats import dequantize
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile
from tests.huggingface.published_layouts import PUBLISHED
from tests.huggingface.published_models import publish
from tests.sampling import slow

EXACT = {
    "gptq-v1": "Q4_0", "gptq-8": None, "awq-gemm": "Q5_0", "gptq-2": "Q4_0", "gptq-3": "Q4_0", "ct-w8a16": "Q8_0",
    "ct-mxfp4": "MXFP4", "ct-nvfp4": "NVFP4", "mlx-4": "Q4_1", "fp8-block": None, "gptq-act-order": None,
    "qqq-g128": None, "gptq-16": None, "ct-w8a8": None,
}
"""The type that a layout becomes; None for Q8_0 as the nearest."""
QUICK = ("awq-gemm", "gptq-act-order")


def values(file: GGUFFile, name: str) -> np.ndarray:
    """A weight times its scale, its columns in the order of the activation."""
    got, stem = dequantize(file.tensor(name)), name.removesuffix("weight")
    if f"{stem}scale" in file.tensors:
        got = got * dequantize(file.tensor(f"{stem}scale"))
    if f"{stem}order" in file.tensors:
        natural = np.empty_like(got)
        natural[:, dequantize(file.tensor(f"{stem}order")).astype(int)] = got
        return natural
    return got


@pytest.mark.parametrize("name", [*QUICK, *(slow(name) for name in EXACT if name not in QUICK)])
def test_types_that_hold_a_layout(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    publish(tmp_path / "hf", name)
    report = convert_checkpoint(tmp_path / "hf", tmp_path / "out.gguf")
    assert ("no GGUF type holds" in caplog.text) == (EXACT[name] is None)
    assert ("--type F32 is exact, and larger" in caplog.text) == (EXACT[name] is None)
    row = next(row for row in report.rows if row.name == "blk.1.attn_output.weight")
    rows = PUBLISHED[name].rows
    assert (row.source_type, row.type) == (f"{rows} by g_idx" if "order" in name else rows, EXACT[name] or "Q8_0")
    assert row.exact is (EXACT[name] is not None)
    assert report.layout is not None
    assert name.startswith((report.layout, *{"compressed-tensors": ["ct"]}.get(report.layout, ())))
    with open_model_file(tmp_path / "hf") as folder, open_model_file(tmp_path / "out.gguf") as file:
        for weight in ("blk.0.attn_q.weight", "blk.1.attn_output.weight"):
            assert file.tensors[weight].type_name == (EXACT[name] or "Q8_0")
            got, want = values(file, weight), values(folder, weight)
            if EXACT[name]:
                np.testing.assert_array_equal(got, want)
            else:
                assert np.abs(got - want).max() < 0.005 * np.abs(want).max()
        assert not any(tensor.endswith(".order") for tensor in file.tensors)


def test_an_order_that_rows_of_gate_and_up_take_in(tmp_path: Path) -> None:
    publish(tmp_path / "hf", "gptq-act-order")
    report = convert_checkpoint(tmp_path / "hf", tmp_path / "out.gguf")
    row = next(row for row in report.rows if row.name == "blk.1.ffn_down.weight")
    assert (row.source_type, row.type, row.exact) == ("GROUP4_128_F16", "Q4_0", True)
    with open_model_file(tmp_path / "hf") as folder, open_model_file(tmp_path / "out.gguf") as file:
        np.testing.assert_array_equal(values(file, row.name), values(folder, row.name))


def test_floats_where_they_are_asked_for(tmp_path: Path) -> None:
    publish(tmp_path / "hf", "gptq-v1")
    convert_checkpoint(tmp_path / "hf", tmp_path / "out.gguf", "F32")
    with open_model_file(tmp_path / "hf") as folder, open_model_file(tmp_path / "out.gguf") as file:
        assert file.tensors["blk.0.attn_q.weight"].type_name == "F32"
        np.testing.assert_array_equal(values(file, "blk.0.attn_q.weight"), values(folder, "blk.0.attn_q.weight"))
    with pytest.raises(UsageError, match=r"type Q4_K_M for quantized weights \(allowed: auto"):
        convert_checkpoint(tmp_path / "hf", tmp_path / "out.gguf", "Q4_K_M")
