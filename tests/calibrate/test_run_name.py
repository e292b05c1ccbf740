"""What a run is of: any change of the model, the text or an option gives it another name, and nothing else does."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.calibrate import collect_statistics
from octavo.calibrate.run_name import run_name
from octavo.calibrate.runner import Samples
from octavo.calibrate.runner.journal import PARTS, differing
from octavo.errors import UsageError
from octavo.evals import collect_imatrix
from octavo.huggingface import open_model_file
from octavo.quantizers.imatrix import Imatrix
from octavo.quantizers.statistics.statistics_file import Statistics
from octavo.runtime import EngineConfig, open_model
from octavo.runtime.lora_adapters import Lora, chosen, located
from tests.calibrate.resumable_runs import Start, start
from tests.calibrate.test_stopped import stop
from tests.convert.folders import edit, save
from tests.evals.conftest import Open
from tests.evals.test_importance import CONTEXT, TINY_TOKENS
from tests.models.adapters import factors, write_lora_gguf
from tests.models.checkpoints import CASES
from tests.runtime import tiny

__all__ = ["start"]

SAMPLES = Samples([[1, 2, 3], [4]])
CHANGED = "blk.1.ffn_down.weight"


def named(path: str | Path, samples: Samples = SAMPLES, *options: object, lora: Lora | None = None) -> str:
    with open_model_file(path) as file:
        return run_name(file, samples, *options, lora=located(chosen(lora)))


def fine_tuned(path: Path) -> str:
    """The tiny model with one value another, by an ulp; as large, and written when `path` was, if it is there."""
    weights = tiny.tensors("qwen3")
    weights[CHANGED][-1, -1] = np.nextafter(weights[CHANGED][-1, -1], 2, dtype=np.float32)
    times = os.stat(path) if path.exists() else None
    tiny.write(path, weights=weights)
    if times is not None:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return str(path)


def adapter(path: Path, seed: int) -> str:
    pair = {"blk.0.ffn_up.weight": factors(tiny.N_FF, tiny.N_EMBD, seed=seed)}
    return str(write_lora_gguf(path, pair, "qwen3"))


def test_what_makes_another_run(tmp_path: Path) -> None:
    src = tiny.write(tmp_path / "src.gguf")
    adapters = [adapter(tmp_path / f"lora{seed}.gguf", seed) for seed in (0, 1)]
    names = [
        named(src),
        named(src, SAMPLES, 1),
        named(src, Samples([[1, 2], [3, 4]])),
        named(fine_tuned(tmp_path / "tuned.gguf")),
        named(tiny.write(tmp_path / "rope.gguf", keys={"qwen3.rope.freq_base": 20000.0})),
        named(src, lora=adapters[0]),
        named(src, lora=adapters[1]),
        named(src, lora={adapters[0]: 0.5}),
    ]
    assert len(set(names)) == len(names)
    assert [differing(names[0], name) for name in names[1:]] == [PARTS[2], PARTS[1], *[PARTS[0]] * 5]
    assert differing(names[0], named(src, Samples([[1]]), 1)) == f"{PARTS[1]} and {PARTS[2]}"


def test_a_copy_is_the_same_model(tmp_path: Path) -> None:
    src = tiny.write(tmp_path / "src.gguf")
    (tmp_path / "elsewhere").mkdir()
    copy = shutil.copy(src, tmp_path / "elsewhere/b.gguf")
    os.utime(copy, (1, 1))
    assert named(copy) == named(src)


def test_what_makes_another_folder(tmp_path: Path) -> None:
    """What its configuration says, and its weights; neither its name nor what else lies in it."""
    folder = tmp_path / "a"
    save(folder, CASES["llama"])
    first = named(folder)
    shutil.copytree(folder, tmp_path / "b")
    (tmp_path / "b/notes.txt").write_text("mine")
    assert named(tmp_path / "b") == first
    edit(folder, "config.json", rms_norm_eps=1e-3)
    second = named(folder)
    edit(folder, "tokenizer_config.json", add_bos_token=True)
    third = named(folder)
    weights = tmp_path / "b/model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert len({first, second, third, named(tmp_path / "b")}) == 4


def test_an_imatrix_of_another_model(open_tiny: Open, tmp_path: Path) -> None:
    """Of a fine-tune, whose tensors have the same names, shapes and types; interrupted or not."""
    path, weights = tmp_path / "m.gguf", tiny.tensors("qwen3")
    weights[CHANGED][-1, -1] += 1
    for chunks in (1, None):
        collect_imatrix(open_tiny(fuse=False), TINY_TOKENS, context=CONTEXT, path=path, chunks=chunks)
        before = path.read_bytes()
        with pytest.raises(UsageError, match=r"m\.gguf is the importance matrix of another model"):
            collect_imatrix(open_tiny(weights=weights, fuse=False), TINY_TOKENS, context=CONTEXT, path=path)
        assert path.read_bytes() == before


def test_an_imatrix_of_a_model_with_another_adapter(tmp_path: Path) -> None:
    src, out = tiny.write(tmp_path / "src.gguf"), tmp_path / "m.gguf"
    lora = adapter(tmp_path / "lora.gguf", 0)
    config = EngineConfig(n_ctx=64, cache_type="f32", fuse=False)
    with open_model(src, [ReferenceBackend()], config) as model:
        collect_imatrix(model, TINY_TOKENS, context=CONTEXT, path=out, chunks=1)
    with open_model(src, [ReferenceBackend()], config, ((lora, 1.0),)) as model, pytest.raises(UsageError):
        collect_imatrix(model, TINY_TOKENS, context=CONTEXT, path=out)


def test_an_imatrix_of_other_caches(open_tiny: Open, tmp_path: Path) -> None:
    collect_imatrix(open_tiny(fuse=False), TINY_TOKENS, context=CONTEXT, path=tmp_path / "m.gguf", chunks=1)
    with pytest.raises(UsageError, match="context or option"):
        collect_imatrix(open_tiny(fuse=False, cache_type="f16"), TINY_TOKENS, context=CONTEXT, path=tmp_path / "m.gguf")


def test_an_imatrix_of_more_windows_than_asked_for(open_tiny: Open, tmp_path: Path) -> None:
    model, path = open_tiny(fuse=False), tmp_path / "m.gguf"
    collect_imatrix(model, TINY_TOKENS, context=CONTEXT, path=path, chunks=3)
    with pytest.raises(UsageError, match="is of 3 windows already, more than 2"):
        collect_imatrix(model, TINY_TOKENS, context=CONTEXT, path=path, chunks=2)


def test_an_imatrix_that_does_not_say_what_it_is_of(open_tiny: Open, tmp_path: Path) -> None:
    """As llama.cpp's: it goes into a quantization, but no run goes on from it."""
    model, path = open_tiny(fuse=False), tmp_path / "m.gguf"
    matrix = collect_imatrix(model, TINY_TOKENS, context=CONTEXT, chunks=1)
    matrix.save(path)
    assert Imatrix.load(path).run == ""
    with pytest.raises(UsageError, match="does not say of which model and text it is"):
        collect_imatrix(model, TINY_TOKENS, context=CONTEXT, path=path)


@pytest.mark.few(2)
def test_a_run_that_was_stopped_is_not_gone_on_with_over_another_model(start: Start, tmp_path: Path) -> None:
    """Not even over one that lies in the same place, is as large and was written at the same time."""
    path = tmp_path / "src.gguf"
    src = tiny.write(path)
    with pytest.raises(KeyboardInterrupt):
        start(src, progress=stop)
    kept = {file.name: file.read_bytes() for file in (tmp_path / "out.work").iterdir()}
    with pytest.raises(UsageError, match="of a run with another model: give the same"):
        start(fine_tuned(path), resume=True)
    assert {file.name: file.read_bytes() for file in (tmp_path / "out.work").iterdir()} == kept
    tiny.write(path)
    start(src, resume=True)
    assert not (tmp_path / "out.work").exists()


def test_statistics_say_of_which_model_they_are(text: str, tmp_path: Path) -> None:
    def digest(src: str) -> str:
        collect_statistics(src, text, tmp_path / "s.safetensors", context=32, device="reference")
        return Statistics.load(tmp_path / "s.safetensors").about["model_sha256"]

    src = tiny.write(tmp_path / "src.gguf")
    first = digest(src)
    assert first == digest(src) != digest(fine_tuned(tmp_path / "src.gguf"))
