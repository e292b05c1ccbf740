"""Long texts: other threads run while one is encoded, and its length tells how many tokens it has at least."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import unicodedata
from threading import Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Package

from octavo.errors import TokenizerError
from octavo.text import tokenizers_package
from octavo.text.text_encoder import COMPOSED
from tests.limits import HANG_S
from tests.text.test_llama_vocabularies import RECORDED, name, opened
from tests.text.vocabularies import CONTROL, TRICKY, USER_DEFINED, byte_level, spm, train_merges

ENTRIES = {name(entry): entry["keys"] for entry in RECORDED["vocabularies"]}
MERGES = train_merges(TRICKY, 60)
LONGEST = f"<｜{'▁' * 20}｜>"
SPECIAL = {"<|end|>": CONTROL, LONGEST: USER_DEFINED}
PIECES = {"▁": -1.0, "▁▁": -2.0, "ab": -3.0, "日本": -4.0}
OTHERS = {
    "byte-level": byte_level(MERGES, "qwen2", SPECIAL),
    "composed": byte_level(MERGES, "qwen2", SPECIAL, **{"normalizer.nfc": True}),
    "left out": byte_level([*MERGES, "日 本"], "qwen2"),
    "spm": spm(PIECES),
    "stripping": spm(PIECES, {"<|end|>": CONTROL}) | {"general.name": "Phi-3 mini"},
}
TOKENIZERS = {kind: opened(keys) for kind, keys in (ENTRIES | OTHERS).items()}
UNKNOWN = {kind for kind in TOKENIZERS if kind.startswith(("bert", "t5", "whitespace"))} | {"left out", "stripping"}
PARTS = [" ", "  ", "▁", "\n", "a", "ab", "日本", "e\u0301", "\u1fbe\u0308\u0301", "K", "<|end|>", "<0x41>"]
TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.lists(st.sampled_from(PARTS), max_size=30).map("".join)


@pytest.fixture
def sequential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "")  # so that what follows is undone
    tokenizers_package.be_sequential()


@pytest.mark.few(9)
@pytest.mark.parametrize("kind", TOKENIZERS)
@given(text=TEXT)
@settings(deadline=None)
def test_ids_are_those_of_short_texts(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENIZERS_PARALLELISM", "true")
        wanted = tokenizer.encode(text)
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        patch.setattr(tokenizers_package, "_LONG", 0)
        assert tokenizer.encode(text) == wanted


@pytest.mark.usefixtures("sequential")
@pytest.mark.parametrize("kind", ["byte-level", "gpt2-pre=gemma4"])
def test_other_threads_run_meanwhile(kind: str) -> None:
    """Often, or on a busy machine at times in each of some encodings; one that holds the lock leaves a turn or two."""
    tokenizer, text, turns = TOKENIZERS[kind], (TRICKY * 2_000).replace("\n", " "), 0
    for _ in range(10):
        thread = Thread(target=tokenizer.encode, args=(text,))
        thread.start()
        while thread.is_alive():
            time.sleep(0.001)
            turns += 1
        if turns > 30:
            return
    pytest.fail(f"only {turns} turns")


def backtracking() -> Any:
    package = Package(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    package.pre_tokenizer = pre_tokenizers.Split(Regex("(?:a|a|aa)+[cd]"), "isolated")
    return package


@pytest.mark.usefixtures("sequential")
@pytest.mark.parametrize("length", [1_000, 10_000])
def test_a_pattern_that_backtracks_too_far(length: int) -> None:
    with pytest.raises(TokenizerError, match=rf"text of {length} characters has a part too long to cut into words"):
        tokenizers_package.run_engine(backtracking(), "a" * length)


FORKED = """
import os, sys
from octavo.text import Tokenizer, tokenizers_package
from tests.text.test_long_text import MERGES, TRICKY, byte_level
if sys.argv[1] == "front":
    tokenizers_package.be_sequential()
tokenizer, text = Tokenizer.from_metadata(byte_level(MERGES, "qwen2")), TRICKY * 100
ids = tokenizer.encode(text)
pid = os.fork()
if not pid:
    os._exit(0 if tokenizer.encode(text) == ids else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.few(1)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("where", ["front", "library"])
def test_forks_encode_and_print_nothing(where: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run(
        [sys.executable, "-c", FORKED, where],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(text=TEXT)
@settings(deadline=None)
def test_a_text_has_as_many_tokens_as_its_length_tells(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text, add_special=False))


@pytest.mark.parametrize(("kind", "token", "least"), [
    ("byte-level", LONGEST, 100), ("composed", LONGEST, 25), ("composed", "<|end|>", 11), ("spm", "日本", 100),
])
def test_a_long_token_again_and_again(kind: str, token: str, least: int) -> None:
    tokenizer = TOKENIZERS[kind]
    assert len(tokenizer.encode(token * 100, add_special=False)) in (100, 101)  # one is the space before a text
    assert tokenizer.least_tokens(token * 100) == least
    assert tokenizer.least_tokens("") == 0


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_where_a_text_may_come_to_nothing(kind: str) -> None:
    assert (TOKENIZERS[kind].least_tokens("a text" * 1000) == 0) == (kind in UNKNOWN)


def test_how_much_shorter_a_composed_text_is() -> None:
    """Of all characters: the longest way to write one, each part of it by what is longest among what is equal to it."""
    every = [chr(code) for code in range(0x30000) if not 0xD800 <= code < 0xE000]  # those after them are whole
    apart = {c: parts for c in every if (parts := unicodedata.normalize("NFD", c)) != c}
    longest = {part: len(part.encode()) for parts in apart.values() for part in parts}
    for c, parts in apart.items():
        if len(parts) == 1:
            longest[parts] = max(longest[parts], len(c.encode()))
    for parts in {*apart.values(), *longest}:
        composed = unicodedata.normalize("NFC", parts).encode()
        assert sum(longest[part] for part in parts) <= COMPOSED * len(composed)
