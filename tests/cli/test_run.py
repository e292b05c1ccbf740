"""`octavo run` with a prompt: text, JSON, statistics, pipes, and errors of one line."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from octavo import load
from tests.cli.conftest import Run
from tests.runtime import tiny
from tests.runtime.tiny import ALPHABET

GREEDY = ("--temp", "0")


def test_text(octavo: Run, alphabet: str) -> None:
    got = octavo("run", alphabet, "hi", *GREEDY)
    assert (got.status, got.out, got.err) == (0, ALPHABET + "\n", "")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["-n", "3"], "abc\n"),
        (["-n", "0"], ""),
        (["--stop", "xx", "--stop", "def"], "abc\n"),
        (["--raw"], "jklmnopqrstuvwxyz\n"),
        (["--system", "be brief"], ALPHABET + "\n"),
        (["--kv", "f32", "--threads", "1", "--device", "reference", "--ctx", "64"], ALPHABET + "\n"),
        (["--device", "gpu", "--gpu-layers", "0"], ALPHABET + "\n"),
        (["--device", "auto", "--gpu-layers", "auto"], ALPHABET + "\n"),
        (["--seed", "1", "--temp", "0.5", "--top-k", "5", "--top-p", "0.9", "--min-p", "0.1"], ALPHABET + "\n"),
    ],
)
def test_options(octavo: Run, alphabet: str, options: list[str], text: str) -> None:
    got = octavo("run", alphabet, "hi", *GREEDY, *options)
    assert (got.status, got.out) == (0, text)


def test_a_prompt_from_a_pipe(octavo: Run, alphabet: str) -> None:
    assert octavo("run", alphabet, "--raw", *GREEDY, stdin=b"x\n").out == "yz\n"
    assert octavo("run", alphabet, "-", "--raw", *GREEDY, stdin="éw".encode()).out == "xyz\n"
    assert octavo("run", alphabet, "v", "--raw", *GREEDY, stdin=b"x").out == "yz\n"


def test_a_pipe_and_a_file_are_appended_to_a_prompt(octavo: Run, alphabet: str, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("w\n")
    assert octavo("run", alphabet, "v", "--raw", "-f", str(file), *GREEDY).out == "xyz\n"
    assert octavo("run", alphabet, "--raw", "--file", str(file), *GREEDY, stdin=b"x").out == "yz\n"
    got = octavo("run", alphabet, "a", "-f", str(file), "--raw", "-n", "0", "--json", stdin=b"x\n")
    assert json.loads(got.out)["prompt_tokens"] == len("a\n\nw\n\nx")


def test_texts_that_are_no_prompts(octavo: Run, alphabet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "none: can't be opened: No such file" in octavo("run", alphabet, "-f", str(tmp_path / "none")).error()
    monkeypatch.setattr("octavo.cli.run.prompt_input.MOST_BYTES", 1 << 20)
    os.mkfifo(tmp_path / "pipe")
    for special in (tmp_path / "pipe", "/dev/zero"):
        assert f"{special}: not a regular file" in octavo("run", alphabet, "-f", str(special)).error()
    (tmp_path / "long").write_bytes(b"x" * ((1 << 20) + 1))
    assert "is too large: 1,048,577 bytes" in octavo("run", alphabet, "-f", str(tmp_path / "long")).error()
    piped = octavo("run", alphabet, "hi", stdin=b"x" * ((1 << 20) + 1))
    assert "standard input is longer than a prompt may be" in piped.error()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--n-predict", "3"], "abc\n"),
        (["--max_tokens=2"], "ab\n"),
        (["-t", "1", "-c", "64", "-s", "1", "-ctk", "f32", "-sys", "be brief", "-n", "1"], "a\n"),
        (["--temperature", "0", "--n_ctx", "64", "--kv", "f16", "--repeat-last-n", "3", "--n-gpu-layers", "0",
          "--device", "cpu", "-n", "1"], "a\n"),
    ],
)
def test_names_that_other_programs_have(octavo: Run, alphabet: str, options: list[str], text: str) -> None:
    got = octavo("run", alphabet, "hi", *GREEDY, *options)
    assert (got.status, got.out) == (0, text)


def test_cuda_is_the_gpu(octavo: Run, alphabet: str) -> None:
    assert octavo("run", alphabet, "hi", *GREEDY, "-n", "1", "--device", "cuda", "-ngl", "0").out == "a\n"
    with load(alphabet, device="cuda", gpu_layers=0) as model:
        assert model.engine.backends[0].name == "cpu"


def test_think_needs_a_template_that_has_it(octavo: Run, alphabet: str) -> None:
    said = "can't be set: the model's chat template has no enable_thinking"
    assert octavo("run", alphabet, "hi", "--no-think").error() == f"octavo: error: --no-think {said}"
    assert "--think needs a chat template" in octavo("run", alphabet, "hi", "--think", "--raw").error()


def test_templates_by_name(octavo: Run, tmp_path: Path) -> None:
    keys = {"tokenizer.chat_template": "a", "tokenizer.chat_template.rag": "{{ messages[0].content }}"}
    model = str(tiny.write(tmp_path / "named.gguf", weights=tiny.alphabet(), keys=keys))
    assert octavo("run", model, "v", "--chat-template", "rag", *GREEDY).out.strip() == "wxyz"
    said = "the model has no chat template called 'tools' (allowed: default, rag)"
    assert said in octavo("run", model, "v", "--chat-template", "tools").error()
    assert "--chat-template and --raw can't" in octavo("run", model, "v", "--chat-template", "rag", "--raw").error()


def test_raw_prompts_need_no_template(octavo: Run, tmp_path: Path) -> None:
    """One that can't be read does not matter then, nor is the thinking that one tells of."""
    broken, thinks = (
        tiny.write(tmp_path / name, weights=tiny.alphabet(), keys={"tokenizer.chat_template": template})
        for name, template in (("broken", "{{ x"), ("thinks", "{{ messages[0].content }}<</think>"))
    )
    assert "chat template, line 1" in octavo("run", broken, "v", *GREEDY).error()
    assert octavo("run", broken, "v", "--raw", *GREEDY).out == "wxyz\n"
    assert json.loads(octavo("run", broken, "v", "--raw", "--json", *GREEDY).out)["text"] == "wxyz"
    assert octavo("run", thinks, "v<think>", "--raw", "--grammar", "start: /w{3}/", *GREEDY).out == "www\n"


