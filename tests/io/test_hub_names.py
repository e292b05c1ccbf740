"""Names of the hub, and which of a repository's files one means."""

from __future__ import annotations

import pytest

from octavo.errors import ChoiceError, HubError
from octavo.io.hub.name import HubName, parse
from octavo.io.hub.variants import RepoFile, choose, variants


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Qwen/Qwen3-0.6B", HubName("Qwen/Qwen3-0.6B")),
        ("a/b-GGUF:Q8_0", HubName("a/b-GGUF", "Q8_0")),
        ("a/b:sub/b-Q8_0.gguf", HubName("a/b", "sub/b-Q8_0.gguf")),
        ("a/b:Q8_0@refs/pr/1", HubName("a/b", "Q8_0", "refs/pr/1")),
        ("a/b@v2", HubName("a/b", None, "v2")),
        ("hf.co/a/b:Q8_0", HubName("a/b", "Q8_0")),
        ("https://huggingface.co/a/b/", HubName("a/b")),
        ("https://huggingface.co/a/b/tree/v2", HubName("a/b", None, "v2")),
        ("https://huggingface.co/a/b/resolve/main/c.gguf?download=true", HubName("a/b", "c.gguf")),
        ("https://huggingface.co/a/b/blob/v2/d/c.gguf", HubName("a/b", "d/c.gguf", "v2")),
    ],
)
def test_names(text: str, name: HubName) -> None:
    assert parse(text) == name
    assert parse(str(name)) == name


@pytest.mark.parametrize(
    "text",
    ["demo", "model.gguf", "./a/b", "/a/b", "../a", "a/../b", "a/b/c", "a/b.gguf", "a/b.safetensors", "a/", "~/a",
     "a--b/c", "a/b:../../x", "a/b@../x", "a/b:", "a/b@", "https://example.com/a/b", "a b/c",
     "a\\b", f"a/{'b' * 97}", ""],
)
def test_what_is_no_name(text: str) -> None:
    assert parse(text) is None


def files(**sizes: int) -> list[RepoFile]:
    return [RepoFile(f"{name}.gguf", size) for name, size in sizes.items()]


@pytest.mark.parametrize(
    ("stem", "label"),
    [
        ("Qwen3-0.6B-Q8_0", "Q8_0"), ("m.Q4_K_M", "Q4_K_M"), ("m-UD-Q4_K_XL", "UD-Q4_K_XL"), ("m-IQ2_XXS", "IQ2_XXS"),
        ("m-bf16", "BF16"), ("gpt-oss-20b-mxfp4", "MXFP4"), ("qwen2.5-0.5b-instruct-fp16", "FP16"),
        ("m-TQ1_0", "TQ1_0"), ("Q8_0/m", "Q8_0"), ("Q2Q-model", "Q2Q-model"), ("model", "model"),
    ],
)
def test_quantizations(stem: str, label: str) -> None:
    (found,) = variants([RepoFile(f"{stem}.gguf", 1)])
    assert found.label == label


def test_sets_are_whole_and_in_order() -> None:
    shards = [RepoFile(f"Q8_0/m-Q8_0-{i:05d}-of-00003.gguf", i) for i in (3, 1, 2)]
    lacking = [RepoFile("m-Q4_0-00001-of-00002.gguf", 1)]
    (found,) = variants([*shards, *lacking])
    assert [entry.size for entry in found.files] == [1, 2, 3]
    assert found.path("/s") == "/s/Q8_0/m-Q8_0-00001-of-00003.gguf"


def test_what_lies_beside_models_is_none() -> None:
    assert variants([RepoFile("mmproj-m-F16.gguf", 1), RepoFile("m.imatrix.gguf", 1), RepoFile("README.md", 1)]) == []


