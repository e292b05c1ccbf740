"""Which models there are: the built-in one, those of the hub's cache, and those of a folder."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import llm

from octavo.errors import OctavoError
from octavo.huggingface import open_model_file
from octavo.io.model_path import resolve
from octavo.router.catalog import Found, in_cache, in_folder
from octavo.server.routes.ollama_facts import capabilities_of

log = logging.getLogger("llm_octavo")
PREFIX = "octavo/"
GENERATES, TEMPLATE = "completion", "tokenizer.chat_template"


@dataclass(frozen=True)
class Available:
    """A model: its name for llm, its path, other names, and what it can do, by Ollama's words."""

    model_id: str
    path: str
    aliases: tuple[str, ...]
    capabilities: tuple[str, ...]


def available() -> list[Available]:
    """All models that can be read, by their names; of two with one name the first."""
    found: dict[str, Available] = {}
    for one in _found():
        can = _capabilities(one.path, _changed(one.path))
        if can:
            aliases = tuple(PREFIX + name for name in one.aliases)
            found.setdefault(one.name, Available(PREFIX + one.name, one.path, aliases, can))
    return list(found.values())


def models_dir() -> str | None:
    """The folder that was chosen, None for none."""
    try:
        with open(_settings(), encoding="utf-8") as file:
            found: str | None = json.load(file)["models_dir"]
            return found
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError) as error:
        problem = f"{_settings()} can't be read ({error!r})"
        raise llm.ModelError(f"{problem}; `llm octavo models-dir FOLDER` writes it anew") from None


def set_models_dir(folder: str | None) -> None:
    """Choose a folder, or none."""
    with open(_settings(), "w", encoding="utf-8") as file:
        json.dump({"models_dir": folder}, file)


def _settings() -> str:
    return str(llm.user_dir() / "octavo.json")  # type: ignore[no-untyped-call]


def _found() -> Iterator[Found]:
    yield Found("demo", resolve("demo"), "argument")
    yield from in_cache()
    folder = models_dir()
    if folder is None:
        return
    try:
        yield from in_folder(folder)
    except OctavoError as error:
        log.warning("%s", error)


def _changed(path: str) -> float:
    return os.stat(path).st_mtime


@lru_cache
def _capabilities(path: str, changed: float) -> tuple[str, ...]:
    """What the model at a path can do, as it was when it `changed`; nothing for a file that can't be read."""
    try:
        with open_model_file(path) as file:
            return tuple(capabilities_of(file, file.metadata.get(TEMPLATE)))
    except (OctavoError, OSError) as error:
        log.warning("%s is left out: %s", path, error)
        return ()
