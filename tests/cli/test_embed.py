"""`octavo embed`: vectors, their cosines, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Run
from tests.models.embedding_checkpoints import KINDS, save
from tests.models.test_ranking import encoder


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("bert")
    save(folder, KINDS["bert"])
    return str(folder)


@pytest.fixture
def embed(octavo: Run, bert: str) -> Run:
    return lambda *arguments, **more: octavo("embed", bert, *arguments, "--device", "reference", **more)


def test_cosines_of_texts(embed: Run) -> None:
    lines = embed("a cat", "the software", "a cat").out.splitlines()
    assert lines[0].split() == ["text", "1", "2", "3"]
    assert lines[1].split()[:4] == ["1", "a", "cat", "1.000"]
    assert lines[1].split()[-1] == "1.000"


def test_vectors_as_json_and_in_a_file(embed: Run, tmp_path: Path) -> None:
    found = json.loads(embed("a", "b c", "--json").out)
    target = tmp_path / "v.npy"
    assert embed("-o", str(target), stdin=b"a\n\nb c\n").out == ""
    stored = np.load(target)
    assert (stored.dtype, stored.shape) == (np.float32, (2, 128))
    np.testing.assert_allclose(found["embeddings"], stored, rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(stored, axis=1), 1, rtol=1e-6)
    long = json.loads(embed("a", "--json", "--no-normalize", "--pooling", "mean").out)["embeddings"]
    assert abs(np.linalg.norm(long) - 1) > 1e-3
    each = json.loads(embed("the software", "--json", "--pooling", "none").out)["embeddings"]
    assert np.shape(each)[0] == 1
    assert np.shape(each)[1] > 2


def test_inspect_names_the_command(octavo: Run, bert: str) -> None:
    got = octavo("inspect", bert)
    assert got.status == 0
    assert "yes, with octavo embed" in got.out
    found = json.loads(octavo("inspect", bert, "--json").out)["facts"]
    assert (found["runs"], found["command"]) == (True, "embed")


def test_lines_end_with_newlines_alone(embed: Run, tmp_path: Path) -> None:
    target = tmp_path / "v.npy"
    said = f"octavo: {target}: 2 rows of 128 numbers\n"
    assert embed("-o", str(target), stdin="a\u2028b\x0cc\r\nthe software\n\n".encode()).err == said
    assert len(np.load(target)) == 2
    assert (
        embed("-o", str(target), stdin=b"a\n\nb\n").err
        == f"octavo: WARNING: 1 of 3 lines are empty and left out\n{said}"
    )


def test_one_text(embed: Run) -> None:
    assert embed("a cat").out.startswith("a cat: 128 numbers\n")


def test_what_is_refused(embed: Run, octavo: Run, bert: str) -> None:
    assert "no texts given" in embed(stdin=b"\n").error()
    assert "--output stores a vector per text: use --pooling" in embed("a", "-o", "x.npy", "--pooling", "none").error()
    assert "is an embedding model, which generates no text: `octavo embed`" in octavo("run", bert, "hi").error()
    said = octavo("embed", "demo", "a", "--device", "reference").error()
    assert said.endswith("to mean, cls or last to use it anyway")
    said = octavo("rank", "demo", "a", "b", "--device", "reference").error()
    assert said.endswith("demo.gguf: is not a reranker: it has no tensor cls.output.weight")
    assert "gives no logits" in octavo("profile", bert, "--device", "reference").error()


def test_ranks(octavo: Run, tmp_path: Path) -> None:
    encoder(tmp_path, "XLMRoberta")
    rank = ("rank", str(tmp_path), "a query", "--device", "reference")
    lines = octavo(*rank, "the software", "to").out.splitlines()
    assert lines[0].split() == ["score", "document"]
    assert sorted(line.split()[1:] for line in lines[1:]) == [["1", "the", "software"], ["2", "to"]]
    results = json.loads(octavo(*rank, "--json", stdin=b"the software\nto\n").out)["results"]
    assert [f"{entry['score']:.4f}" for entry in results] == [line.split()[0] for line in lines[1:]]
    assert results[0]["score"] >= results[1]["score"]
    assert "is a reranker" in octavo("embed", str(tmp_path), "a", "--device", "reference").error()


@pytest.mark.parametrize("command", [["run", "hi"], ["eval ppl", "demo"], ["imatrix", "demo", "-o", "x"]], ids=str)
def test_a_model_of_another_kind_is_refused_before_it_is_loaded(
    octavo: Run, bert: str, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.runtime.engine.engine.Engine.load", lambda engine: pytest.fail("weights are read"))
    name, *rest = command
    assert "is an embedding model" in octavo(*name.split(), bert, *rest).error()


def test_embed_refuses_a_chat_model_before_it_is_loaded(octavo: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.runtime.engine.engine.Engine.load", lambda engine: pytest.fail("weights are read"))
    assert "is not an embedding model: it does not say how to pool" in octavo("embed", "demo", "x").error()


def test_a_folder_made_from_a_gguf_file_pools_as_that(octavo: Run, tmp_path: Path) -> None:
    save(tmp_path / "hf", KINDS["qwen3"])
    file, made = str(tmp_path / "f16.gguf"), str(tmp_path / "w8")
    assert octavo("convert", str(tmp_path / "hf"), file).status == 0
    assert octavo("quantize", file, made, "--scheme", "int8-w8a8").out.endswith(f"next: octavo embed {made}\n")
    texts = ("a cat", "the software", "--json", "--device", "reference")
    want, got = (json.loads(octavo("embed", path, *texts).out)["embeddings"] for path in (file, made))
    assert np.sum(np.multiply(want, got), axis=1) == pytest.approx(1, abs=1e-2), "the last token, as in the file"


def test_a_quantized_folder_pools_as_the_one_that_it_was_made_from(octavo: Run, bert: str, tmp_path: Path) -> None:
    made, file = str(tmp_path / "w8"), str(tmp_path / "f16.gguf")
    for target, command in ((made, ("quantize", bert, made, "--scheme", "int8-w8a8")), (file, ("convert", bert, file))):
        assert octavo(*command).out.splitlines()[-1].endswith(f"next: octavo embed {target}")
        assert octavo("embed", target, "a cat", "a kitten", "--device", "reference").status == 0
    for name in ("modules.json", "1_Pooling/config.json"):
        assert (Path(made) / name).read_bytes() == (Path(bert) / name).read_bytes()