def test_a_model_has_a_name(octavo: Run) -> None:
    assert octavo("run", "", "hi").error() == "octavo: error: '': there is no such file or folder"


def test_statistics_go_to_stderr(octavo: Run, alphabet: str) -> None:
    got = octavo("run", alphabet, "hi", "--stats", *GREEDY)
    assert got.out == ALPHABET + "\n"
    (line,) = got.err.splitlines()
    prompt, reply, ended, load = line.split("; ")
    assert prompt.startswith("prompt 21 tokens, ")
    assert reply.startswith("reply 27 tokens, ")
    assert (ended, load.split()[0]) == ("ended by stop", "load")
    for part in (prompt, reply):
        assert float(part.split(", ")[1].removesuffix(" tok/s")) > 0


def test_json(octavo: Run, alphabet: str) -> None:
    got = octavo("run", alphabet, "hi", "--json", *GREEDY)
    assert (got.status, got.err) == (0, "")
    answer = json.loads(got.out)
    assert got.out.count("\n") == 1
    timings = answer.pop("timings")
    assert answer == {
        "text": ALPHABET, "tokens": [*ALPHABET.encode(), tiny.END], "finish_reason": "stop", "prompt_tokens": 21,
        "generated_tokens": 27, "drafted_tokens": 0, "accepted_tokens": 0, "model": alphabet,
    }
    names = {"load_seconds", "compile_seconds", "prefill_seconds", "decode_seconds", "prefill_tokens_per_second",
             "decode_tokens_per_second"}
    assert timings.keys() == names
    assert all(isinstance(v, float) for v in timings.values())
    assert timings["decode_tokens_per_second"] == pytest.approx(26 / timings["decode_seconds"], rel=1e-2)


