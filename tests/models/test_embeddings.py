"""Embedding models give what `transformers` gives, from checkpoint folders and from GGUF files."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import octavo
from octavo.convert import convert_checkpoint
from octavo.errors import ContextFullError, FileError, ModelError, OctavoError, UsageError
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile, write_gguf
from tests.convert import folders
from tests.models.embedding_checkpoints import KINDS, SIZES, Saved, save
from tests.models.table import in_format
from tests.models.tiny_checkpoints import wide
from tests.sampling import slow
from tests.server.live_server import running_model

TEXTS = ["a", "The software is provided as is.", "copyright " * 9, "Permission, é, and more of it than that", "to"]


@pytest.fixture(scope="module", params=KINDS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Saved]:
    folder = tmp_path_factory.mktemp(request.param)
    made = save(folder, KINDS[request.param])
    convert_checkpoint(folder, folder.with_suffix(".gguf"), "F32")
    return request.param, folder, made


def test_vectors_of_texts(saved: tuple[str, Path, Saved]) -> None:
    require_vectors(saved, "reference")


@pytest.mark.parametrize("saved", ["bert", *(slow(name) for name in KINDS if name != "bert")], indirect=True)
def test_vectors_of_texts_on_the_cpu(saved: tuple[str, Path, Saved]) -> None:
    require_vectors(saved, "cpu")


def require_vectors(saved: tuple[str, Path, Saved], device: str) -> None:
    name, folder, original = saved
    want = np.stack([original.embed(text, KINDS[name].pooling).numpy() for text in TEXTS])
    for path in (folder, folder.with_suffix(".gguf")):
        with octavo.load(path, device=device, threads=2, strict=True) as model:
            got = model.embed(TEXTS)
            assert got.dtype == np.float32
            np.testing.assert_allclose(got, want, atol=1e-5)
            assert np.abs(model.embed(TEXTS[1]) - want[1]).max() < 1e-5


def test_vectors_of_tokens_and_other_poolings(saved: tuple[str, Path, Saved]) -> None:
    name, folder, original = saved
    with octavo.load(folder, device="reference") as model:
        found = model.embed_tokens(TEXTS[:2])
        for text, rows in zip(TEXTS, found, strict=False):
            want = original.vectors(text).numpy()
            assert np.abs(rows - want).max() < 1e-4 * np.abs(want).max()
        last = model.embed(TEXTS[:2], pooling="last", normalize=False)
        if not KINDS[name].dense:
            np.testing.assert_allclose(last, [rows[-1] for rows in found], rtol=1e-5)


def test_an_embedding_model_generates_nothing(saved: tuple[str, Path, Saved]) -> None:
    _, folder, _ = saved
    with octavo.load(folder, device="reference") as model:
        for ask in (lambda: model.generate("a"), lambda: model.generate_many(["a"]), lambda: model.logits([1, 2])):
            with pytest.raises(UsageError, match="is an embedding model, which generates no text"):
                ask()


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    save(tmp_path, KINDS["bert"])
    return tmp_path


def test_texts_that_do_not_fit(bert: Path) -> None:
    with octavo.load(bert, device="reference", n_ctx=8) as model:
        with pytest.raises(ContextFullError, match="text 1, of 43 tokens, does not fit the context of 8"):
            model.embed(["a", "the " * 41])
        with pytest.raises(UsageError, match="texts"):
            model.embed([3])  # type: ignore[list-item]
        assert model.embed([]).shape == (0, 128)


def test_many_texts_take_several_steps(bert: Path) -> None:
    texts = [f"number {i} " * (i % 4 + 1) for i in range(40)]
    with octavo.load(bert, device="reference") as model:
        together = model.embed(texts)
        for i in (0, 19, 39):
            np.testing.assert_allclose(together[i], model.embed(texts[i])[0], atol=1e-5)


def test_a_generating_model_embeds_if_it_is_told_how() -> None:
    with octavo.load("demo", device="reference") as model:
        with pytest.raises(UsageError, match="does not say how to pool"):
            model.embed("a")
        assert model.embed(["12 * 7", "5"], pooling="mean").shape == (2, model.engine.model.hparams.n_embd)
        assert model.logits([1, 2]).shape == (2, model.n_vocab)


@pytest.mark.parametrize(("file", "change", "message"), [
    ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "pools by cls_token, max_tokens"),
    ("1_Pooling/config.json", {"pooling_mode": "weightedmean"}, "pools by weightedmean"),
    ("config.json", {"position_embedding_type": "relative_key"}, "position_embedding_type: is .*relative_key"),
    ("config.json", {"is_decoder": True}, "is_decoder: is true"),
    ("config.json", {"type_vocab_size": 3}, "type_vocab_size: is .*3"),
    ("config.json", {"hidden_act": "relu"}, "hidden_act: is .*relu.* .allowed: gelu"),
])
def test_what_is_refused(bert: Path, file: str, change: dict[str, object], message: str) -> None:
    path = bert / file
    folders.edit(path.parent, path.name, **change)
    with pytest.raises(OctavoError, match=message):
        octavo.load(bert, device="reference")


@pytest.mark.parametrize(("file", "change", "message"), [
    ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length over 0"),
    ("sentence_bert_config.json", {"do_lower_case": "no"}, "do_lower_case true or false"),
    ("sentence_bert_config.json", {"query_length": 32}, "query_length is 32 .allowed: None"),
    ("sentence_bert_config.json", {"max_length": 32}, "has a key 'max_length'"),
    ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "transformer_task is fill-mask"),
    ("sentence_bert_config.json", {"modality_config": {"text": {"method": "get_text_features"}}}, "modality_config"),
    ("sentence_bert_config.json", {"modality_config": {"image": {}}}, "modality_config has text None"),
    ("sentence_bert_config.json", {"modality_config": 3}, "modality_config is 3 .allowed: an object"),
    ("sentence_bert_config.json", {"tokenizer_args": {"do_lower_case": True}}, "tokenizer_args has 'do_lower_case'"),
    ("1_Pooling/config.json", {"weights": 3}, "has a key 'weights'"),
    ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "model_type is SparseEncoder"),
    ("config_sentence_transformers.json", {"truncate_dim": 64}, "truncate_dim is 64"),
])
def test_keys_of_modules_that_are_refused(bert: Path, file: str, change: dict[str, object], message: str) -> None:
    path = bert / file
    found = json.loads(path.read_text()) if path.exists() else {}
    folders.write(path.parent, path.name, found | change)
    with pytest.raises(FileError, match=message):
        octavo.load(bert, device="reference")


def test_a_longer_text_is_cut_as_sentence_transformers_does(bert: Path, caplog: pytest.LogCaptureFixture) -> None:
    folders.write(bert, "sentence_bert_config.json", {"max_seq_length": 12, "do_lower_case": False})
    convert_checkpoint(bert, bert / "m.gguf", "F32")
    assert "llama.cpp takes all of a text for its vector, not its first 12 tokens" in caplog.text
    long = "permission is hereby granted to any person " * 3
    for path in (bert, bert / "m.gguf"):
        caplog.clear()
        with octavo.load(path, device="reference") as model:
            ids = model.tokenizer.encode(long)
            got = model.embed([long, "to"])
            assert "1 of 2 texts have more than 12 tokens" in caplog.text
            want = model.embedder.embed_tokens([ids[:11] + ids[-1:]], None, normalize=True)
            np.testing.assert_allclose(got[0], want[0], atol=1e-6)
            assert len(model.embed_tokens(long)[0]) == 12
            with running_model(model, embeddings=True) as server:
                answer = server.post("/v1/embeddings", input=[long, "word " * 4000])
                assert answer["usage"]["prompt_tokens"] == 24
                np.testing.assert_allclose(answer["data"][0]["embedding"], got[0], atol=1e-6)


@pytest.mark.parametrize(("config", "tokenizer", "most"), [
    ({}, {"model_max_length": 64}, 64),
    ({"max_seq_length": None}, {"model_max_length": 10**30}, 256),
    ({"max_seq_length": 9999}, {}, 256),
])
def test_how_long_texts_are_where_no_file_says(
    bert: Path, config: dict[str, object], tokenizer: dict[str, object], most: int
) -> None:
    folders.write(bert, "sentence_bert_config.json", config)
    folders.edit(bert, "tokenizer_config.json", **tokenizer)
    with octavo.load(bert, device="reference") as model:
        assert model.tokenizer.most_tokens == most


def test_texts_in_lower_case(tmp_path: Path) -> None:
    save(tmp_path, KINDS["xlm-roberta"])
    with octavo.load(tmp_path, device="reference") as model:
        want = model.embed(["software as is"])
        assert np.abs(model.embed(["Software AS is"]) - want).max() > 1e-3
    folders.write(tmp_path, "sentence_bert_config.json", {"do_lower_case": True})
    with octavo.load(tmp_path, device="reference") as model:
        np.testing.assert_array_equal(model.embed(["Software AS is"]), want)


def test_newer_files_of_modules(bert: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As sentence-transformers 5 saves them; a pooling that leaves prompts out is named."""
    with octavo.load(bert, device="reference") as model:
        want = model.embed(["to"])
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    folders.write(bert, "sentence_bert_config.json", {
        "transformer_task": "feature-extraction", "modality_config": {"text": text}, "processing_kwargs": {},
        "module_output_name": "token_embeddings", "unpad_inputs": None, "tokenizer_args": {"padding_side": "left"},
    })
    (bert / "9_Normalize").mkdir()
    ends = {f"module_{end}_name": "sentence_embedding" for end in ("input", "output")}
    folders.write(bert / "9_Normalize", "config.json", ends)
    folders.edit(bert / "1_Pooling", "config.json", include_prompt=False)
    with octavo.load(bert, device="reference") as model:
        np.testing.assert_array_equal(model.embed(["to"]), want)
    assert "include_prompt: what a prompt before a text gives counts" in caplog.text
    folders.write(bert / "9_Normalize", "config.json", ends | {"module_input_name": "token_embeddings"})
    with pytest.raises(FileError, match="module_input_name is token_embeddings"):
        octavo.load(bert, device="reference")


