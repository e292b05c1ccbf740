"""What a command writes never takes the place of what it reads, however its path is spelled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from octavo.io.distinct_paths import MODEL, TEXT, model_files, require_apart, text_files
from tests.cli.conftest import Run
from tests.runtime import tiny

METHOD = ("--method", "gptq", "--calibration")


def spelled(path: Path, how: str) -> str:
    """The same file in other words."""
    if how == "dots":
        return os.path.join(path.parent, ".", path.name)
    if how == "link":
        (path.parent / "link").symlink_to(path)
    elif how == "hard link":
        (path.parent / "link").hardlink_to(path)
    return str(path if how == "plain" else path.parent / "link")


@pytest.mark.parametrize("how", ["plain", "dots", "link", "hard link"])
@pytest.mark.parametrize(
    ("arguments", "which", "said"),
    [
        (("calibrate", "MODEL", "TEXT", "-o", "OUT"), "MODEL", "the model that is read"),
        (("calibrate", "MODEL", "TEXT", "-o", "OUT"), "TEXT", "the text that is read"),
        (("calibrate", "MODEL", "TEXT", "-o", "s", "--cache-scales", "OUT"), "MODEL", "the model that is read"),
        (("calibrate", "MODEL", "TEXT", "-o", "s", "--cache-scales", "OUT"), "TEXT", "the text that is read"),
        (("imatrix", "MODEL", "TEXT", "--restart", "-o", "OUT"), "MODEL", "the model that is read"),
        (("imatrix", "MODEL", "TEXT", "--restart", "-o", "OUT"), "TEXT", "the text that is read"),
        (("quantize", "MODEL", "OUT", "Q8_0", *METHOD, "TEXT"), "TEXT", "the text that is read"),
        (("quantize", "MODEL", "OUT", "--target-bpw", "8.5", "--text", "TEXT"), "TEXT", "the text that is read"),
        (("report", "MODEL", "-o", "OUT", "--text", "TEXT"), "TEXT", "the text that is read"),
        (("bench", "model", "MODEL", "-o", "OUT"), "MODEL", "the model that is read"),
    ],
)
def test_what_is_read_is_not_written(
    octavo: Run, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], which: str,
    said: str, how: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.write(tmp_path / "tiny.gguf")
    (tmp_path / "some.txt").write_bytes(Path(text).read_bytes())
    files = {"MODEL": tmp_path / "tiny.gguf", "TEXT": tmp_path / "some.txt"}
    before = {name: file.read_bytes() for name, file in files.items()}
    out = spelled(files[which], how)
    given = [out if part == "OUT" else str(files.get(part, part)) for part in arguments]
    refused = octavo(*given, *(() if arguments[0] in ("report", "quantize", "bench") else ("-c", "32")))
    assert f"{out} is {said}; write to another file" in refused.error()
    assert {name: file.read_bytes() for name, file in files.items()} == before


def test_two_results_in_one_file(octavo: Run, text: str, tmp_path: Path) -> None:
    out = str(tmp_path / "s")
    model = tiny.write(tmp_path / "tiny.gguf")
    refused = octavo("calibrate", model, text, "-c", "32", "-o", out, "--cache-scales", str(tmp_path / "." / "s"))
    assert f"{out} is the file of -o; write to another file" in refused.error()


def test_an_importance_matrix(octavo: Run, text: str, tmp_path: Path) -> None:
    model, matrix = tiny.write(tmp_path / "tiny.gguf"), tmp_path / "i.gguf"
    octavo("imatrix", model, text, "-o", str(matrix), "-c", "64", "--chunks", "1", "--device", "reference")
    before = matrix.read_bytes()
    refused = octavo("quantize", model, str(matrix), "Q8_0", "--imatrix", str(matrix))
    assert "is the importance matrix that is read" in refused.error()
    assert matrix.read_bytes() == before


def test_files_of_a_folder(tmp_path: Path) -> None:
    """Those of the model, in folders of its parts too; what somebody keeps beside them may be written again."""
    for name in ("config.json", "model.safetensors", "2_Dense/model.safetensors", "stats.safetensors", "imatrix.gguf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    files = model_files(tmp_path, [str(tmp_path / "model.safetensors")])
    found = {os.path.relpath(path, tmp_path) for path in files} - {"."}
    assert found == {"config.json", "model.safetensors", "2_Dense/model.safetensors"}
    require_apart(tmp_path / "stats.safetensors", {MODEL: files, TEXT: text_files("demo", None)})
