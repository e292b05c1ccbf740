"""Public names of a package that come from their modules when they are first used, so that importing it stays light.

    if TYPE_CHECKING:
        from octavo.text.tokenizer import Tokenizer

    __all__ = ["Tokenizer"]
    __getattr__ = names_from(__name__)

The imports that type checkers read say where names come from when the package runs, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from functools import cache
from importlib import import_module
from typing import Any


def names_from(package: str, modules: Collection[str] = ()) -> Callable[[str], Any]:
    """The `__getattr__` of a package (PEP 562), whose source imports its names under `if TYPE_CHECKING:`.

    `modules` are the names of public modules within it.
    """

    def get(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        home = None if name.startswith("__") else _homes(package).get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home), name)

    return get


@cache
def _homes(package: str) -> dict[str, str]:
    """Of each name that the package's source imports for type checkers the module that it is in."""
    import ast

    spec: Any = sys.modules[package].__spec__
    blocks = (s.body for s in ast.parse(spec.loader.get_source(package)).body if isinstance(s, ast.If))
    imports = (s for block in blocks for s in block if isinstance(s, ast.ImportFrom))
    return {name.name: str(s.module) for s in imports for name in s.names}
