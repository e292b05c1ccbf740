"""The architectures that Octavo runs, its own and those of installed packages, and from a file to its model."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from octavo.errors import ModelError
from octavo.io.gguf import GGUFFile
from octavo.models import dense, encoder, hybrid, moe, recurrent
from octavo.models.shared.architecture import Architecture, ModelSpec
from octavo.models.shared.cache_scales import cache_tensors
from octavo.models.shared.refusal import require_model, unknown
from octavo.models.shared.weights import check_tensors

GROUP = "octavo.architectures"
"""Entry points of packages that bring architectures: a module for each, by GGUF's `general.architecture`."""


def _own() -> Iterator[Architecture[Any]]:
    """`ARCH` of each module of the families."""
    for family in (dense, moe, hybrid, recurrent, encoder):
        for module in pkgutil.iter_modules(family.__path__, f"{family.__name__}."):
            yield import_module(module.name).ARCH


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
