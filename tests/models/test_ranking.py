"""Rerankers give the scores that `transformers` gives, from checkpoint folders and from GGUF files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import octavo
from octavo.convert import convert_checkpoint
from octavo.errors import ContextFullError, ModelError, UsageError
from octavo.io.gguf import GGUFFile, write_gguf
from tests.convert.folders import edit, roberta, unigram, word_piece, write
from tests.models.embedding_checkpoints import ENDS, KINDS, MODERN, ROBERTA, SIZES, modern_bert, save
from tests.sampling import slow

QUERY = "What is provided?"
DOCUMENTS = ["the software", "a notice of copyright, é", "to"]
TOKENIZERS = {"XLMRoberta": unigram, "Roberta": roberta, "Bert": partial(word_piece, 320), "ModernBert": modern_bert}
OPTIONS: dict[str, dict[str, Any]] = {"Bert": {}, "ModernBert": MODERN | {"classifier_pooling": "mean"}}
TEMPLATE = "<|begin|>Judge: {query}\n<Document>: {document}<|end|>\nno"


def encoder(folder: Path, name: str) -> np.ndarray:
    """Save a random reranker to a folder; gives its scores."""
    torch.manual_seed(3)
    config = getattr(transformers, f"{name}Config")(**SIZES | OPTIONS.get(name, ROBERTA), num_labels=1)
    model = getattr(transformers, f"{name}ForSequenceClassification")(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    tokenizer = TOKENIZERS[name]()
    tokenizer.save(str(folder / "tokenizer.json"))
    write(folder, "tokenizer_config.json", {} if name in OPTIONS else ENDS)
    with torch.no_grad():
        pairs = [tokenizer.encode(QUERY, document) for document in DOCUMENTS]
        kinds = [{} if name == "ModernBert" else {"token_type_ids": torch.tensor([pair.type_ids])} for pair in pairs]
        ids = [torch.tensor([pair.ids]) for pair in pairs]
        return np.array([model(i, **kind).logits[0, 0].item() for i, kind in zip(ids, kinds, strict=True)])


@pytest.fixture
def ranker(tmp_path: Path) -> Path:
    encoder(tmp_path, "XLMRoberta")
    return tmp_path


@pytest.mark.parametrize("name", ["XLMRoberta", slow("Roberta"), "Bert", slow("ModernBert")])
def test_scores_of_an_encoder(tmp_path: Path, name: str) -> None:
    want = encoder(tmp_path, name)
    convert_checkpoint(tmp_path, tmp_path / "m.gguf", "F32")
    for path in (tmp_path, tmp_path / "m.gguf"):
        with octavo.load(path, device="reference") as model:
            got = model.rank(QUERY, DOCUMENTS)
            assert got.dtype == np.float32
            np.testing.assert_allclose(got, want, atol=1e-5)
            assert model.rank(QUERY, []).shape == (0,)


def qwen(path: Path, *, template: str = TEMPLATE, scores: int = 2) -> tuple[Any, torch.Tensor]:
    """Write a GGUF file of a reranker that generates; what it is made of, and its classifier."""
    made = save(path.parent, KINDS["qwen3"])
    convert_checkpoint(path.parent, path.with_suffix(".plain.gguf"), "F32")
    head = torch.randn(scores, SIZES["hidden_size"])
    with GGUFFile.open(path.with_suffix(".plain.gguf")) as file:
        metadata = {key: file.metadata[key] for key in file.metadata if key != "general.architecture"}
        metadata |= {"qwen3.pooling_type": 4, "qwen3.classifier.output_labels": ["yes", "no"]}
        tensors: dict[str, Any] = {name: file.tensor(name) for name in file.tensors}
        tensors["cls.output.weight"] = head.numpy()
        write_gguf(path, "qwen3", metadata | {"tokenizer.chat_template.rerank": template}, tensors)
    return made, head


def test_scores_of_a_model_that_generates(tmp_path: Path) -> None:
    made, head = qwen(tmp_path / "m.gguf")
    want = []
    for document in DOCUMENTS:
        text = TEMPLATE.replace("{query}", QUERY).replace("{document}", document)
        want.append(torch.softmax(head @ made.vectors(text)[-1], 0)[0].item())
    with octavo.load(tmp_path / "m.gguf", device="reference") as model:
        np.testing.assert_allclose(model.rank(QUERY, DOCUMENTS), want, atol=1e-5)
        assert model.embed("a", pooling="last").shape == (1, SIZES["hidden_size"])


def test_what_a_reranker_is_asked(ranker: Path) -> None:
    with octavo.load(ranker, device="reference", n_ctx=16) as model:
        with pytest.raises(UsageError, match=r"is a reranker, which scores documents: use `octavo rank`"):
            model.embed("a")
        with pytest.raises(UsageError, match="query is 3"):
            model.rank(3, ["a"])  # type: ignore[arg-type]
        with pytest.raises(ContextFullError, match=r"text 1, of .* tokens, does not fit"):
            model.rank(QUERY, ["a", "the " * 30])


def test_what_is_no_reranker(tmp_path: Path) -> None:
    no_scores = r"is not a reranker: it has no tensor cls.output.weight"
    with octavo.load("demo", device="reference") as model, pytest.raises(ModelError, match=no_scores):
        model.rank("a", ["b"])
    path = tmp_path / "m.gguf"
    qwen(path, template="{query} only")
    no_text = r"chat_template.rerank: has no {query} and {document}"
    with octavo.load(path, device="reference") as model, pytest.raises(ModelError, match=no_text):
        model.rank("a", ["b"])


def test_other_classifiers_are_refused(ranker: Path) -> None:
    edit(ranker, "config.json", id2label={"0": "a", "1": "b"})
    with pytest.raises(ModelError, match=r"id2label: is of .*2.* labels"):
        octavo.load(ranker, device="reference")


def test_what_is_berts_own(tmp_path: Path) -> None:
    """The kind of a second text's tokens tells, and a file needs the pooler, which llama.cpp's converter leaves out."""
    encoder(tmp_path, "Bert")
    with octavo.load(tmp_path, device="reference") as model:
        ranker, a, b = model.embedder, *model.tokenizer.encode_pair("the software", "the software")
        assert (a[0], b[-1]) == (model.tokenizer.bos_id, a[-1])
        one, two = (ranker.vectors_of([a + b], [second])[0] for second in (0, len(b)))
        assert np.abs(one - two).max() > 0.01
        assert model.embed("the", pooling="cls").shape == (1, SIZES["hidden_size"])
        file = model.file
        metadata = {key: file.metadata[key] for key in file.metadata if key != "general.architecture"}
        tensors: dict[str, Any] = {n: file.tensor(n) for n in file.tensors if n not in ("cls.weight", "cls.bias")}
        write_gguf(tmp_path / "without.gguf", "bert", metadata, tensors)
    missing = r"cls.weight: is missing: llama.cpp's converter drops BERT's pooler"
    with octavo.load(tmp_path / "without.gguf", device="reference") as model, pytest.raises(ModelError, match=missing):
        model.rank("a", ["b"])
