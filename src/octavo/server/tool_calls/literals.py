"""Literals of Python, as data that JSON can hold."""

from __future__ import annotations

import ast
import warnings
from typing import Any


def literal(text: str) -> Any:
    """The value of a literal, of which true, false and null are ones too; tuples are lists, and keys texts.

    Raises ValueError for what is none.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes that there are not, which are taken as they stand
            return _value(ast.parse(f"({text})", mode="eval").body)
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(str(error)) from None


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(one) for one in node.elts]
    if isinstance(node, ast.Dict):
        return {str(ast.literal_eval(k)): _value(v) for k, v in zip(node.keys, node.values, strict=True) if k}
    return ast.literal_eval(node)
