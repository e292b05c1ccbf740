"""Statistics of a calibration as importances: those that an importance matrix of the same text has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.calibrate.statistics_run import collect_statistics
from octavo.calibrate.texts import read_text
from octavo.errors import FileError
from octavo.evals.activation_squares import collect_imatrix
from octavo.evals.eval_model import open_subject
from octavo.io.gguf import GGUFFile
from octavo.quantizers import Choices, Target, quantize_file, quantize_to_size
from octavo.quantizers.imatrix import Imatrix
from octavo.quantizers.job.importance import load_importance
from octavo.quantizers.statistics.statistics_file import Statistics
from tests.runtime import tiny


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    tiny.widen(monkeypatch)
    return tiny.write(tmp_path / "src.gguf", "qwen3moe")


@pytest.fixture
def text(tmp_path: Path) -> str:
    return tiny.write_letters(tmp_path / "text.txt", 128)


@pytest.fixture
def stats(model: str, text: str, tmp_path: Path) -> str:
    path = str(tmp_path / "stats.safetensors")
    collect_statistics(model, text, path, context=32, device="reference", threads=1)
    return path


def test_they_are_those_of_an_importance_matrix(model: str, text: str, stats: str, tmp_path: Path) -> None:
    path = tmp_path / "imatrix.gguf"
    with open_subject(model, 32, device="reference", threads=1, fuse=False) as loaded:
        want = collect_imatrix(loaded, read_text(text, loaded.tokenizer).tokens, context=32, path=path)
    found = load_importance(stats)
    assert found is not None
    assert found.entries.keys() == want.entries.keys()
    assert "blk.1.ffn_up_exps.weight" in found.entries
    for name, entry in want.entries.items():
        np.testing.assert_array_equal(found.entries[name].counts, entry.counts)
        np.testing.assert_allclose(found.entries[name].mean(), entry.mean(), rtol=1e-3, atol=1e-5)
    assert (found.datasets, found.chunk_count, found.chunk_size) == (("text.txt",), 4, 32)
    other = load_importance(path)
    assert other is not None
    assert other.entries.keys() == want.entries.keys()


@pytest.mark.slow
def test_a_file_is_quantized_by_them(model: str, stats: str, tmp_path: Path) -> None:
    as_matrix = load_importance(stats)
    assert as_matrix is not None
    as_matrix.save(tmp_path / "imatrix.gguf")
    made = {}
    for name, given in (("stats", stats), ("matrix", str(tmp_path / "imatrix.gguf")), ("none", None)):
        choices = Choices(pure=True)
        quantize_file(model, tmp_path / f"{name}.gguf", "Q4_0", imatrix=given, choices=choices, threads=1)
        with GGUFFile.open(tmp_path / f"{name}.gguf") as file:
            made[name] = {tensor: file.tensor(tensor).data.tobytes() for tensor in file.tensors}
            assert (file.metadata.get_str("quantize.imatrix.file", "") == given) == (given is not None)
    assert made["stats"] == made["matrix"] != made["none"]
    quantize_to_size(model, tmp_path / "fit.gguf", Target(7.0), imatrix=stats, threads=1)
    with GGUFFile.open(tmp_path / "fit.gguf") as file:
        assert file.metadata.get_str("quantize.imatrix.file") == stats


def test_statistics_of_no_weight_of_a_layer(stats: str, tmp_path: Path) -> None:
    whole = Statistics.load(stats)
    Statistics({"output.weight": whole.inputs["output.weight"]}).save(tmp_path / "output.safetensors")
    with pytest.raises(FileError, match=r"output.safetensors: has no statistics of a layer's weights"):
        load_importance(tmp_path / "output.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(Path(stats).read_bytes()[:100])
    with pytest.raises(FileError, match=r"cut.safetensors"):
        load_importance(tmp_path / "cut.safetensors")
    with pytest.raises(FileError, match=r"none\.gguf: can't be opened"):
        load_importance(tmp_path / "none.gguf")
    assert load_importance(None) is None
    assert load_importance(Imatrix()) is not None
