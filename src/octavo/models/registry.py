"""The architectures that Octavo runs, its own and those of installed packages, and from a file to its model."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from octavo.errors import ModelError
from octavo.io.gguf import GGUFFile
from octavo.models.architecture import Architecture, ModelSpec
from octavo.models.cache_scales import cache_tensors
from octavo.models.refusal import require_model, unknown
from octavo.models.weights import check_tensors

GROUP = "octavo.architectures"
"""Entry points of packages that bring architectures: a module for each, by GGUF's `general.architecture`."""


def _own() -> Iterator[Architecture[Any]]:
    """`ARCH` of each module of this package that has one."""
    for module in pkgutil.iter_modules([os.path.dirname(__file__)], f"{__package__}."):
        if module.name != __name__ and hasattr(found := import_module(module.name), "ARCH"):
            yield found.ARCH


ARCHITECTURES: dict[str, Architecture[Any]] = {architecture.name: architecture for architecture in _own()}
"""Octavo's own, by GGUF's `general.architecture`."""


@cache
def installed() -> dict[str, Architecture[Any]]:
    """Those of installed packages. They are loaded when a model is of none of Octavo's own.

    Raises ModelError for a package that can't be imported, as one of another version may be.
    """
    found: dict[str, Architecture[Any]] = {}
    for point in entry_points(group=GROUP):
        try:
            found[point.name] = point.load().ARCH
        except (ImportError, AttributeError) as error:
            package = point.dist.name if point.dist else point.value
            raise ModelError(f"architecture {point.name} of the package {package} can't be loaded: {error}") from error
    return found


def find(name: str) -> Architecture[Any] | None:
    """The architecture that GGUF calls `name`, Octavo's own or an installed one; None where there is none."""
    return ARCHITECTURES.get(name) or installed().get(name)


def read_model(file: GGUFFile) -> ModelSpec:
    """The model in a file.

    Raises ModelError for a file that holds none, and for an architecture that is unknown, incomplete or contradictory.
    """
    require_model(file)
    name = file.metadata.get_str("general.architecture")
    architecture = find(name)
    if architecture is None:
        raise ModelError(unknown(name, ARCHITECTURES, "architecture "), file=file.path)
    file, metadata = architecture.updated(file)
    shapes = {info.name: tuple(info.shape) for info in file.tensors.values()}
    hparams = architecture.read(metadata, file.path, shapes)
    check_tensors(file, architecture.tensors(hparams) | cache_tensors(hparams))
    return ModelSpec(file, architecture, hparams)
