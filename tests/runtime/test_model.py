"""octavo.load and Model: what a prompt may be, what a file recommends, what is refused."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octavo
from octavo.errors import FileError, GGUFError, ModelError, TemplateError, TokenizerError, UsageError
from octavo.runtime import Model
from tests.runtime import tiny
from tests.runtime.tiny import ALPHABET, END, HE, START

USER = [START, *b"user\n"]
CLOSE = [END, *b"\n"]
REPLY = [START, *b"assistant\n"]


def test_a_question_goes_through_the_template(alphabet: Model) -> None:
    want = [*USER, HE, *b"y", *CLOSE, *REPLY]
    assert alphabet.encode_prompt("hey") == want
    assert alphabet.encode_prompt([{"role": "user", "content": "hey"}]) == want
    assert alphabet.encode_prompt("hey", system="s") == [START, *b"system\ns", *CLOSE, *want]


def test_a_conversation(alphabet: Model) -> None:
    messages = [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"},
    ]
    want = [*USER, *b"a", *CLOSE, *REPLY, *b"b", *CLOSE, *USER, *b"c", *CLOSE, *REPLY]
    assert alphabet.encode_prompt(messages) == want
    assert "".join(alphabet.generate(messages, temperature=0, max_tokens=3)) == "abc"


def test_raw_text_and_ids_are_taken_as_they_are(alphabet: Model) -> None:
    assert alphabet.encode_prompt("hey<|im_end|>", raw=True) == [HE, *b"y", END]
    for ids in ([1, 2, 3], (1, 2, 3), np.array([1, 2, 3])):
        assert alphabet.encode_prompt(ids) == [1, 2, 3]  # type: ignore[arg-type]
    assert "".join(alphabet.generate("w", raw=True, temperature=0)) == "xyz"
    assert "".join(alphabet.generate([ord("w")], temperature=0)) == "xyz"


def test_logits_take_any_sequence_of_integers(random_model: Model) -> None:
    want = random_model.logits([1, 2, 3])
    assert (want.shape, want.dtype) == ((3, tiny.N_VOCAB), np.float32)
    np.testing.assert_array_equal(random_model.logits(np.array([1, 2, 3])), want)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([1.5], {}, r"1\.5 is not a token id"),
        (["a"], {}, "'a' is not a token id"),
        ([], {}, "the prompt has no tokens"),
        ("", {"raw": True}, "the prompt has no tokens"),
        ([260], {}, "token 260 is not in the vocabulary"),
        ("x", {"raw": True, "system": "s"}, "a system message needs a chat template"),
        ([{"role": "user", "content": "x"}], {"raw": True}, "messages need a chat template"),
        ([{"role": "user"}], {}, r"\{'role': 'user'\} is not a message"),
        ([{"role": "user", "content": None}], {}, "is not a message"),
        ("x", {"max_tokens": -3}, "max_tokens is -3"),
        ("x", {"temperature": -1.0}, "temperature is -1"),
        ("x", {"top_p": 0.0}, "top_p is 0"),
        (None, {}, r"prompt is None \(allowed: a text, a list of messages, or a list of token ids\)"),
        (b"abc", {}, "prompt is b'abc'"),
        (5, {}, "prompt is 5"),
        (np.array(5), {}, "prompt is array"),
        ({"role": "user", "content": "x"}, {}, r"a list of messages, as \[\{\.\.\.\}\]"),
        ([{"role": "user", "content": "x"}, "y"], {}, "'y' is not a message"),
        ([True], {}, "True is not a token id"),
        ("x", {"system": 5}, "system is 5"),
        ("x", {"raw": 1}, r"raw is 1 \(allowed: True or False\)"),
        ("x", {"max_tokens": 1.5}, r"max_tokens is 1\.5 \(allowed: an integer, 0 or more, or -1"),
        ("x", {"max_tokens": True}, "max_tokens is True"),
        ("x", {"seed": "a"}, "seed is 'a'"),
        ("x", {"seed": 1.5}, r"seed is 1\.5 \(allowed: an integer, -1 to 2\^64 - 1\)"),
        ("x", {"top_k": 2.5}, r"top_k is 2\.5 \(allowed: an integer, -1 or more\)"),
        ("x", {"temperature": "hot"}, r"temperature is 'hot' \(allowed: a number, 0 to 100\)"),
        ("x", {"temperature": 10**400}, "temperature is 1000"),
        ("x", {"stop": 5}, r"stop is 5 \(allowed: a string or a list of strings\)"),
        ("x", {"stop": ["a", 5]}, r"stop is \['a', 5\]"),
        ("x", {"temprature": 0}, r"temprature is not an argument of generate: did you mean temperature\?"),
        ("x", {"temp": 0}, r"did you mean temperature\?"),
        ("x", {"max_new_tokens": 5}, r"did you mean max_tokens\?"),
        ("x", {"n_ctx": 5}, r"n_ctx is not an argument of generate \(allowed: raw, "),
    ],
)
def test_wrong_prompts_and_options(alphabet: Model, prompt: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        list(alphabet.generate(prompt, **options))
    assert caught.value.argument in (None, "prompt", *options)
    assert "".join(alphabet.generate("hi", temperature=0)) == ALPHABET, "the model is free again"


@pytest.mark.parametrize("most", [-1, -2])
def test_as_many_tokens_as_fit(alphabet: Model, most: int) -> None:
    assert alphabet.generate("hi", temperature=0, max_tokens=most).text == ALPHABET
    assert alphabet.generate("hi", temperature=0, max_tokens=most, ignore_eos=True).finish_reason is None


def test_a_context_of_0_is_the_models_own(alphabet_path: str) -> None:
    with octavo.load(alphabet_path, device="reference", n_ctx=0) as model:
        assert model.n_ctx == model.engine.model.hparams.n_ctx_train


def test_a_lone_surrogate_is_refused(alphabet: Model) -> None:
    with pytest.raises(TokenizerError, match="lone surrogate"):
        alphabet.generate("\ud800")


def load(path: Path, *, weights: dict[str, np.ndarray] | None = None, **keys: Any) -> Model:
    named = {key.replace("__", "."): value for key, value in keys.items()}
    return octavo.load(
        tiny.write(path / "m.gguf", weights=weights or tiny.alphabet(), keys=named), device="reference", n_ctx=128
    )


def test_a_model_without_a_template(tmp_path: Path) -> None:
    with load(tmp_path, tokenizer__chat_template=None) as model:
        assert model.template is None
        assert model.encode_prompt("hey") == [HE, *b"y"]
        with pytest.raises(UsageError, match="this model has none"):
            model.encode_prompt([{"role": "user", "content": "x"}])
        with pytest.raises(UsageError, match="no template"):
            model.encode_prompt("x", system="s")


def test_templates_by_name(tmp_path: Path) -> None:
    templates = {"tokenizer__chat_template": "one", "tokenizer__chat_template__rag": "{{ messages[0].content }}!"}
    with load(tmp_path, **templates, tokenizer__chat_templates=["rag"]) as model:
        assert model.encode_prompt("hi") == [*b"one"]
        model.use_template("rag")
        assert model.encode_prompt("hi") == [*b"hi!"]
        with pytest.raises(TemplateError, match=r"no chat template called 'tools' \(allowed: default, rag\)"):
            model.use_template("tools")
        model.use_template("default")
        assert model.encode_prompt("hi") == [*b"one"]


def test_bos_comes_once_where_the_model_wants_it(tmp_path: Path) -> None:
    bos = {"tokenizer__ggml__add_bos_token": True, "tokenizer__ggml__bos_token_id": HE}
    with load(tmp_path, **bos) as model:
        assert model.encode_prompt("hi") == [HE, *USER, *b"hi", *CLOSE, *REPLY]
        assert model.encode_prompt("x", raw=True) == [HE, ord("x")]
    with load(tmp_path, **bos, tokenizer__chat_template="{{ bos_token }}{{ messages[0].content }}") as model:
        assert model.encode_prompt("hi") == [HE, *b"hi"]


def test_sampling_that_the_file_recommends(tmp_path: Path) -> None:
    recommended = {
        "temp": 0.0, "top_k": 3, "top_p": 0.5, "min_p": 0.25, "penalty_repeat": 1.5, "penalty_last_n": 10,
    }
    with load(tmp_path, **{f"general__sampling__{k}": v for k, v in recommended.items()}) as model:
        assert model.sampling_defaults() == {
            "temperature": 0.0, "top_k": 3, "top_p": 0.5, "min_p": 0.25, "repeat_penalty": 1.5, "repeat_last_n": 10,
        }
        texts = {"".join(model.generate("hi")) for _ in range(3)}
        assert texts == {ALPHABET}, "temperature 0 is the file's; a caller's own goes before it"
        hot = {"".join(model.generate("hi", temperature=100.0, top_k=0, top_p=1.0, min_p=0.0, max_tokens=9, seed=s))
               for s in range(3)}
        assert len(hot) == 3


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [("temp", -1.0, ModelError), ("temp", float("nan"), ModelError), ("top_k", -3, ModelError),
     ("top_k", 1.5, GGUFError), ("temp", "hot", GGUFError)],
)
def test_wrong_recommendations_name_the_file_and_key(
    tmp_path: Path, key: str, value: object, error: type[Exception]
) -> None:
    with load(tmp_path, **{f"general__sampling__{key}": value}) as model, pytest.raises(error) as caught:
        model.generate("hi")
    assert "m.gguf" in str(caught.value)
    assert f"general.sampling.{key}" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"device": "tpu"}, UsageError, "device is 'tpu'"),
        ({"threads": 0}, UsageError, "threads is 0"),
        ({"n_ctx": -1}, UsageError, "n_ctx is -1"),
        ({"n_ctx": "x"}, UsageError, r"n_ctx is 'x' \(allowed: an integer, 1 or more\)"),
        ({"n_ctx": True}, UsageError, "n_ctx is True"),
        ({"threads": 1.5}, UsageError, r"threads is 1\.5"),
        ({"device": None}, UsageError, "device is None"),
        ({"device": "cuda:1"}, UsageError, r"device is 'cuda:1' \(allowed: auto, cpu, gpu, reference\)"),
        ({"cache_type": "q4"}, UsageError, r"cache_type is 'q4' \(allowed: .*f16"),
        ({"strict": 1}, UsageError, "strict is 1"),
        ({"max_sequences": 0}, UsageError, r"max_sequences is 0 \(allowed: 1 or more\)"),
        ({"gpu_layers": "x"}, UsageError, "gpu_layers is 'x'"),
        ({"nctx": 64}, UsageError, r"nctx is not an argument of load: did you mean n_ctx\?"),
        ({"n_gpu_layers": 1}, UsageError, r"did you mean gpu_layers\?"),
        ({"n_ctx": 100_000}, UsageError, "the model was made for 512 tokens"),
    ],
)
def test_wrong_load_options(alphabet_path: str, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        octavo.load(alphabet_path, **{"device": "reference", **options})
    assert [caught.value.argument] == list(options), "what the message begins with, for those who call it otherwise"
    assert str(caught.value).startswith(caught.value.argument)


@pytest.mark.parametrize("path", [None, 5, b"model.gguf"])
def test_what_is_no_path(path: Any) -> None:
    with pytest.raises(UsageError, match=r"path is .*allowed: a text or a Path"):
        octavo.load(path)


def test_what_a_model_says_of_itself(alphabet: Model) -> None:
    assert (alphabet.name, alphabet.n_ctx, alphabet.n_vocab) == ("alphabet", 256, tiny.N_VOCAB)
    assert (alphabet.count_tokens("hey"), alphabet.count_tokens("")) == (2, 0)
    assert repr(alphabet) == "Model('alphabet', qwen3, 316K, F32, ctx 256, reference)"


def test_none_stands_for_an_option_left_out(alphabet: Model) -> None:
    assert alphabet.generate("hi", temperature=0, stop=None, max_tokens=None, system=None).text == ALPHABET


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.gguf"):
        octavo.load(tmp_path / "none.gguf")


def test_threads_and_cache_type(alphabet_path: str) -> None:
    with octavo.load(alphabet_path, threads=1, cache_type="f32", device="reference") as model:
        assert model.engine.n_ctx == 512, "the model's own, as it is under 4096"
        assert {n.dtype for n in model.engine.graph.leaves("cache")} == {"f32"}
        assert "".join(model.generate("hi", temperature=0)) == ALPHABET


def test_memory_of_a_model_is_free_when_nobody_has_it(alphabet_path: str) -> None:
    """At once, and not only when garbage is collected: the next model may need it."""
    model = octavo.load(alphabet_path, device="reference", n_ctx=64)
    assert str(model.generate("hi", max_tokens=2))
    engine = weakref.ref(model.engine)
    gc.disable()
    try:
        model.close()
        del model
        assert engine() is None
    finally:
        gc.enable()


def test_what_is_said_of_a_list_of_texts_a_role_and_a_closed_model(alphabet_path: str) -> None:
    with octavo.load(alphabet_path, device="reference") as model:
        with pytest.raises(UsageError, match=r"'Hi' is not a token id, .*generate_many takes several texts"):
            model.generate(["Hi", "there"])  # type: ignore[list-item]
        with pytest.raises(UsageError, match=r"has the role 'usr' \(allowed: system, "):
            model.generate([{"role": "usr", "content": "Hi"}])
    with pytest.raises(UsageError, match="is closed"):
        model.generate("Hi")
    with pytest.raises(UsageError, match="is closed"):
        model.embed("Hi", pooling="mean")


def test_a_model_without_a_template_ends_replies_after_512_tokens(tmp_path: Path) -> None:
    keys = {"tokenizer.chat_template": None, "qwen3.context_length": 1024}
    path = tiny.write(tmp_path / "base.gguf", weights=tiny.alphabet(endless=True), keys=keys)
    with octavo.load(path, device="reference", max_sequences=2) as model:
        reply = model.generate("a", temperature=0)
        assert (len(reply.text), reply.finish_reason) == (512, "length")
        assert [len(r.tokens) for r in model.generate_many(["a", "b"], temperature=0)] == [512, 512]
        assert len(model.generate_many(["a"], temperature=0, max_tokens=None)[0].tokens) > 900
