"""Public names of a package that come from their modules when they are first used, so that importing it stays light."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def names_from(package: str, homes: Mapping[str, str], modules: Collection[str] = ()) -> Callable[[str], Any]:
    """The `__getattr__` of a package (PEP 562), given the module that each of its public names comes from.

    `modules` are the names of public modules within it.
    """

    def get(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return get
