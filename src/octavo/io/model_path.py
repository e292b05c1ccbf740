"""Where a model is: a path, `demo`, or a name of the hub, whose files are downloaded when they are first asked for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from octavo.data import resolve as resolve_path
from octavo.errors import HubError
from octavo.io.hub.download_cache import cached, find
from octavo.io.hub.name import HubName, parse
from octavo.io.hub.retries import Began, Show, nobody
from octavo.io.hub.variants import Chooser, choose, choose_adapter
from octavo.io.system_memory import room

if TYPE_CHECKING:
    from octavo.io.hub.download import Pulled


def resolve(model: str | os.PathLike[str]) -> str:
    """The path of a model: a path as it is, "demo" for the one in the package, ORG/REPO[:QUANT][@REVISION] for one of
    the hub, which is downloaded where it is not in the hub's cache. A path wins over a name.

    Raises UsageError for what is neither a path nor a name, and HubError for a name that can't be fetched. A path where
    nothing is comes back as it is.
    """
    return locate(model)


def locate(
    model: str | os.PathLike[str], *, offline: bool = False, show: Show = nobody, chooser: Chooser = choose,
    began: Began = nobody
) -> str:
    """The same; `offline` asks nothing of the hub, `show` is told of a download, `chooser` says what is meant, `began`
    is told of each file."""
    path = resolve_path(model)
    name = hub_name(path)
    if name is None:
        return path
    found = cached(name, free_memory())
    if found is not None:
        return found
    return download(name, show, chooser, offline=offline, began=began).path


def locate_adapter(adapter: str | os.PathLike[str], *, offline: bool = False, show: Show = nobody) -> str:
    """The path of an adapter: a path as it is, or that of ORG/REPO[:FILE][@REVISION] of the hub, of which it is the
    folder of an adapter, or else a GGUF file. Raises HubError for a name that can't be fetched."""
    path = resolve_path(adapter)
    name = hub_name(path)
    if name is None:
        return path
    try:
        return find(name, None, choose_adapter).path
    except HubError:
        return download(name, show, choose_adapter, offline=offline).path


def hub_name(path: str) -> HubName | None:
    """The name of the hub that `path` is; None for what is a path: something is there, or its first folder is."""
    if os.path.lexists(path):
        return None
    name = parse(path)
    if name is not None and path == name.repo and os.path.isdir(path.partition("/")[0]) and cached(name) is None:
        return None
    return name


def download(
    name: HubName, show: Show = nobody, chooser: Chooser = choose, *, offline: bool = False, began: Began = nobody
) -> Pulled:
    """Pull a model that fits this machine's memory, or the one that `name` says. Raises HubError.

    `offline` takes what is in the hub's cache.
    """
    from octavo.io.hub.download import pull

    return pull(name, free=free_memory(), show=show, chooser=chooser, offline=offline, began=began)


def free_memory() -> int | None:
    """Bytes of memory that a model may take; None where the system does not tell."""
    found = room()
    return None if found is None else found.free
