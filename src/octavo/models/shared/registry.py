"""The architectures that Octavo runs, its own and those of installed packages, and from a file to its model."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from octavo.errors import ModelError
from octavo.io.gguf import GGUFFile
from octavo.models.families import own_modules
from octavo.models.shared.architecture import Architecture, ModelSpec
from octavo.models.shared.cache_scales import cache_tensors
from octavo.models.shared.refusal import is_next_layer, require_model, unknown
from octavo.models.shared.weights import check_tensors

GROUP = "octavo.architectures"
"""Entry points of packages that bring architectures: a module for each, by GGUF's `general.architecture`."""


class Architectures(Mapping[str, Architecture]):
    """Octavo's own, by GGUF's `general.architecture`: `ARCH` of each module of the families, which is named so.

    One that is asked for is imported alone; all are where their names are listed.
    """

    def __getitem__(self, name: str) -> Architecture:
        module = own_modules().get(name.replace("-", "_"))
        found = None if module is None else _imported(module)
        if found is None or found.name != name:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return (_imported(module).name for module in own_modules().values())

    def __len__(self) -> int:
        return len(own_modules())


def _imported(module: str) -> Architecture:
    found: Architecture = import_module(module).ARCH
    return found


ARCHITECTURES: Mapping[str, Architecture] = Architectures()


@cache
def installed() -> dict[str, Architecture]:
    """Those of installed packages. They are loaded when a model is of none of Octavo's own.

    Raises ModelError for a package that can't be imported, as one of another version may be.
    """
    found: dict[str, Architecture] = {}
    for point in entry_points(group=GROUP):
        try:
            found[point.name] = point.load().ARCH
        except (ImportError, AttributeError) as error:
            package = point.dist.name if point.dist else point.value
            raise ModelError(f"architecture {point.name} of the package {package} can't be loaded: {error}") from error
    return found


def find(name: str) -> Architecture | None:
    """The architecture that GGUF calls `name`, Octavo's own or an installed one; None where there is none."""
    return ARCHITECTURES.get(name) or installed().get(name)


def packages_of(name: str) -> list[Path]:
    """The folders of the installed package that brings an architecture; none for Octavo's own."""
    if name.replace("-", "_") in own_modules():
        return []
    modules = [sys.modules[point.module] for point in entry_points(group=GROUP) if point.name == name]
    return [Path(module.__file__).parent for module in modules if module.__file__]


def read_model(file: GGUFFile) -> ModelSpec:
    """The model in a file.

    Raises ModelError for a file that holds none, and for an architecture that is unknown, incomplete or contradictory.
    """
    require_model(file)
    if is_next_layer(file):
        raise ModelError("is a head, which --draft takes beside its model", file=file.path)
    name = file.metadata.get_str("general.architecture")
    architecture = find(name)
    if architecture is None:
        raise ModelError(unknown(name, ARCHITECTURES, "architecture "), file=file.path)
    file, metadata = architecture.updated(file)
    shapes = {info.name: tuple(info.shape) for info in file.tensors.values()}
    hparams = architecture.read(metadata, file.path, shapes)
    check_tensors(file, architecture.tensors(hparams) | cache_tensors(hparams))
    return ModelSpec(file, architecture, hparams)
