"""What the reply of `octavo run` may be: options that take a text, or the file that it is in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from octavo.errors import UsageError
from octavo.io.regular_file import read_bytes

if TYPE_CHECKING:
    from octavo.runtime import Grammar

MOST_BYTES = 1 << 20


def grammar_option(json_schema: str | None, grammar: str | None) -> Grammar | None:
    """The grammar that was asked for. Raises UsageError for two, GrammarError for one that can't be used."""
    from octavo.runtime import Grammar

    if json_schema is not None and grammar is not None:
        raise UsageError("--json-schema and --grammar can't be used together")
    if json_schema is not None:
        inline = json_schema.lstrip().startswith(("{", "true", "false"))
        if not inline and not os.path.exists(json_schema):
            raise UsageError(f"--json-schema {json_schema!r} is neither a file nor a JSON schema: one begins with {{")
        return Grammar.json_schema(_text(json_schema, inline))
    if grammar is not None:
        inline = "::=" in grammar or "start:" in grammar
        if not inline and not os.path.exists(grammar):
            raise UsageError(f"--grammar {grammar!r} is neither a file nor a grammar: GBNF contains ::=, Lark start:")
        text = _text(grammar, inline)
        return Grammar.gbnf(text) if "::=" in text else Grammar.lark(text)
    return None


def _text(given: str, inline: bool) -> str:
    if inline:
        return given
    try:
        return read_bytes(given, MOST_BYTES).decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{given} is not UTF-8 at byte {error.start}") from None