def test_a_full_context_is_no_error(octavo: Run, alphabet: str) -> None:
    """The reply ends there, as at a limit; the line says how there would be more."""
    said = "the context of 30 tokens is full: 21 of the prompt and 9 of the reply; --ctx-size makes it larger"
    got = octavo("run", alphabet, "hi", "--ctx", "30", *GREEDY)
    assert (got.status, got.out) == (0, ALPHABET[:9] + "\n")
    assert got.err == f"octavo: WARNING: {said}, up to 512\n"
    got = octavo("run", alphabet, "hi", "--json", "--ctx", "30", *GREEDY)
    answer = json.loads(got.out)
    assert (got.status, answer["text"], answer["finish_reason"]) == (0, ALPHABET[:9], "context")


@pytest.mark.parametrize("behind", [True, False])
def test_v_says_where_how_and_how_fast(octavo: Run, alphabet: str, behind: bool) -> None:
    words = ["run", alphabet, "hi", *GREEDY]
    got = octavo(*words, "-v") if behind else octavo("-v", *words)
    assert (got.status, got.out) == (0, ALPHABET + "\n")
    assert "; loaded in " in got.err
    assert re.search(r"sampling: .*temperature 0\.0", got.err)
    assert " tok/s" in got.err


def test_a_model_without_a_template_stops_somewhere(octavo: Run, tmp_path: Path) -> None:
    keys = {"qwen3.context_length": 1024, "tokenizer.chat_template": None}
    path = tiny.write(tmp_path / "base.gguf", weights=tiny.alphabet(endless=True), keys=keys)
    found = json.loads(octavo("run", path, "a", "--json", *GREEDY).out)
    assert (found["finish_reason"], found["generated_tokens"]) == ("length", 512)
    assert json.loads(octavo("run", path, "a", "--json", *GREEDY, "-n", "600").out)["generated_tokens"] == 600


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        ([], b"", "no prompt given, and standard input is empty"),
        ([], b"\n", "no prompt given"),
        (["-"], b"", "no prompt given"),
        (["--json"], b"", "no prompt given"),
        ([], b"ok\xff", "standard input is not UTF-8 at byte 2"),
        (["hi", "--ctx", "-2"], b"", "--ctx is -2 (allowed: 1 or more)"),
        (["hi", "--ctx", "9999"], b"", "the model was made for 512 tokens"),
        (["hi", "--ctx", "20"], b"", "the prompt of 21 tokens does not fit the context of 20"),
        (["hi", "--gpu-layers", "-3"], b"", "--gpu-layers is -3 (allowed: 0 or more, all, auto)"),
        (["hi", "--gpu-layers", "2x"], b"", "--gpu-layers is '2x' (allowed: 0 or more, all, auto)"),
        (
            ["hi", "-ngl", "2", "--device", "cpu"],
            b"",
            "-ngl is 2 on device cpu (allowed: 0, or device gpu or auto)",
        ),
        (["hi", "--temp", "-1"], b"", "--temp is -1.0"),
        (["hi", "--temp", "nan"], b"", "--temp is nan"),
        (["hi", "--top-k", "-2"], b"", "--top-k is -2"),
        (["hi", "--top-p", "0"], b"", "--top-p is 0"),
        (["hi", "--min-p", "2"], b"", "--min-p is 2"),
        (["hi", "--seed", "-2"], b"", "--seed is -2"),
        (["hi", "--threads", "-2"], b"", "--threads is -2"),
        (["hi", "--raw", "--system", "s"], b"", "a system message needs a chat template"),
        (["\udcff"], b"", "lone surrogate"),
    ],
)
def test_wrong_options(octavo: Run, alphabet: str, arguments: list[str], stdin: bytes, message: str) -> None:
    got = octavo("run", alphabet, *arguments, stdin=stdin)
    assert message in got.error()
    assert got.out == ""