def test_a_checkpoint_has_its_weights_once_and_its_config_last() -> None:
    names = ("config.json", "model.safetensors", "consolidated.safetensors", "tokenizer.json", "original/p.safetensors",
             "README.md", "model.bin")
    (found,) = variants(RepoFile(name, 1) for name in names)
    assert [entry.name for entry in found.files] == ["tokenizer.json", "model.safetensors", "config.json"]
    assert found.path("/snapshot") == "/snapshot"
    assert variants([RepoFile("model.safetensors", 1)]) == []


def test_modules_of_an_embedding_model_come_with_it() -> None:
    beside = ["1_Pooling/config.json", "2_Dense/model.safetensors", "additional_chat_templates/rag.jinja"]
    names = [
        "modules.json",
        "model.safetensors",
        "config.json",
        *beside,
        "onnx/config.json",
        "2_Dense/pytorch_model.bin",
    ]
    (found,) = variants(RepoFile(name, 1) for name in names)
    assert [entry.name for entry in found.files] == ["modules.json", "model.safetensors", *beside, "config.json"]


@pytest.mark.parametrize(
    "vocabulary", ["tokenizer.model", "qwen.tiktoken", "rwkv_vocab_v20230424.txt", "tokenizer.jsonl"]
)
def test_vocabularies_come_with_a_checkpoint(vocabulary: str) -> None:
    names = [vocabulary, "train.jsonl", "model.safetensors", "config.json"]
    (found,) = variants(RepoFile(name, 1) for name in names)
    assert [entry.name for entry in found.files] == [vocabulary, "model.safetensors", "config.json"]


SIZES = {"m-Q2_K": 2, "m-Q4_K_M": 4, "m-Q8_0": 8, "m-F16": 16}


@pytest.mark.parametrize(
    ("what", "free", "label"),
    [(None, None, "Q4_K_M"), (None, 100, "Q4_K_M"), (None, 3, "Q2_K"), ("q8_0", 3, "Q8_0"),
     ("m-F16.gguf", 3, "F16"), ("m-f16", 1, "F16")],
)
def test_the_usual_one_or_the_largest_that_fits(what: str | None, free: int | None, label: str) -> None:
    assert choose(HubName("a/b", what), variants(files(**SIZES)), free).label == label


def test_without_the_usual_one_the_largest_that_fits() -> None:
    found = variants(files(**{"m-Q2_K": 2, "m-Q8_0": 8, "m-F16": 16}))
    assert choose(HubName("a/b"), found, 10).label == "Q8_0"
    assert choose(HubName("a/b"), found, None).label == "F16"


def test_nothing_fits() -> None:
    with pytest.raises(ChoiceError, match=r"a/b has nothing that fits 1 B of free memory \(choices: Q2_K \(2 B\)"):
        choose(HubName("a/b"), variants(files(**SIZES)), 1)


def test_a_quantization_that_is_not_there() -> None:
    with pytest.raises(ChoiceError, match=r"a/b has no Q4_K_L; did you mean Q4_K_M\? \(choices: Q2_K"):
        choose(HubName("a/b", "Q4_K_L"), variants(files(**SIZES)), None)


def test_several_models_of_a_quantization() -> None:
    found = variants(files(**{"small-Q4_K_M": 1, "large-Q4_K_M": 2, "small-Q8_0": 3}))
    assert [v.label for v in found] == ["small-Q4_K_M", "large-Q4_K_M", "Q8_0"]
    for what in (None, "Q4_K_M"):
        with pytest.raises(ChoiceError, match="several models") as caught:
            choose(HubName("a/b", what), found, None)
        assert [choice.label for choice in caught.value.choices] == ["small-Q4_K_M", "large-Q4_K_M"]
    assert choose(HubName("a/b", "large"), found, None).nbytes == 2
    assert choose(HubName("a/b", "large-Q4_K_M"), found, None).nbytes == 2


def test_nothing_to_run() -> None:
    with pytest.raises(HubError, match=r"a/b has no GGUF files and no checkpoint in safetensors"):
        choose(HubName("a/b"), variants([RepoFile("pytorch_model.bin", 1)]), None)
