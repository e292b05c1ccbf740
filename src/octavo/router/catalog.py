"""The models that may be asked for, by their names."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Literal

from octavo.errors import UsageError
from octavo.io.hub.download_cache import entries_in
from octavo.io.hub.variants import ADAPTER, RepoFile, variants
from octavo.server.model_name import plain_name
from octavo.server.serve_options import EngineOptions, ServerOptions

log = logging.getLogger("octavo")
Source = Literal["argument", "cache", "models_dir", "preset"]
"""Where a model comes from: the command line, the hub's cache, a folder, or a settings file."""
PART = re.compile(r"(-[0-9]{5}-of-[0-9]{5})?\.gguf$")
SHOWN = 8
"""Names that an error lists."""


@dataclass(frozen=True)
class Found:
    """A model that is there: its name, its path or its name on the hub, and other names of it."""

    name: str
    path: str
    source: Source
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class KnownModel:
    """A model, and how it is served.

    load  it is loaded at the start, not when it is asked for
    """

    engine: EngineOptions
    server: ServerOptions
    source: Source
    load: bool = False

    @property
    def name(self) -> str:
        return self.server.name

    @property
    def names(self) -> tuple[str, ...]:
        """All that it is called."""
        return self.server.name, *self.server.aliases


def in_folder(folder: str) -> Iterator[Found]:
    """The models in a folder: GGUF files, whole sets of their parts, and folders with models in them.

    Raises UsageError for a path that is not a folder.
    """
    if not os.path.isdir(folder):
        raise UsageError(f"--models-dir is {folder!r}, which is not a folder")
    inside = sorted((one for one in os.scandir(folder) if _is_usable(one)), key=lambda one: one.name)
    files = [RepoFile(one.name, one.stat().st_size) for one in inside if one.is_file()]
    for one in variants(files):
        if not one.is_folder:
            yield Found(PART.sub("", one.files[0].name), one.path(folder), "models_dir")
    for below in (one for one in inside if one.is_dir()):
        there = [one for one in variants(entries_in(below.path)) if one.label != ADAPTER]
        for one in there:
            name = below.name if len(there) == 1 else f"{below.name}:{one.label}"
            yield Found(name, one.path(below.path), "models_dir")


def _is_usable(entry: os.DirEntry[str]) -> bool:
    """Whether there is something at an entry of a folder, with a name that can be told and asked for."""
    if not entry.name.isprintable():  # nor one that is not UTF-8
        log.warning("--models-dir: %r is left out: its name has characters that can't be shown", entry.name)
        return False
    return os.path.exists(entry.path)  # a link may lead nowhere


def in_cache() -> Iterator[Found]:
    """The models in the hub's cache that are whole, as `octavo list` names them."""
    from octavo.io.hub.inventory import installed

    for one in installed():
        if one.quantization not in (None, ADAPTER):
            whole = str(replace(one.name, what=one.quantization))
            yield Found(str(one.name), one.path, "cache", () if one.name.what else (whole,))


class Catalog:
    """Known models by all of their names. Raises UsageError where two have the same one."""

    def __init__(self, known: Sequence[KnownModel]) -> None:
        self.models = {one.name: one for one in known}
        self._names = dict[str, str]()
        paths = dict[str, str]()
        for model in known:
            for name in model.names:
                path = paths.setdefault(name, model.engine.path)
                if path != model.engine.path or self._names.setdefault(name, model.name) != model.name:
                    raise UsageError(f"two models are called {name!r}: {path} and {model.engine.path} (allowed: a name "
                                     "for each, by --models-preset)")

    def find(self, name: str) -> str | None:
        """The name of the model that is called so, as Ollama's clients write it too; None for none."""
        return self._names.get(name) or self._names.get(plain_name(name))

    def unknown(self, name: str) -> str:
        """That there is no model of this name, and what there is."""
        if not self._names:
            return (f"unknown model {name!r}: there is none yet; `octavo pull` or POST /models brings one, and "
                    "`octavo serve demo` serves the built-in one")
        if close := get_close_matches(name, self._names, n=1):
            return f"unknown model {name!r}; did you mean {close[0]!r}?"
        return f"unknown model {name!r} (choices: {self._names_shown()})"

    def choices(self) -> str:
        """What `model` may be, for an error."""
        return f"one of: {self._names_shown()}" if self.models else "a model's name; there is none yet"

    def _names_shown(self) -> str:
        names = sorted(self.models)
        more = f" and {len(names) - SHOWN} more at /v1/models" if len(names) > SHOWN else ""
        return f"{', '.join(names[:SHOWN])}{more}"
