"""The table of a quantization: what a method did, what it would take, and of how many tensors codes are exact."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.cli.quantize.quantize_table import show
from octavo.quantizers.job.job_report import Report, TensorRow
from octavo.quantizers.job.scheme_method import FoldScales, StaticInput

ROW = TensorRow("blk.0.attn_q.weight", (64, 32), "F32", "INT8", 8192, 2048, error=0.02)
INPUT = StaticInput(("blk.0.attn_q.weight",), 0.5, 60.0, 3, 4096, 0.04, 0.03, 0.01, used=True, scheme="int8-w8a8")


def lines(report: Report, capsys: pytest.CaptureFixture[str]) -> list[str]:
    show(report)
    return capsys.readouterr().out.splitlines()


def test_what_a_method_did(capsys: pytest.CaptureFixture[str]) -> None:
    inputs = [INPUT, replace(INPUT, used=False), replace(INPUT, scheme="fp8")]
    scaled = [
        FoldScales("blk.0.attn_norm", "awq", 0.5, 2e-3, 1e-3), FoldScales("blk.0.ffn_norm", "ones", None, 1.0, 1.0)
    ]
    plain = replace(ROW, name="output.weight", type="F32", nbytes=8192, error=None)
    rows = [replace(ROW, before=0.05, how="gptq"), plain]
    found = lines(Report("a", "b", "int8-w8a8", False, scaled=scaled, inputs=inputs, rows=rows), capsys)
    first, other = found[1:3]
    assert first.split()[-4:] == ["5.000%", "->", "2.000%^", "gptq"]
    assert "%" not in other
    begin, end = f"{INPUT.names[0]}: inputs up to 60, ", "relative error 4.000% -> 3.000%, of tokens 1.000%"
    assert found[3:] == [
        "blk.0.attn_norm: awq with 0.5, mean square error 0.002 -> 0.001",
        f"{begin}scale 0.5, 3 of 4,096 values cut off, {end}",
        f"{begin}a scale for each token, {end}",
        f"{begin}scale 0.5, 3 of 4,096 values cut off, fp8, {end}",
        "^ relative error of the layer's outputs over the calibration text: rounded -> by the method",
        "relative error of 1 tensor: 2.000% (root mean square over their values)",
        "b is int8-w8a8: 10.2 kB of tensors, from 16.4 kB; 20.00 bits per weight",
    ]


def test_blocks_that_were_treated_alike_share_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [replace(ROW, name=f"blk.{i}.attn_q.weight", error=error) for i, error in enumerate((0.03, 0.04, 0.02, 0.1))]
    rows += [replace(ROW, name="blk.5.attn_q.weight"), replace(ROW, name="blk.5.attn_k.weight", shape=(8, 32))]
    rows[2] = replace(rows[2], type="FP8")
    found = lines(Report("a", "b", "Q4_K_M", False, rows=rows), capsys)
    shown = [[line.split()[0], *line.split()[-5:]] for line in found[1:4]]
    assert shown[0] == ["blk.0-1,3,5.attn_q.weight", "8.2", "kB", "2.000%", "to", "10.000%"]
    assert [cells[0] for cells in shown[1:]] == ["blk.2.attn_q.weight", "blk.5.attn_k.weight"]
    total = ((9 + 16 + 4 + 100 + 4) * 64 + 4 * 8) / (5 * 64 + 8)
    assert found[4].startswith(f"relative error of 6 tensors: {total**0.5:.3f}% ")


def test_weighted_errors_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    found = lines(Report("a", "b", "Q4_K_M", False, rows=[replace(ROW, weighted=True)]), capsys)
    assert found[1].endswith("2.000%*")
    assert found[2] == "* weighted by importance"


def test_types_of_a_checkpoint_and_how_many_are_exact(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        replace(ROW, source_type="GROUP4_128_F16", type="Q4_1", exact=True),
        replace(ROW, source_type="GROUP4_128_F16", type="Q4_1", exact=False),
        replace(ROW, shape=(64, 16), type="F16"),
        replace(ROW, shape=(64,), type="F32"),
    ]
    found = lines(Report("a", "b", "COPY", False, layout="gptq", rows=rows), capsys)
    assert found[1].split()[-1] == "exact"
    assert found[-1].startswith("b is Q4_1, F16 (1 of 2 quantized tensors exactly): ")
    assert " of gptq; " in found[-1]


def test_a_preset_none_of_whose_blocks_fit_is_told_with_its_types(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [replace(ROW, type=kind) for kind in ("Q4_0", "Q8_0", "F32")]
    assert lines(Report("a", "b", "Q2_K", False, rows=rows), capsys)[-1].startswith("b is Q2_K (as Q4_0, Q8_0): ")
    rows.append(replace(ROW, type="Q2_K"))
    assert lines(Report("a", "b", "Q2_K", False, rows=rows), capsys)[-1].startswith("b is Q2_K: ")
