"""The conversation of `octavo run MODEL`: by its class, and as a user at a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import octavo
from octavo.cli.run.chat_loop import GREETING, Chat
from octavo.runtime import Model
from tests.cli.conftest import on_reference
from tests.limits import HANG_S
from tests.runtime import tiny
from tests.runtime.tiny import ALPHABET

HEADLINE = "alphabet.gguf: qwen3, 316K parameters, F32; context 512 of 512 tokens; on reference\n"


@pytest.fixture
def model(alphabet: str) -> Iterator[Model]:
    with octavo.load(alphabet, device="reference") as loaded:
        yield loaded


Talk = Callable[..., list[str]]


@pytest.fixture
def talk(model: Model) -> Talk:
    """What is shown after each of the lines that a user types; prompts are left out."""

    def run(*lines: str | None, **options: Any) -> list[str]:
        shown: list[str] = [""]
        rest = iter(lines)

        def read(prompt: str) -> str | None:
            if prompt == ">>> ":
                shown.append("")
            return next(rest, None)

        def write(text: str) -> None:
            shown[-1] += text

        Chat(model, read, write, **{"temperature": 0.0, **options}).loop()
        assert shown[0] == HEADLINE + GREETING
        return shown[1:]

    return run


def seen(model: Model, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """Records the prompts that are generated from, and with which options."""
    calls: list[tuple[Any, dict[str, Any]]] = []
    encoded: list[tuple[Any, dict[str, Any]]] = []
    encode, generate = model.encode_prompt, model.generate

    def record(prompt: Any, **options: Any) -> Any:
        if isinstance(prompt, str) or isinstance(prompt[0], dict):
            encoded.append((prompt if isinstance(prompt, str) else [dict(m) for m in prompt], options))
        return encode(prompt, **options)

    def begin(tokens: Any, **options: Any) -> Any:
        prompt, chosen = encoded[-1]
        calls.append((prompt, {**options, "system": chosen["system"], "think": chosen["think"]}))
        return generate(tokens, **options)

    monkeypatch.setattr(model, "encode_prompt", record)
    monkeypatch.setattr(model, "generate", begin)
    return calls


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


REPLY = {"role": "assistant", "content": ALPHABET}


def test_a_conversation_remembers(model: Model, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = seen(model, monkeypatch)
    assert talk("one", "  ", "two", "/reset", "three", "/bye", "never") == [
        ALPHABET + "\n", "", ALPHABET + "\n", "The conversation is forgotten.\n", ALPHABET + "\n", "",
    ]
    assert [prompt for prompt, _ in calls] == [[user("one")], [user("one"), REPLY, user("two")], [user("three")]]


def test_a_reply_costs_only_what_is_new(model: Model, talk: Talk) -> None:
    second = talk("one", "/stats", "two", None)[2]
    assert re.search(r"\(prompt (\d+) tokens \((\d+) cached\)", second)
    n, cached = map(int, re.search(r"\(prompt (\d+) tokens \((\d+) cached\)", second).groups())  # type: ignore[union-attr]
    assert n - cached == len("\n<user\ntwo>\n<assistant\n") + 1, "and the end token, which was not computed yet"


def test_the_system_message(model: Model, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = seen(model, monkeypatch)
    assert talk("one", "/system  be brief ", "two", "/system", "three")[1::2] == [
        "The system message is set.\n", "The system message is removed.\n", "\n",
    ]
    assert [(prompt, options.get("system")) for prompt, options in calls] == [
        ([user("one")], None), ([user("two")], "be brief"), ([user("three")], None),
    ]


def test_settings(model: Model, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = seen(model, monkeypatch)
    monkeypatch.setattr(model, "sampling_defaults", lambda: {"top_k": 20})
    got = talk(
        "/set", "/set max_tokens 2", "/set seed 7", "hi", "/set temp", "/set temp default", "/set --top-k", "/set"
    )
    assert dict(line.split(None, 1) for line in got[0].splitlines()) == {
        "temperature": "0.0 (set)", "top_k": "20 (the model's)", "top_p": "0.95", "min_p": "0.05",
        "repeat_penalty": "1.0", "repeat_last_n": "64", "presence_penalty": "0.0",
        "frequency_penalty": "0.0", "typical_p": "1.0", "top_n_sigma": "-1.0", "xtc_probability": "0.0",
        "xtc_threshold": "0.1", "dry_multiplier": "0.0", "dry_base": "1.75", "dry_allowed_length": "2",
        "dry_penalty_last_n": "-1", "dry_sequence_breakers": r"""'\n' ':' '"' '*'""", "banned_strings": "none",
        "reasoning_budget": "-1", "reasoning_budget_message": "none", "seed": "random",
        "max_tokens": "until the model ends", "stop": "none", "think": "as the template has it",
    }
    assert got[1:7] == [
        "max_tokens is 2 (set).\n", "seed is 7 (set).\n", "ab\n", "temperature is 0.0 (set).\n",
        "temperature is 0.8 (default).\n", "top_k is 20 (the model's).\n",
    ]
    assert f"{'seed':<26}7 (set)\n" in got[7]
    assert calls[0][1] == {
        "temperature": 0.0, "max_tokens": 2, "seed": 7, "system": None, "think": None, "raw": False,
    }


def test_texts_that_end_replies(talk: Talk) -> None:
    shown = talk('/set stop "f g" c', "one", "/set stop default", "/set stop 'a", '/set stop_strings "a\\nb"', "two")
    assert shown[:5] == [
        "stop is 'f g' 'c' (set).\n", "ab\n", "stop is none (default).\n",
        "octavo: error: stop can't be \"'a\" (allowed: texts, in quotation marks, default)\n",
        "stop is 'a\\nb' (set).\n",
    ]


def test_the_context_is_told_and_where_it_is_set(talk: Talk) -> None:
    said = "the context has 512 tokens from the start on; the model was made for no more"
    for line in ("/set ctx", "/set num_ctx 4096", "/set --ctx-size 8"):
        assert said in talk(line)[0]


def test_a_reply_is_made_again(model: Model, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = seen(model, monkeypatch)
    shown = talk("/regenerate", "one", "two", "/set max_tokens 2", "/regenerate", "three")
    assert "there is no reply to regenerate yet" in shown[0]
    assert shown[4] == "ab\n"
    asked = [user("one"), REPLY, user("two")]
    assert [prompt for prompt, _ in calls[1:3]] == [asked, asked]
    assert calls[3][0] == [*asked, {"role": "assistant", "content": "ab"}, user("three")]


def test_a_reply_stays_where_no_other_comes(model: Model, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = seen(model, monkeypatch)
    talk("one", "/set max_tokens 0", "/regenerate", "/set max_tokens default", "two")
    assert calls[-1][0] == [user("one"), REPLY, user("two")]


def test_every_way_to_leave_is_told(talk: Talk) -> None:
    assert talk("/exit", "one") == talk("/quit", "one") == [""]
    assert "/stats, /regenerate, /bye, /exit, /quit)" in talk("/hlp")[0]


def test_a_model_without_a_template_has_a_limit_that_can_be_lifted(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "base.gguf", weights=tiny.alphabet(), keys={"tokenizer.chat_template": None})
    lines = iter(["/set max_tokens", "/set max_tokens -1", None])
    shown: list[str] = []
    with octavo.load(path, device="reference") as model:
        Chat(model, lambda prompt: next(lines), shown.append).loop()
    assert shown[-3:-1] == ["max_tokens is 512 (the model's).\n", "max_tokens is until the model ends (set).\n"]


def test_thinking_is_a_choice_where_the_template_has_it(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ 'w' if enable_thinking else 'x' }}"
    path = tiny.write(tmp_path / "t.gguf", weights=tiny.alphabet(), keys={"tokenizer.chat_template": template})
    lines = iter(["/set think on", "hi", "/set think off", "hi", "/set think maybe", None])
    shown: list[str] = []
    with octavo.load(path, device="reference") as model:
        Chat(model, lambda prompt: next(lines), shown.append, temperature=0.0).loop()
    text = "".join(shown)
    assert "think is on (set).\nxyz\nthink is off (set).\nyz\n" in text
    assert "think can't be 'maybe' (allowed: on, off, default)" in text


def test_a_conversation_is_saved_and_loaded(model: Model, talk: Talk, monkeypatch: Any, tmp_path: Path) -> None:
    calls = seen(model, monkeypatch)
    path, other = tmp_path / "talk.json", tmp_path / "notes.txt"
    other.write_text("mine")
    got = talk("/system be brief", "one", f"/save {path}", "/clear", f"/load {path}", "two", f"/save {other}", "/load")
    assert got[2] == f"2 messages are in {path}.\n"
    assert got[4] == "2 messages; the conversation goes on from there.\n"
    assert calls[1] == ([user("one"), REPLY, user("two")], {**calls[1][1], "system": "be brief"})
    assert "is not a conversation saved by /save" in got[6]
    assert other.read_text() == "mine"
    assert "/load needs a file's name" in got[7]


def test_files_that_are_no_conversation(talk: Talk, tmp_path: Path) -> None:
    """One without a system message is one, and a pipe that nobody writes to is not waited for."""
    path, pipe = tmp_path / "talk.json", tmp_path / "pipe"
    path.write_text('{"format": "octavo-chat-1", "messages": []}')
    os.mkfifo(pipe)
    got = talk(f"/load {path}", f"/load {pipe}")
    assert got[0] == "0 messages; the conversation goes on from there.\n"
    assert "not a regular file" in got[1]


def test_show(talk: Talk) -> None:
    shown = talk("one", "/show")[1]
    assert shown.startswith(HEADLINE + "system message: none\n2 messages; ")
    assert re.search(r"2 messages; \d+ of 512 tokens of context\n$", shown)


def test_completion(model: Model, tmp_path: Path) -> None:
    (tmp_path / "talk.json").touch()
    chat = Chat(model, lambda prompt: None, lambda text: None)
    assert chat.complete("/s") == ["/system ", "/set ", "/show ", "/save ", "/stats "]
    assert chat.complete("/set te") == ["/set temperature "]
    assert chat.complete(f"/load {tmp_path}/t") == [f"/load {tmp_path}/talk.json"]
    assert chat.complete("hello") == chat.complete("/set top_k 1") == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/hlp", "no command /hlp (allowed: /help, "),
        ("/set volume 3", "no setting 'volume' (allowed: temperature, top_k"),
        ("/set temperature hot", "temperature can't be 'hot' (allowed: a number, default)"),
        ("/set temperature nan", "temperature is nan (allowed: 0 to 100)"),
        ("/set top_k 1.5", "top_k can't be '1.5'"),
        ("/set max_tokens -3", "max_tokens is -3 (allowed: 0 or more, or -1 for no limit)"),
        ("/set seed -2", "seed is -2"),
        ("\ud800", "lone surrogate"),
        ("/save", "/save needs a file's name"),
        ("/save /nowhere/talk.json", "/nowhere/talk.json: can't be written: No such file"),
        ("/load /nowhere/talk.json", "/nowhere/talk.json: can't be opened: No such file"),
    ],
)
def test_what_is_wrong_is_said_and_changes_nothing(talk: Talk, line: str, message: str) -> None:
    error, after, _ = talk(line, "hi")
    assert error.startswith("octavo: error: ")
    assert message in error
    assert error.count("\n") == 1
    assert after == ALPHABET + "\n"


def test_help_names_every_command(talk: Talk) -> None:
    text = talk("/help")[0]
    assert re.findall(r"^/\w+", text, re.MULTILINE) == [
        "/help", "/clear", "/system", "/set", "/set", "/regenerate", "/show", "/save", "/load", "/stats", "/bye",
    ]


def test_several_lines(model: Model, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = seen(model, monkeypatch)
    talk('"""', "one", "", "/two", '"""', '"""three"""', '"""four', 'five"""', '"""', '"""', "/path/to isn't a command")
    sent = [prompt[-1]["content"] for prompt, _ in calls]
    assert sent == ["one\n\n/two", "three", "four\nfive", "/path/to isn't a command"]


def test_a_full_context_drops_the_oldest_turns(alphabet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    lines = iter(["one", "two", "three", None])
    with octavo.load(alphabet, device="reference", n_ctx=130) as model:
        calls = seen(model, monkeypatch)
        Chat(model, lambda prompt: next(lines), shown.append, system="be brief", temperature=0.0).loop()
    text = "".join(shown)
    assert text.count(ALPHABET + "\n") == 3
    assert "(the context of 130 tokens is full: the oldest 4 messages are dropped)\n" in text
    assert calls[-1][0] == [user("three")]
    assert calls[-1][1]["system"] == "be brief"


def test_a_reply_that_fills_the_context_says_what_to_do(endless: str) -> None:
    shown: list[str] = []
    lines = iter(["one", "two", "x" * 90, None])
    with octavo.load(endless, device="reference", n_ctx=80) as model:
        Chat(model, lambda prompt: next(lines), shown.append, temperature=0.0).loop()
    text = "".join(shown)
    assert text.count("of the reply; --ctx-size makes it larger, up to 32768\n") == 2
    assert text.count("(the context of 80 tokens is full: the oldest 2 messages are dropped)") == 2
    assert "does not fit the context of 80; --ctx-size makes it larger" in text


def test_raw_continues_each_line_by_itself(model: Model, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = seen(model, monkeypatch)
    assert talk("w", "x", raw=True)[:2] == ["xyz\n", "yz\n"]
    assert [prompt for prompt, _ in calls] == ["w", "x"]


CONTROLLED = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
"""Makes its standard input the terminal that Ctrl-C comes from, then becomes the command."""


PASTE_MODE = re.compile(r"\x1b\[\?2004[hl]\r?")
"""How readline asks the terminal to mark what is pasted."""


class Terminal:
    """`octavo` in a pseudo-terminal of its own."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.fd, other = pty.openpty()
        command = [sys.executable, "-c", CONTROLLED, sys.executable, "-m", "octavo", *on_reference(arguments)]
        self.process = subprocess.Popen(
            command,
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb", **environment},
        )
        os.close(other)
        self.text = ""

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def until(self, text: str, seconds: float = HANG_S) -> str:
        """What is shown up to `text`, which must come in time."""
        end = time.monotonic() + seconds
        while text not in self.text:
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            assert ready, f"{text!r} did not come; shown: {self.text!r}"
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # the other end is closed
                data = b""
            assert data, f"it ended before {text!r}; shown: {self.text!r}"
            self.text = PASTE_MODE.sub("", self.text + data.decode().replace("\r\n", "\n"))
        before, _, self.text = self.text.partition(text)
        return before

    def wait_until_it_reads(self, seconds: float = HANG_S) -> None:
        """Its main thread does nothing: readline shows its prompt a moment before it waits."""
        of_main_thread = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/stat")
        if not of_main_thread.exists():
            time.sleep(0.5)
            return
        end = time.monotonic() + seconds
        while of_main_thread.read_text().rpartition(")")[2].split()[0] != "S":
            assert time.monotonic() < end
            time.sleep(0.01)

    def status(self) -> int:
        """How it ended, having said all that it had to say."""
        while True:
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                break
            if not data:
                break
            self.text += data.decode()
        return self.process.wait(timeout=HANG_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.fd)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    with ExitStack() as stack:

        def start(*arguments: str, **environment: str) -> Terminal:
            started = Terminal(*arguments, XDG_STATE_HOME=str(tmp_path), **environment)
            stack.callback(started.close)
            return started

        yield start


