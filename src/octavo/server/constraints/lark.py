"""Texts and regular expressions as Lark's grammars have them."""

from __future__ import annotations

import json
import re


def quoted(text: str) -> str:
    """A text as Lark has it."""
    return json.dumps(text, ensure_ascii=False)


def pattern(before: str, text: str) -> str:
    """A regular expression of a text after what `before` matches, "" for any text."""
    return f"/{before or '(?s:.*)'}{escaped(text)}/"


def escaped(text: str) -> str:
    """A text as a part of a regular expression."""
    return re.sub(r"([\\.+*?()|\[\]{}^$/&~#-])", r"\\\1", text).replace("\n", r"\n")
