"""What a reader can follow: no function takes more than 12 parameters, no file is longer than 400 lines."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import octavo

SOURCE = Path(octavo.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
MOST_PARAMETERS, MOST_LINES = 12, 400
MORE_PARAMETERS = {"runtime/loading.py: load": 13}
"""Of what is called with names alone, one for each thing that a user chooses."""


def functions(text: str) -> Iterator[tuple[str, int]]:
    """Name and number of parameters of each function; of a method without `self`. **names: Never is no parameter."""
    nodes = list(ast.walk(ast.parse(text)))
    methods = {f for c in nodes if isinstance(c, ast.ClassDef) for f in c.body}
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            a = node.args
            takes_none = a.kwarg and isinstance(a.kwarg.annotation, ast.Name) and a.kwarg.annotation.id == "Never"
            names = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, None if takes_none else a.kwarg))]
            bound = node in methods and bool(names) and names[0].arg in ("self", "cls")
            yield getattr(node, "name", "lambda"), len(names) - bound


def test_parameters_are_few() -> None:
    found = {
        f"{path.relative_to(SOURCE)}: {name}": count
        for path in FILES
        for name, count in functions(path.read_text(encoding="utf-8"))
        if count > MOST_PARAMETERS
    }
    assert found == MORE_PARAMETERS


def test_files_are_short() -> None:
    lengths = {str(path.relative_to(SOURCE)): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert not {name: n for name, n in lengths.items() if n > MOST_LINES}
    assert len(lengths) > 300


def test_parameters_are_counted() -> None:
    text = "class A:\n def f(self, a, /, b, *c, d=1, **e): return lambda x, y: x\ndef g(self, **other: Never): pass"
    assert sorted(functions(text)) == [("f", 5), ("g", 1), ("lambda", 2)]
