"""What a report finds in a model: errors, codes and scales as worked out here, and advice that can be followed."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize as oracle

from octavo.errors import GGUFError, UsageError
from octavo.evals.report import measure
from octavo.evals.report.advice import advise, command, option
from octavo.evals.report.findings import EDGES, ModelFindings, total_error, widths
from octavo.evals.report.pictures import MOST_ROWS, grid
from octavo.evals.report.tensor_labels import TensorName, label, place
from octavo.formats import FORMATS, by_name
from octavo.io.gguf import GGUFFile
from octavo.quantizers import Choices, quantize_file
from tests.quantizers import small

DOWN = "blk.1.ffn_down_exps.weight"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Weights of which one tensor has a long tail, which costs it precision."""
    down = small.weights()[DOWN].astype(np.float32)
    down[:, ::3, ::7] *= 6
    return str(small.write(tmp_path_factory.mktemp("report") / "base.gguf", {DOWN: down.astype(np.float16)}))


@pytest.fixture(scope="module")
def made(base: str) -> str:
    path = base.replace("base", "made")
    quantize_file(base, path, "Q4_K_M", choices=Choices(tensor_types=((r"blk\.3\.attn_v", "IQ4_NL"),)), threads=1)
    return path


def values(path: str, name: str) -> np.ndarray:
    """A tensor's values as float64, by the gguf package's decoder."""
    with GGUFFile.open(path) as file:
        tensor = file.tensor(name)
        got = oracle(np.array(tensor.data), GGMLQuantizationType(tensor.format.gguf))
        return got.astype(np.float64)


def test_errors_are_those_of_all_values(base: str, made: str) -> None:
    found = measure(made, base)
    assert (found.basis, found.preset, found.name, found.arch) == ("measured", "Q4_K_M", "small", "llama")
    lost = power = 0.0
    for t in found.tensors:
        x, y = values(base, t.name), values(made, t.name)
        assert t.error == pytest.approx(np.linalg.norm(y - x) / np.linalg.norm(x), rel=1e-5)
        lost, power = lost + ((y - x) ** 2).sum(), power + (x**2).sum()
    assert found.error == pytest.approx((lost / power) ** 0.5, rel=1e-5)
    assert max(found.matrices, key=lambda t: t.error or 0).name == DOWN
    assert {t.type for t in found.tensors} == {"F32", "Q4_K", "Q6_K", "IQ4_NL"}
    assert total_error([]) is None


def test_quantizing_said_the_same(base: str, tmp_path: Path) -> None:
    path = tmp_path / "made.gguf"
    rows = quantize_file(base, path, "Q3_K_M", threads=1).rows
    got = {t.name: t.error for t in measure(path, base).tensors}
    for row in rows:
        assert got[row.name] == pytest.approx(row.error or 0.0, rel=1e-5)


def test_the_sample_says_how_codes_and_scales_lie(made: str) -> None:
    found = {t.name: t for t in measure(made).tensors}
    t = found["blk.3.attn_v.weight"]
    with GGUFFile.open(made) as file:
        blocks = file.tensor(t.name).data.reshape(-1, 18)
    d = np.abs(blocks[:, :2].copy().view(np.float16).astype(np.float64)).reshape(-1)
    codes = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1)
    assert t.codes is not None
    np.testing.assert_array_equal(t.codes, np.bincount(codes.reshape(-1), minlength=16))
    assert t.steps is not None
    gap = np.median(widths(by_name("IQ4_NL")))
    assert [t.steps.low, t.steps.median, t.steps.high] == pytest.approx(list(gap * np.percentile(d, (5, 50, 95))))
    assert t.steps.zeros == 0
    x = values(made, t.name)
    assert t.weights.rms == pytest.approx(np.sqrt((x**2).mean()))
    assert t.weights.largest == pytest.approx(np.abs(x).max())
    np.testing.assert_array_equal(t.weights.counts, np.histogram(x / np.sqrt((x**2).mean()), EDGES)[0])
    assert found["output_norm.weight"].codes is None


@pytest.mark.parametrize("fmt", [f for f in FORMATS if not f.is_float], ids=lambda f: f.name)
def test_widths_are_the_gaps_around_a_code(fmt: object) -> None:
    got = widths(fmt)  # type: ignore[arg-type]
    assert len(got) == 1 << fmt.bits  # type: ignore[attr-defined]
    assert (got > 0).all()
    if fmt.table is None:  # type: ignore[attr-defined]
        assert (got == 1).all()


