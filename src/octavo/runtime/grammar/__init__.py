"""Grammars: what a reply may be, and which tokens may come next.

In: JSON schemas, regular expressions, GBNF and Lark. Out: masks of tokens. Begin with `grammar`; compiling and masks
are made in processes that can be ended (`host` forks `workers`, whose program is `grammar_process`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.lazy import names_from

if TYPE_CHECKING:
    from octavo.runtime.grammar.grammar import Grammar, Grammars

__all__ = ["Grammar", "Grammars"]

__getattr__ = names_from(__name__, {
    "octavo.runtime.grammar.grammar": ["Grammar", "Grammars"],
})
