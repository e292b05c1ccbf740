"""The tiers of an engine, opened: what its keys and values depend on, and what can't be kept, which is told."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from octavo import __version__
from octavo.errors import OctavoError, UsageError
from octavo.graph.node import PAGE_SIZE
from octavo.graph.protocol import AsyncBackend, RememberingBackend
from octavo.io.atomic import reason
from octavo.io.file_identity import fingerprint
from octavo.jit.host_cpu import features
from octavo.jit.kernel_cache import cache_root, sources
from octavo.runtime.cache.tiers.disk_tier import DiskTier
from octavo.runtime.cache.tiers.host_tier import HostTier
from octavo.runtime.cache.tiers.prefix_tiers import PrefixTiers
from octavo.runtime.engine.engine import Engine

log = logging.getLogger("octavo")
LEAST_PAGES = 4
"""Fewest pages that it makes sense to keep."""
CODE = ("formats", "graph", "models", "huggingface", "backends", "jit")
"""The folders whose code makes keys and values of tokens."""


def default_folder() -> Path:
    """Where prefixes are kept, unless another folder is named."""
    return cache_root() / "prefixes"


def open_tiers(
    engine: Engine, *, disk: int = 0, ram: int = 0, folder: Path | None = None, slots: bool = False
) -> PrefixTiers | None:
    """What keeps up to `disk` and `ram` bytes of prefixes, on disk and in the host's memory, of a loaded engine.

    With `slots` conversations can be saved to files of their own, whatever the tiers. None, with a line that says why,
    for a model of which nothing can be kept. Raises UsageError for a limit of less than a few pages, and for `ram`
    where pages are in the host's memory already.
    """
    if not (disk or ram or slots):
        return None
    if engine.config.embeds or engine.ranks > 1:
        why = "an embedding model keeps no pages" if engine.config.embeds else "its pages are divided among ranks"
        log.warning("no prefixes of %s are kept: %s", engine.model.file.path, why)
        return None
    if ram and not isinstance(engine.backends[0], AsyncBackend):
        raise UsageError("cache_ram is for GPUs: on the CPU pages are in the same memory (allowed: kv_memory, for a "
                         "larger cache)", argument="cache_ram")
    page = engine.load().saved_bytes("rows")
    for name, limit in (("cache_disk", disk), ("cache_ram", ram)):
        if 0 < limit < LEAST_PAGES * page:
            raise UsageError(f"{name} is {limit:,} bytes, and a page of this model has {page:,} (allowed: "
                             f"{LEAST_PAGES * page:,} bytes and more, as 8G)", argument=name)
    try:
        identity = _identity(engine)
    except (OSError, OctavoError) as error:
        log.warning("no prefixes of %s are kept: its files can't be read again: %s", engine.model.file.path, error)
        return None
    kept, folder = None, folder or default_folder()
    if disk:
        try:
            kept = DiskTier(folder, disk, identity)
        except OSError as error:
            log.warning("%s: prefixes can't be kept: %s", folder, reason(error))
    host = HostTier(ram) if ram else None
    return PrefixTiers(engine, identity, kept, host) if kept or host or slots else None


def _identity(engine: Engine) -> bytes:
    """A digest of all that decides on the bytes of pages and states, but the tokens. Raises OSError, OctavoError."""
    config, here = engine.config, Path(__file__).parents[3]
    backends = [
        (type(b).__name__, b.name, b.remembers()[1] if isinstance(b, RememberingBackend) else vars(b).get("exact"))
        for b in engine.backends
    ]
    cpu = [] if all(isinstance(b, AsyncBackend) for b in engine.backends) else sorted(features())
    layout = [(place, engine.load().saved_bytes(place)) for place in ("rows", "window_rows", "states")]
    facts = (
        __version__, PAGE_SIZE, engine.n_ctx, config.cache_type, config.fuse, backends, layout, cpu,
        [engine.schedule.backends[id(node)] for node in engine.graph.nodes if not node.is_leaf],
        [scale for _, scale in engine.lora],
    )
    digest = hashlib.sha256(repr(facts).encode())
    for file in engine.model.file.files:
        digest.update(fingerprint(file))
    for path, _ in engine.lora:
        for file in sorted(_files(path)):
            digest.update(fingerprint(file))
    for name in CODE:
        digest.update(sources(here / name))
    return digest.digest()


def _files(path: str) -> Iterator[str]:
    """The files of an adapter."""
    if not os.path.isdir(path):
        yield path
        return
    yield from (one.path for one in os.scandir(path) if one.is_file())