def test_widths_of_a_table() -> None:
    got = widths(by_name("IQ4_NL"))
    assert got[[0, 1, 15]].tolist() == [23, 22, 24]
    assert widths(by_name("MXFP4"))[[0, 8, 1, 9, 7]].tolist() == [1, 1, 1, 1, 4]


def test_estimates_are_near_what_is_measured(base: str, made: str) -> None:
    estimated, measured = measure(made), measure(made, base)
    assert (estimated.basis, estimated.base) == ("estimated", None)
    for guess, known in zip(estimated.tensors, measured.tensors, strict=True):
        if known.type == "F32":
            assert guess.error is None
        else:
            assert guess.error == pytest.approx(known.error, rel=0.35)
    assert estimated.error == pytest.approx(measured.error, rel=0.35)


def test_floats_are_tried_with_a_preset(base: str, tmp_path: Path) -> None:
    found = measure(base, threads=1)
    assert (found.basis, found.trial, found.base) == ("trial", "Q4_K_M", base)
    rows = {row.name: row for row in quantize_file(base, tmp_path / "q.gguf", "Q4_K_M", threads=1).rows}
    for t in found.tensors:
        assert t.error_type == rows[t.name].type
        assert t.error == pytest.approx(rows[t.name].error or 0.0, rel=1e-5)


def test_a_file_against_itself(made: str) -> None:
    assert all(t.error == 0 for t in measure(made, made).tensors)
    assert advise(measure(made, made)) == []