def test_a_projection_that_goes_on_with_tanh(tmp_path: Path) -> None:
    """Which a file means that does not say."""
    save(tmp_path, KINDS["gemma-embedding"])
    folders.edit(tmp_path / "2_Dense", "config.json", activation_function=None)
    with pytest.raises(FileError, match=r"activation_function is None .allowed: torch.nn.modules.linear.Identity"):
        octavo.load(tmp_path, device="reference")


def test_a_prompt_that_a_folder_puts_before_texts_is_named(bert: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"prompts": {"query": "query: "}, "default_prompt_name": "query", "similarity_fn_name": "cosine"}
    folders.write(bert, "config_sentence_transformers.json", settings)
    with octavo.load(bert, device="reference"):
        assert "default_prompt_name: the model wants 'query: ' before each text" in caplog.text


def test_jina_embeddings_3_as_it_is_published(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its weights have adapters beside them, one for each task, which vectors without a task do without, as is said."""
    original = save(tmp_path, KINDS["jina-bert-v3"])
    stored: dict[str, torch.Tensor] = {}
    for name, value in load_file(tmp_path / "model.safetensors").items():
        stem, _, kind = f"roberta.{name}".rpartition(".")
        if value.ndim > 1:
            stem = f"{stem}.parametrizations.weight"
            stored |= {f"{stem}.0.lora_A": torch.ones(5, 4, value.shape[1])}
            stored |= {f"{stem}.0.lora_B": torch.ones(5, value.shape[0], 4)}
            kind = "original"
        stored[f"{stem}.{kind}"] = value
    save_file(stored, tmp_path / "model.safetensors")
    words = {"lora_adaptations": ["separation"], "position_embedding_type": "rotary", "rotary_emb_base": 20000.0}
    folders.edit(tmp_path, "config.json", architectures=["XLMRobertaModel"], rope_parameters=None, **words)
    with caplog.at_level(logging.WARNING, "octavo"):
        convert_checkpoint(tmp_path, tmp_path / "m.gguf", "F32")
    assert caplog.text.count("without a task, adapters for 'separation' are left out") == 1
    want = np.stack([original.embed(text, "mean_tokens").numpy() for text in TEXTS])
    for path in (tmp_path, tmp_path / "m.gguf"):
        with octavo.load(path, device="reference", strict=True) as model:
            np.testing.assert_allclose(model.embed(TEXTS), want, atol=1e-5)
    folders.edit(tmp_path, "config.json", position_embedding_type="absolute")
    with pytest.raises(ModelError, match=r"position_embedding_type: is .*absolute.* .allowed: rotary"):
        octavo.load(tmp_path, device="reference")


@pytest.mark.parametrize(("modules", "message"), [
    ("3", "lists"),
    ([{"path": "../x", "type": "a.Pooling"}], "lists"),
    ([{"path": "", "type": "sentence_transformers.models.LSTM"}], "lists a module 'LSTM'"),
    ([{"path": "2_Dense", "type": "a.Dense"}], "no_such|can't be opened|2_Dense"),
])
def test_modules_that_are_refused(bert: Path, modules: object, message: str) -> None:
    folders.write(bert, "modules.json", modules)
    with pytest.raises(FileError, match=message):
        octavo.load(bert, device="reference")


def test_a_projection_for_a_model_that_has_none(bert: Path) -> None:
    gemma = bert / "gemma"
    save(gemma, KINDS["gemma-embedding"])
    (gemma / "2_Dense").rename(bert / "2_Dense")
    folders.write(bert, "modules.json", [{"path": "2_Dense", "type": "a.Dense"}])
    with pytest.raises(ModelError, match="dense_2_feat_out"):
        octavo.load(bert, device="reference")


@pytest.mark.parametrize(("name", "field", "value", "message"), [
    ("bert", "pooling_type", 5, r"bert.pooling_type: is 5 \(allowed: 0 to 4\)"),
    ("bert", "attention.causal", True, r"bert.attention.causal: is true \(allowed: false\)"),
    ("llama-embed", "attention.causal", True, r"llama-embed.attention.causal: is true \(allowed: false\)"),
    ("eurobert", "attention.sliding_window", 8, r"eurobert.attention.sliding_window: is 8 \(allowed: 0\)"),
    ("llama-embed", "expert_count", 2, r"llama-embed.expert_count: 2 experts in llama-embed \(allowed: 0\)"),
    ("neo-bert", "attention.head_count_kv", 1, r"neo-bert.attention.head_count_kv: is 1 \(allowed: 2\)"),
    ("eurobert", "logit_scale", 2.0, r"eurobert.logit_scale: is 2.0, which Octavo does not compute eurobert with"),
])
def test_files_of_what_is_not_computed(name: str, field: str, value: object, message: str, tmp_path: Path) -> None:
    save(tmp_path, KINDS[name])
    convert_checkpoint(tmp_path, tmp_path / "m.gguf", "F32")
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        values = {key: file.metadata[key] for key in file.metadata if key != "general.architecture"}
        tensors = {name: file.tensor(name) for name in file.tensors}
        write_gguf(tmp_path / "m5.gguf", name, values | {f"{name}.{field}": value}, tensors)
    with pytest.raises(ModelError, match=message):
        octavo.load(tmp_path / "m5.gguf", device="reference")


def test_a_pooling_of_config_json(tmp_path: Path) -> None:
    save(tmp_path, KINDS["llama-embed"])
    folders.write(tmp_path, "modules.json", [])
    with octavo.load(tmp_path, device="reference") as model:
        np.testing.assert_array_equal(model.embed("a b"), model.embed("a b", pooling="mean"))
    folders.edit(tmp_path, "config.json", pooling="weighted_avg")
    with pytest.raises(ModelError, match=r"pooling: is .*weighted_avg.* .allowed: avg or cls or last"):
        octavo.load(tmp_path, device="reference")


@pytest.mark.parametrize(("name", "kind"), [slow(pair) for pair in product(KINDS, ("Q4_K", "Q8_0"))])
def test_quantized_weights_are_their_values(name: str, kind: str, tmp_path: Path) -> None:
    made = KINDS[name]
    options, dense = wide(SIZES | made.options) | made.wide, tuple((256, 256) for _ in made.dense)
    (tmp_path / "hf").mkdir()
    save(tmp_path / "hf", replace(made, options=options, dense=dense))
    with open_model_file(tmp_path / "hf") as folder:
        paths = in_format(folder, tmp_path / "m", kind)
    found = []
    for path in paths:
        with octavo.load(path, device="reference") as model:
            found.append(model.embed(TEXTS))
    np.testing.assert_allclose(*found, atol=1e-5)


def test_layers_on_two_devices(bert: Path) -> None:
    from octavo.backends.cpu import CpuBackend
    from octavo.backends.reference import ReferenceBackend
    from octavo.models import read_model
    from octavo.runtime.text_embedding import Embedder, embedding_engine
    from octavo.text import Tokenizer

    with open_model_file(bert) as file:
        backends = [CpuBackend(threads=2), ReferenceBackend()]
        halves = embedding_engine(read_model(file), backends, gpu_layers=1)
        whole = embedding_engine(read_model(file), backends[1:])
        a, b = (Embedder(e, Tokenizer.from_gguf(file)).embed(TEXTS, None, normalize=True) for e in (halves, whole))
    np.testing.assert_allclose(a, b, atol=1e-5)
