"""`pull`: a model of the hub, by name, into the hub's cache."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from octavo.errors import FileError, HubError
from octavo.io.foreign import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from octavo.io.hub import download_cache
from octavo.io.hub.fetch import fetch
from octavo.io.hub.hub_client import LIBRARY, client
from octavo.io.hub.listing import Listing, list_repository
from octavo.io.hub.name import HubName
from octavo.io.hub.refusal import refused
from octavo.io.hub.retries import Began, Retries, Show, nobody
from octavo.io.hub.variants import Chooser, RepoFile, Variant, choose, variants
from octavo.sizes import size

if TYPE_CHECKING:
    from huggingface_hub import HfApi

log = logging.getLogger("octavo")
NEWS = {"news": True}
"""What marks a log record that is shown as a warning is, but warns of nothing."""

SPARE = 1 << 26
"""Bytes of a disk that a download leaves."""
SHOWN_S, RATE_S = 0.1, 5.0
"""How often progress is told, and over how long the rate is measured."""


@dataclass(frozen=True)
class Pulled:
    """What was pulled: its name, the commit, where it is, and how many of its bytes came now, in how many seconds."""

    name: HubName
    commit: str
    variant: Variant
    path: str
    downloaded: int
    seconds: float


def pull(
    name: HubName, *, free: int | None = None, show: Show = nobody, chooser: Chooser = choose, offline: bool = False,
    began: Began = nobody
) -> Pulled:
    """Download what of `name` is not in the cache, after asking the hub what that is.

    free     bytes of memory: what fits them is taken where the name does not say which (None: anything)
    show     told what goes on, and how many bytes of how many are there
    chooser  which of a repository's models is meant
    offline  ask nothing of the hub, as with HF_HUB_OFFLINE: what is in the cache is taken
    began    told of each file that is not there yet

    It goes on with what an interrupted download left. Raises HubError: no such name, no right to it, not reached, no
    room on the disk, wrong bytes; and FileError where the cache can't be written.
    """
    if offline or download_cache.is_offline():
        here = download_cache.find(name, free, chooser)
        return Pulled(name, here.commit, here.variant, here.path, 0, 0.0)
    api, retries, start = client(), Retries(show), time.monotonic()
    show(f"asking for {name}", 0, None)
    listing = list_repository(api, name, retries)
    found = variants(listing.entries)
    if not found and any(entry.name == ADAPTER_CONFIG for entry in listing.entries):
        raise HubError(f"{name.repo} is an adapter without {ADAPTER_WEIGHTS} (pickles are not downloaded)")
    chosen = chooser(name, found, free)
    same = listing.repo.casefold() == name.repo.casefold()  # not of a repository that was renamed
    folder = download_cache.folder_of(listing.repo if same else name.repo)
    try:
        missing = _missing(folder, listing, chosen)
        _require_room(folder, missing)
        if missing and show is nobody:
            log.warning("downloading %s: %s of %s", name, chosen.label, size(chosen.nbytes), extra=NEWS)
        downloaded = _fetch_all(api, folder, listing, chosen, name, retries, show, began)
    except OSError as error:
        raise FileError(f"can't be written: {error.strerror}", file=error.filename or folder) from None
    path = chosen.path(os.path.join(folder, "snapshots", listing.commit))
    return Pulled(name, listing.commit, chosen, path, downloaded, time.monotonic() - start)


def offered(name: HubName, show: Show = nobody, *, offline: bool = False) -> list[Variant]:
    """The models that the hub has in the repository of `name`; offline those in the cache. Raises HubError."""
    if offline or download_cache.is_offline():
        found = download_cache.here(name)
        if not found:
            raise HubError(download_cache.absent(name, found))
        return found
    return variants(list_repository(client(), name, Retries(show)).entries)


def _missing(folder: str, listing: Listing, chosen: Variant) -> list[RepoFile]:
    return [entry for entry in chosen.files if not download_cache.is_there(folder, listing.commit, entry)]


def _require_room(folder: str, missing: Sequence[RepoFile]) -> None:
    """Raise HubError unless the disk has room for what is not there yet."""
    needed = 0
    for entry in missing:
        partial = download_cache.blob_of(folder, entry) + download_cache.PARTIAL
        needed += entry.size - (os.path.getsize(partial) if os.path.exists(partial) else 0)
    place = folder
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    free = shutil.disk_usage(place).free
    if needed and needed + SPARE > free:
        raise HubError(f"the download needs {size(needed)}, but {place} has only {size(free)} free")


def _fetch_all(
    api: HfApi, folder: str, listing: Listing, chosen: Variant, name: HubName, retries: Retries, show: Show,
    began: Began
) -> int:
    """Bring each file of the model that is not there; each is in the snapshot as soon as all of it is there."""
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    revision, headers = name.revision or "main", build_hf_headers(**LIBRARY)
    download_cache.add(folder, listing.commit, revision)
    progress, downloaded = Progress(chosen.nbytes, show), 0
    retries.show = progress.show
    is_refused = partial(refused, api, name, retries=retries)
    for entry in chosen.files:
        if not download_cache.is_there(folder, listing.commit, entry):
            url = f"{api.endpoint}/{listing.repo}/resolve/{listing.commit}/{quote(entry.name)}"
            blob = download_cache.blob_of(folder, entry)
            partial_file = blob + download_cache.PARTIAL
            began(partial_file, entry.size)
            downloaded += fetch(url, headers, entry, blob, partial_file, is_refused, retries, progress.show)
        download_cache.add(folder, listing.commit, revision, entry)
        progress.next(entry)
    return downloaded


class Progress:
    """Tells how much of several files is there, and how fast it comes, ten times a second."""

    def __init__(self, total: int, show: Show) -> None:
        self._total, self._show = total, show
        self._before, self._there, self._last = 0, 0, float("-inf")
        self._seen: deque[tuple[float, int]] = deque()

    def next(self, entry: RepoFile) -> None:
        """A file is there."""
        self._before = self._there = self._before + entry.size

    def show(self, what: str, done: int, total: int | None) -> None:
        """So much of the file that goes on is there; without a `total`, as much as before."""
        now = time.monotonic()
        if total is None:
            self._show(what, self._there, self._total)
            return
        if now - self._last < SHOWN_S and done < total:
            return
        self._last, self._there = now, self._before + done
        self._seen.append((now, self._there))
        while now - self._seen[0][0] > RATE_S:
            self._seen.popleft()
        (since, before), extent = self._seen[0], f"{size(self._there)} of {size(self._total)}"
        rate = f", {size((self._there - before) / (now - since))}/s" if now > since else ""
        self._show(f"{what}: {extent}{rate}", self._there, self._total)