def test_values_that_are_not_finite(base: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights = small.weights()
    weights["blk.0.attn_v.weight"][3, 5:7] = np.nan, np.inf
    bad = small.write(tmp_path / "bad.gguf", weights)
    for found in (measure(bad, base), measure(bad)):
        t = next(t for t in found.tensors if t.name == "blk.0.attn_v.weight")
        assert (t.bad, t.error) == (2, None)
        assert sum(t.bad for t in found.tensors) == 2
        assert found.error is not None
        assert np.isfinite(found.error)
    assert "NaN or Inf in 1 tensors, the first is 'blk.0.attn_v.weight'" in caplog.text


def test_values_whose_squares_float32_does_not_hold(tmp_path: Path) -> None:
    one, other = (small.write(tmp_path / name, {"output.weight": np.full((2, 256), x, np.float32)})
                  for name, x in (("one.gguf", 1e30), ("other.gguf", 1.25e30)))
    t = next(t for t in measure(other, one).tensors if t.name == "output.weight")
    assert (t.error, t.bad) == (pytest.approx(0.25), 0)


def test_a_tensor_that_the_base_lacks(base: str, tmp_path: Path) -> None:
    found = measure(small.write(tmp_path / "more.gguf", {"extra.weight": np.ones((2, 32), np.float32)}), base)
    t = next(t for t in found.tensors if t.name == "extra.weight")
    assert (t.error, t.base_type) == (None, None)


def test_files_that_do_not_belong_together(base: str, tmp_path: Path) -> None:
    other = small.write(tmp_path / "other.gguf", {"output.weight": np.ones((17, 256), np.float32)})
    with pytest.raises(UsageError, match=r"'output\.weight' is \[17, 256\] in .* and \[16, 256\] in"):
        measure(other, base)
    with pytest.raises(UsageError, match="no tensor in common"):
        measure(base, _renamed(tmp_path))
    (tmp_path / "empty.gguf").write_bytes(b"")
    with pytest.raises(GGUFError, match="empty"):
        measure(tmp_path / "empty.gguf")


def _renamed(folder: Path) -> Path:
    from octavo.io.gguf import write_gguf

    write_gguf(folder / "named.gguf", "llama", small.KEYS, {"x.weight": np.ones((2, 32), np.float32)})
    return folder / "named.gguf"


def test_advice_halves_the_largest_error(base: str, made: str, tmp_path: Path) -> None:
    found = measure(made, base)
    first = next(a for a in advise(found) if a.tensor.name == DOWN)
    assert first.type is not None
    assert first.error is not None
    assert first.error <= (first.tensor.error or 0) / 2
    target = tmp_path / "better.gguf"
    choices = _choices(option(first, [t.name for t in found.tensors]))
    quantize_file(base, target, "Q4_K_M", choices=choices, threads=1)
    better = {t.name: t for t in measure(target, base).tensors}
    assert better[DOWN].type == first.type
    assert better[DOWN].error == pytest.approx(first.error, rel=1e-4)
    assert better[DOWN].nbytes == first.tensor.nbytes + first.bytes
    assert [t.name for t in found.tensors if better[t.name].type != t.type] == [DOWN, "blk.3.attn_v.weight"]


def _choices(given: str) -> Choices:
    words = shlex.split(given)
    pairs = [words[i + 1].rpartition("=") for i, word in enumerate(words) if word == "--tensor-type"]
    return Choices(tensor_types=tuple((pattern, kind) for pattern, _, kind in pairs))


def test_advice_without_a_base_has_a_bit_more(made: str) -> None:
    found = measure(made)
    got = advise(found)
    assert command(found, got) is None
    assert [a.error for a in got] == [None] * len(got)
    bits = {"IQ4_NL": 4, "Q4_K": 4, "Q6_K": 6}
    for a in got:
        assert a.type is not None
        assert by_name(a.type).bits > bits[a.tensor.type]
        assert a.bytes > 0


def test_advice_ranks_by_what_errors_cost(base: str, made: str) -> None:
    """Not by the errors, which are those of types: an error of the output counts whole, one of a layer in part."""
    found = measure(made, base)
    costs = [found.cost(a.tensor) for a in advise(found)]
    assert costs == sorted(costs, reverse=True)
    assert found.sensitivity["output.weight"] == max(found.sensitivity.values())
    twice = replace(found, tensors=tuple(replace(t, error=0.07) if t.error else t for t in found.tensors))
    assert advise(twice, 1)[0].tensor.name == "output.weight"


def test_the_command_is_as_large_as_all_of_it(base: str, made: str) -> None:
    found = measure(made, base)
    got = advise(found)
    words = shlex.split(command(found, got) or "")
    assert words[:5] == ["octavo", "quantize", base, "made-better.gguf", "--target-bpw"]
    bits = 8 * (found.nbytes + sum(a.bytes for a in got)) / found.size
    assert bits <= float(words[5]) <= bits + 0.02
    assert len(words) == 6
    weighed = replace(found, imatrix="my files/imatrix.gguf")
    words = shlex.split(command(weighed, got, "notes one.txt") or "")
    assert words[6:] == ["--text", "notes one.txt", "--imatrix", "my files/imatrix.gguf"]
    assert command(replace(found, base=str(Path(base).parent)), got) is None, "a folder can't be quantized to a size"


@pytest.mark.parametrize(
    "name", ["output.weight", "blk.0.attn_v.weight", "blk.0.it's $(x).weight", "blk.1.a+b=c.weight"]
)
def test_an_option_means_one_tensor(base: str, made: str, name: str) -> None:
    names = ["output.weight", "attn_output.weight", "blk.0.attn_v.weight", "blk.10.attn_v.weight",
             "xblk.0.attn_v.weight", "blk.0.attn_v.weight_b", "blk.0.it's $(x).weight",
             "blk.1.a+b=c.weight"]
    advice = advise(measure(made, base))[0]
    moved = type(advice)(_named(advice.tensor, name), "Q6_K")
    (pattern,) = _choices(option(moved, names)).patterns
    assert [n for n in names if pattern[0].search(n)] == [name]
    assert pattern[1].name == "Q6_K"


def _named(tensor: object, name: str) -> object:
    from dataclasses import replace

    return replace(tensor, name=name)  # type: ignore[type-var]


def test_places() -> None:
    assert place("blk.12.ffn_down.weight") == TensorName(12, "ffn_down")
    assert place("output.weight") == TensorName(None, "output")
    assert place("blk.9999999.x.weight") == TensorName(None, "blk.9999999.x")
    assert place("blk.3.a\nb.bias") == TensorName(3, "a\nb.bias")
    assert label("naïve\n$x$") == "na?ve?$x$"
    assert len(label("x" * 1000)) == 24


def test_the_grid_has_a_field_for_each_matrix(base: str, made: str) -> None:
    found = measure(made, base)
    got = grid(found)
    assert got.rows == ["0", "1", "2", "3", "token_embd", "output"]
    assert sorted(got.columns) == ["attn_v", "ffn_down_exps", "ffn_gate_inp"]
    assert len({(c.row, c.column) for c in got.cells}) == len(got.cells) == len(found.matrices)
    for cell in got.cells[:-2]:
        assert cell.tensor.place == TensorName(int(got.rows[cell.row]), got.columns[cell.column])


def test_many_layers_share_rows(made: str) -> None:
    found = measure(made)
    one = next(t for t in found.matrices if t.name == DOWN)
    many = tuple(_named(one, f"blk.{3 * i}.k{i % 40}.weight") for i in range(5000))
    got = grid(ModelFindings(**{**vars(found), "tensors": many}))
    assert len(got.rows) <= MOST_ROWS
    assert (len(got.columns), got.left_out) == (10, 30)
    assert re.fullmatch(r"0-\d+", got.rows[0])
