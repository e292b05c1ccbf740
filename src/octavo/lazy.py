"""Public names of a package that come from their modules when they are first used, so that importing it stays light.

    if TYPE_CHECKING:
        from octavo.text.tokenizer import Tokenizer

    __all__ = ["Tokenizer"]
    __getattr__ = names_from(__name__, {"octavo.text.tokenizer": ["Tokenizer"]})

Type checkers read the import, Python the table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from typing import Any


def names_from(package: str, homes: Mapping[str, Sequence[str]], modules: Collection[str] = ()) -> Callable[[str], Any]:
    """The `__getattr__` of a package (PEP 562), whose names are by their modules in `homes`.

    `modules` are the names of public modules within it.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home_of[name]), name)

    return get