def test_at_a_terminal(terminal: Callable[..., Terminal], alphabet: str, tmp_path: Path) -> None:
    t = terminal("run", alphabet, "--temp", "0")
    assert t.until(">>> ").endswith(HEADLINE + GREETING)
    t.type("hi\n")
    assert t.until(">>> ") == f"hi\n{ALPHABET}\n"
    t.type("/stats\n")
    assert "Speeds are shown." in t.until(">>> ")
    t.type('"""\n')
    t.until("... ")
    t.type("two\n")
    t.until("... ")
    t.type('lines"""\n')
    assert "tok/s; ended by stop" in t.until(">>> ")
    t.wait_until_it_reads()  # a signal between prompt and reading is seen at the next key
    t.type("\x03")
    assert "/bye or Ctrl-D leaves." in t.until(">>> ")
    t.type("/nothing\n")
    assert "octavo: error: no command /nothing" in t.until(">>> ")
    t.type("\x1b[200~pasted\nin three\nlines\x1b[201~\n")
    t.until(ALPHABET)
    assert ALPHABET not in t.until(">>> "), "one message"
    t.type("/bye\n")
    assert t.status() == 0
    history = tmp_path / "octavo" / "history"
    assert history.read_text().splitlines()[:2] == ["hi", "/stats"]
    assert history.stat().st_mode & 0o777 == 0o600


def test_ctrl_c_stops_the_reply_only_and_ctrl_d_leaves(terminal: Callable[..., Terminal], endless: str) -> None:
    t = terminal("run", endless, "--temp", "0", "--ctx", "30000")
    t.until(">>> ")
    t.type("hi\n")
    t.until(ALPHABET * 3)
    t.type("\x03")
    reply = t.until(">>> ")
    assert set(reply.replace("^C", "")) <= set(ALPHABET + "\n")
    assert len(reply) < 20_000, "it was stopped, it did not end"
    t.type("/set max_tokens 3\n")
    t.until(">>> ")
    t.type("again\n")
    assert t.until(">>> ").endswith("\nabc\n")
    t.type("\x04")
    assert t.status() == 0
    assert "Traceback" not in t.text
