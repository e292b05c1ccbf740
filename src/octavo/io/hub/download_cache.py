"""The hub's cache: where `huggingface_hub` and all that use it keep what was downloaded, each file once.

models--ORG--REPO/blobs/<digest>                the bytes
models--ORG--REPO/snapshots/<commit>/<name>     a link to them for each commit that has the file
models--ORG--REPO/refs/<revision>               the commit that a branch or a tag was at
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from octavo.errors import HubError, listed
from octavo.io.atomic import replace_file
from octavo.io.hub.name import HubName
from octavo.io.hub.variants import Chooser, RepoFile, Variant, choose, meant, variants

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
PARTIAL = ".octavo.incomplete"
_SNAPSHOT = re.compile(r"models--(.+)[/\\]snapshots[/\\][0-9a-f]{40}")


def folder_of(repo: str) -> str:
    """The folder of a repository, there or not. One that is there under other capitals is meant: so has it the hub."""
    from huggingface_hub import constants

    cache, name = constants.HF_HUB_CACHE, f"models--{repo.replace('/', '--')}"
    if not os.path.isdir(os.path.join(cache, name)):
        with suppress(OSError):
            alike = sorted(entry for entry in os.listdir(cache) if entry.casefold() == name.casefold())
            name = alike[0] if alike else name
    return os.path.join(cache, name)


@dataclass(frozen=True)
class Cached:
    """A model in the cache: which of a repository's, at which commit, and where."""

    variant: Variant
    commit: str
    path: str


def cached(name: HubName, free: int | None = None) -> str | None:
    """The path of the model that `name` means, if all of it is in the cache; the hub is not asked.

    Where the name does not say which of several: as `choose` has it, with `free` bytes of memory.
    """
    try:
        return find(name, free).path
    except HubError:
        return None


def find(name: HubName, free: int | None = None, chooser: Chooser = choose) -> Cached:
    """The model of the cache that `name` means; the hub is not asked.

    Raises HubError where it is not all there, and ChoiceError where several could be meant or none fits.
    """
    folder, commit, found = folder_of(name.repo), commit_of(name), here(name)
    if not meant(name, found):
        why = "unset HF_HUB_OFFLINE for that" if is_offline() else f"`octavo pull {name}` does it"
        raise HubError(f"{absent(name, found)}, and nothing is downloaded offline; {why}")
    chosen, snapshot = chooser(name, found, free), os.path.join(folder, "snapshots", commit)
    return Cached(chosen, commit, chosen.path(snapshot))


def here(name: HubName) -> list[Variant]:
    """The models of a repository, at the revision of `name`, that are in the cache."""
    return whole(os.path.join(folder_of(name.repo), "snapshots", commit_of(name)))


def absent(name: HubName, found: Sequence[Variant]) -> str:
    """That `name` is not in the cache, and which other models of its repository are."""
    return f"{name} is not on this machine{f' (choices: {listed(found)})' if found else ''}"


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE says that nothing is asked of the hub."""
    from huggingface_hub import constants

    return constants.HF_HUB_OFFLINE


def whole(snapshot: str) -> list[Variant]:
    """The models in the folder of a snapshot of which nothing is missing."""
    return [v for v in variants(entries_in(snapshot)) if not v.is_checkpoint or _has_all_weights(snapshot)]


def entries_in(snapshot: str) -> Iterator[RepoFile]:
    """The files of a snapshot that are there; links to what has gone are not."""
    for folder, _, names in os.walk(snapshot):
        for name in names:
            path = os.path.join(folder, name)
            with suppress(OSError):
                digest = os.path.basename(os.readlink(path)) if os.path.islink(path) else ""
                yield RepoFile(os.path.relpath(path, snapshot).replace(os.sep, "/"), os.stat(path).st_size, digest)


def commit_of(name: HubName) -> str:
    """The commit that a name's revision was at when something of it was downloaded last."""
    return _commit(folder_of(name.repo), name.revision or "main")


def _commit(folder: str, revision: str) -> str:
    """The same of a revision in a folder; a commit is its own."""
    try:
        with open(os.path.join(folder, "refs", *revision.split("/")), encoding="ascii") as file:
            return file.read(64).strip()
    except (OSError, ValueError):
        return revision


def _has_all_weights(snapshot: str) -> bool:
    """Whether a checkpoint has its one file of weights, or all that its index names."""
    index = os.path.join(snapshot, INDEX)
    if not os.path.exists(index):
        return os.path.exists(os.path.join(snapshot, SINGLE))
    try:
        with open(index, encoding="utf-8") as file:
            names = set(json.load(file)["weight_map"].values())
        return all(os.path.exists(os.path.join(snapshot, name)) for name in names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return True  # the reader will say what is wrong with the file


def add(folder: str, commit: str, revision: str, entry: RepoFile | None = None) -> None:
    """Note that `revision` is at `commit`, and put a file of it, whose bytes are there, into the commit's snapshot."""
    snapshot = os.path.join(folder, "snapshots", commit)
    os.makedirs(snapshot, exist_ok=True)
    if _commit(folder, revision) != commit:
        _write(os.path.join(folder, "refs", *revision.split("/")), commit)
    if entry is None:
        return
    path, blob = os.path.join(snapshot, *entry.name.split("/")), blob_of(folder, entry)
    if os.path.exists(path):
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with suppress(FileNotFoundError):
        os.unlink(path)  # a link to what has gone
    try:
        os.symlink(os.path.relpath(blob, os.path.dirname(path)), path)
    except OSError:
        os.replace(blob, path)  # the hub's client does the same where there are no links


def blob_of(folder: str, entry: RepoFile) -> str:
    """Where the bytes of a file are kept."""
    return os.path.join(folder, "blobs", entry.digest)


def is_there(folder: str, commit: str, entry: RepoFile) -> bool:
    """Whether a file's bytes are there, all of them."""
    places = (blob_of(folder, entry), os.path.join(folder, "snapshots", commit, *entry.name.split("/")))
    return any(os.path.isfile(path) and os.path.getsize(path) == entry.size for path in places)


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with replace_file(path, flush=False) as temporary, open(temporary, "w", encoding="ascii") as file:
        file.write(text)


def shown_name(path: str | os.PathLike[str]) -> str:
    """What a model's file or folder is called; the folder of a snapshot has its repository's name, not the commit's."""
    full = os.path.abspath(os.fspath(path))
    snapshot = _SNAPSHOT.fullmatch(os.sep.join(full.split(os.sep)[-3:]))
    return snapshot[1].rpartition("--")[2] if snapshot else os.path.basename(full)