@pytest.mark.parametrize("option", [["--temp", "hot"], ["--device", "tpu"], ["-n", "-3"], ["--no-such"]])
def test_options_that_are_no_options(octavo: Run, alphabet: str, option: list[str]) -> None:
    got = octavo("run", alphabet, "hi", *option)
    assert (got.status, got.out) == (2, "")
    assert option[0] in got.err
    assert "Traceback" not in got.err


def test_files_that_are_no_models(octavo: Run, tmp_path: Path) -> None:
    missing = tmp_path / "none.gguf"
    assert "there is no such file or folder" in octavo("run", str(missing), "hi").error()
    assert "has no config.json" in octavo("run", str(tmp_path), "hi").error()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(b"GGUF\3\0\0\0")
    assert str(cut) in octavo("run", str(cut), "hi").error()
    unknown = tiny.write(tmp_path / "unknown.gguf", "gptoss\n", weights=tiny.tensors())
    assert "can't run architecture 'gptoss\\n' yet" in octavo("run", unknown, "hi").error()
    newline = tmp_path / "two\nlines.gguf"
    newline.write_bytes(b"")
    octavo("run", str(newline), "hi").error()


def test_broken_weights_end_in_an_error_and_no_text(octavo: Run, tmp_path: Path) -> None:
    weights = tiny.alphabet()
    weights["blk.1.ffn_gate.weight"][2, 3] = np.inf
    path = tiny.write(tmp_path / "inf.gguf", weights=weights)
    got = octavo("run", path, "hi", *GREEDY)
    assert (got.status, got.out) == (2, "")
    warning, error = got.err.splitlines()
    assert warning == "octavo: WARNING: tensor blk.1.ffn_gate.weight holds NaN or Inf"
    assert (
        error
        == f"octavo: error: {path}: the model computed NaN or Inf; `octavo inspect --check` looks for it in the weights"
    )
    assert octavo("run", path, "hi", "--json").out == ""


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--grammar", "root ::= [c-e]+ [0-9]"], "cde"),
        (["--grammar", "start: /[c-e]{2}/"], "cd"),
        (["--json-schema", '{"enum": [12]}'], "12"),
    ],
)
def test_replies_of_a_grammar(octavo: Run, alphabet: str, tmp_path: Path, options: list[str], text: str) -> None:
    path = tmp_path / "grammar"
    path.write_text(options[1])
    for given in (options, [options[0], str(path)]):
        result = octavo("run", alphabet, "Hi", "--temp", "0", "-n", "3", *given)
        assert (result.status, result.out) == (0, text + "\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--grammar", "root ::= a"], "the GBNF grammar can't be read: Rule 'a' not found"),
        (["--json-schema", '{"type": "x"}'], "Invalid type: x"),
        (["--json-schema", "{}", "--grammar", "start: /a/"], "--json-schema and --grammar can't be used together"),
        (["--json-schema", "/nowhere"], "--json-schema '/nowhere' is neither a file nor a JSON schema"),
        (["--json-schema", "[1"], "--json-schema '[1' is neither a file nor a JSON schema: one begins with {"),
        (["--grammar", "/nowhere"], "--grammar '/nowhere' is neither a file nor a grammar"),
    ],
)
def test_what_is_no_grammar(octavo: Run, alphabet: str, options: list[str], message: str) -> None:
    result = octavo("run", alphabet, "Hi", *options)
    assert (result.status, result.out) == (2, "")
    assert message in result.err


@pytest.mark.parametrize("given", [["--cpu-moe"], ["--n-cpu-moe", "2"]])
def test_a_model_without_experts_is_told_by_the_option_that_was_typed(octavo: Run, given: list[str]) -> None:
    assert octavo("run", "demo", "hi", *given).error() == f"octavo: error: {given[0]}: the model has no experts"
