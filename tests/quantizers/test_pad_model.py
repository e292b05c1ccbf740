"""A model with more channels, in another order, computes what it did before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.evals.eval_model import open_subject
from tests.runtime import tiny


@pytest.fixture
def pad(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")
    from pad_model import pad

    return pad


@pytest.mark.parametrize(("arch", "width", "seed"), [("llama", 396, None), ("llama", 396, 0), ("qwen3", 264, 0)])
def test_it_is_an_equal_model(tmp_path: Path, pad, arch: str, width: int, seed: int | None) -> None:
    """4 heads in 264 channels become 6 in 396, F16 both; another architecture's channels are put in another order."""
    weights = {n: v.astype(np.float16) if v.ndim > 1 else v for n, v in tiny.tensors(arch).items()}
    source = tiny.write(tmp_path / "source.gguf", arch, weights=weights)
    pad(source, tmp_path / "padded.gguf", width, seed)
    found = []
    for path in (source, tmp_path / "padded.gguf"):
        with open_subject(path, 64, device="reference", cache_type="f32") as model:
            found.append(model.logits(list(range(40, 70))))
            assert model.file.tensors["token_embd.weight"].type_name == "F16"
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-4 * np.abs(found[0]).max())


def test_channels_do_not_lie_as_before(tmp_path: Path, pad) -> None:
    from octavo.formats import dequantize
    from octavo.io.gguf import GGUFFile

    source = tiny.write(tmp_path / "source.gguf", "llama")
    pad(source, tmp_path / "padded.gguf", 396)
    with GGUFFile.open(tmp_path / "padded.gguf") as file:
        rows = dequantize(file.tensor("token_embd.weight"))
    assert rows.shape == (tiny.N_VOCAB, 396)
    empty = np.flatnonzero((rows == 0).all(axis=0))
    assert len(empty) == 132
    assert 0 < empty[0] < 66  # not all at the end
    assert empty[-1] > 330


@pytest.mark.parametrize(("arch", "width"), [("llama", 100), ("llama", 300), ("qwen3", 396)])
def test_a_width_that_a_model_can_not_have(tmp_path: Path, pad, arch: str, width: int) -> None:
    with pytest.raises(ValueError, match=f"can't have {width}"):
        pad(tiny.write(tmp_path / "source.gguf", arch), tmp_path / "padded.gguf", width)
