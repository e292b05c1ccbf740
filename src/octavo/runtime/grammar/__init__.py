"""Grammars: what a reply may be, and which tokens may come next.

In: JSON schemas, regular expressions, GBNF and Lark. Out: masks of tokens. Begin with `grammar`; compiling and masks
are made in processes that can be ended (`host` forks `workers`, whose program is `process`).
"""
