"""Python blocks of docs/ that name files of the reader run, over real files of these names."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from octavo.data import demo_model_path
from octavo.runtime import Model
from tests.limits import HANG_S
from tests.models.embedding_checkpoints import KINDS, save
from tests.test_docs import BLOCK, OF_THE_READER, PAGES, ROOT

DOCS = ROOT / "docs"
FEW = ("--samples", "2", "-c", "64")

MODELS = ("model-f16.gguf", "f16.gguf", "model.gguf")
TEXTS = ("text.txt", "wiki.test.raw", "notes.txt")


def blocks() -> Iterator[object]:
    """Each that `test_docs` only compiles."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            if OF_THE_READER.search(re.sub(r"#.*", "", match[1])) and ">>>" not in match[1]:
                line = text.count("\n", 0, match.start()) + 2
                lacks = "import ollama" in match[1] and find_spec("ollama") is None
                only = pytest.mark.skipif(lacks, reason="needs ollama, see tests/server/test_clients.py")
                yield pytest.param(match[1], id=f"{page.name}:{line}", marks=only)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the blocks name."""
    from octavo.evals.activation_squares import collect_imatrix
    from octavo.evals.eval_model import open_subject
    from octavo.quantizers import quantize_file

    made = tmp_path_factory.mktemp("reader")
    for name in MODELS:
        (made / name).symlink_to(demo_model_path())
    text = "\n".join(f"What is {a} times {b}? {a} times {b} is {a * b}." for a in range(12, 24) for b in range(3, 9))
    asked = [{"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions",
              "body": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}} for i in range(2)]
    (made / "requests.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in asked))
    for name in TEXTS:
        (made / name).write_text(text[:1200] if name == "notes.txt" else text)
    for name in ("q4.gguf", "model-q4.gguf"):
        quantize_file("demo", made / name, "Q4_K_M")
    with open_subject("demo", 64, fuse=False) as model:
        collect_imatrix(model, model.tokenizer.encode(text), context=64, chunks=2, path=str(made / "imatrix.gguf"))
    command("calibrate", "demo", str(made / "text.txt"), "-o", str(made / "stats.safetensors"), *FEW)
    save(made / "bge-small.gguf", KINDS["bert"])
    (loud,) = (match[1] for match in BLOCK.finditer((DOCS / "lora.md").read_text("utf-8")) if "loud.gguf" in match[1])
    with contextlib.chdir(made):
        exec(loud, {})
    (made / "folder" / "of").mkdir(parents=True)
    for name in ("adapter.gguf", "folder/of/another"):
        shutil.copy(made / "loud.gguf", made / name)
    (made / "loud.gguf").unlink()
    return made


def command(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "octavo", *words], check=True, capture_output=True, timeout=HANG_S)


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Of a server of the demo model."""
    words = [sys.executable, "-m", "octavo", "serve", "demo", "--port", "0", "--data-dir", str(tmp_path / "data")]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = next(filter(None, (re.search(r"is served at http://.*:(\d+)", line) for line in process.stderr)))
        yield int(found[1])
        process.terminate()


@pytest.mark.few(4)
@pytest.mark.parametrize("code", list(blocks()))
def test_block(code: str, folder: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    if served := re.search(r"127\.0\.0\.1:(8080|11434)", code):
        code = code.replace(served[0], f"127.0.0.1:{request.getfixturevalue('port')}")
    names: dict[str, object] = {"__name__": "__main__"}
    with contextlib.chdir(tmp_path):
        exec(code, names)
    for made in names.values():
        if isinstance(made, Model) or type(made).__module__.startswith("ollama."):
            made.close()  # type: ignore[attr-defined]


def test_they_are_there() -> None:
    assert len(list(blocks())) >= 13
