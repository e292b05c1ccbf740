"""`octavo convert`: a folder to a file that runs, JSON, and errors in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.io.gguf import GGUFFile
from tests.cli.conftest import Run
from tests.convert import folders
from tests.models import embedding_checkpoints
from tests.models.checkpoints import CASES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("hf")
    folders.save(path, CASES["qwen3"], dtype="bfloat16")
    return str(path)


def test_the_file_runs(octavo: Run, folder: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out.gguf")
    got = octavo("convert", folder, out, "--type", "q8_0")
    assert (got.status, got.err) == (0, "")
    assert f"{out} is Q8_0: " in got.out
    assert octavo("run", out, "Hi", "-n", "2", "--temp", "0").status == 0


def test_json_and_options(octavo: Run, folder: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out.gguf")
    report = json.loads(octavo("convert", folder, out, "--json").out)
    assert (report["preset"], report["source"], report["target"]) == ("BF16", folder, out)
    octavo("convert", folder, out, "--type", "Q4_K_M", "--tensor-type", "attn_v=Q8_0", "--token-embedding-type", "F16")
    with GGUFFile.open(out) as file:
        types = {name: info.type_name for name, info in file.tensors.items()}
    assert (types["blk.0.attn_v.weight"], types["token_embd.weight"]) == ("Q8_0", "F16")


def test_errors_are_one_line(octavo: Run, folder: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out.gguf")
    assert "has no config.json" in octavo("convert", str(tmp_path), out).error()
    assert "'Q9' is not known" in octavo("convert", folder, out, "--type", "Q9").error()
    taken = "is a GGUF file already: `octavo quantize` makes other types of it"
    assert octavo("convert", "demo", out).error().endswith(f"demo.gguf: {taken}")
    assert "is a safetensors file: give the folder" in octavo("convert", f"{folder}/model.safetensors", out).error()
    assert "there is no such file or folder" in octavo("convert", "./none", out).error()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80")
    assert "is a pickle" in octavo("convert", str(tmp_path), out).error()
    assert not Path(out).exists()


def test_a_target_that_is_the_name_of_a_folder(octavo: Run, tmp_path: Path) -> None:
    for target in (str(tmp_path / "new") + "/", str(tmp_path)):
        got = octavo("quantize", "demo", target, "Q8_0")
        assert "folder" in got.error()
    assert list(tmp_path.iterdir()) == []


def test_an_embedding_model_goes_on_with_embed(octavo: Run, tmp_path: Path) -> None:
    embedding_checkpoints.save(tmp_path, embedding_checkpoints.KINDS["bert"])
    out = str(tmp_path / "m.gguf")
    assert octavo("convert", str(tmp_path), out, "--type", "F16").out.splitlines()[-1].endswith(f"octavo embed {out}")
    done = octavo("quantize", str(tmp_path), str(tmp_path / "int8"), "--scheme", "int8-w8a8").out.splitlines()[-1]
    assert done.endswith(f"octavo embed {tmp_path / 'int8'}")
