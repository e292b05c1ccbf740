"""The name that GGUF gives to a tokenizer's way of cutting text into words, found by what it does to a probe."""

from __future__ import annotations

from typing import Any

from octavo.huggingface.tokenizer.tokenizer_json import TokenizerJson
from octavo.text.bpe import word_splitter
from octavo.text.pretokenize import PRE_TOKENIZERS

PREFERRED = ("llama-bpe", "qwen2", "gpt-2", "tekken", "smollm", "gpt-4o", "deepseek-v3")
"""The names to write, where several mean the same."""

PROBE = (
    "Hello World! I'm sure we'll say: he'S there, THEY'RE not; it 'tis\n\n \n\t x\t\t y  z   \n   end  \r\n\r\nnext\n"
    "  1 12 123 1234 12345678 3.14 1,000 x86 4th\u0663\u0664\u0665 \u00bd \u2167 camelCase HTTPServer snake_case _x __y"
    " don\u2019t e\u0301te\u0301 n\u00e3o stra\u00dfe \u01c5 \u043f\u0440\u0438\u0432\u0435\u0442 \u4f60\u597d\u4e16"
    "\u754c\u3002\u65e5\u672c\u8a9e\u30c6\u30b9\u30c8 \ud55c\uad6d\uc5b4 \u0e44\u0e17\u0e22 \u0939\u093f\u0928\u094d"
    "\u0926\u0940 \u0645\u0631\u062d\u0628\u0627 (a)[b]{c} <d> /e/ f(g) --- ==> !!?? ... \u2026 \u20ac5 $6 #7 @h &i"
    " \U0001f600\U0001f468\u200d\U0001f469 `code` ~t^u|v \"q\" 'r' a'b s'\n\n\n   last line\n"
    "Ali'den" + 19 * " " + "z\n"
)
"""Text that every two ways of cutting cut differently: contractions, digits, cases, marks, scripts, white space."""


def find_pre_tokenizer(tokenizer: TokenizerJson) -> str:
    """The value of `tokenizer.ggml.pre`. Raises TokenizerError where no name means what the tokenizer does."""
    wanted = tokenizer.cuts(PROBE)
    if wanted is not None:
        for name in (*PREFERRED, *PRE_TOKENIZERS):
            row = PRE_TOKENIZERS[name]
            if row.ignore_merges is tokenizer.ignore_merges and cuts(word_splitter(row)) == wanted:
                return name
    problem = "cuts text in a way that GGUF has no name for"
    raise tokenizer.error("pre_tokenizer", problem, f"one of {', '.join(PREFERRED)}, and others")


def cuts(splitter: Any) -> list[tuple[int, int]]:
    """Where a pre-tokenizer of the `tokenizers` package cuts the probe."""
    return [place for _, place in splitter.pre_tokenize_str(PROBE)]
