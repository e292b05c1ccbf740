"""Which models are in the hub's cache, and how they are removed from it."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING

from octavo.errors import HubError
from octavo.io.hub.download_cache import PARTIAL, absent, folder_of, whole
from octavo.io.hub.name import HubName
from octavo.io.hub.variants import Variant, choose, meant
from octavo.sizes import size

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, CachedRevisionInfo, DeleteCacheStrategy, HFCacheInfo

log = logging.getLogger("octavo")


@dataclass(frozen=True)
class Installed:
    """A model in the cache. `quantization` is None for downloads that were interrupted, of which `nbytes` are there."""

    name: HubName
    quantization: str | None
    nbytes: int
    modified: datetime
    commit: str | None
    path: str


def installed() -> list[Installed]:
    """The models in the hub's cache, by name. Repositories without a model that Octavo could read are left out."""
    found = _scan()
    rows = [row for repo in found.repos if repo.repo_type == "model" for row in _models_of(repo)] if found else []
    return sorted(rows, key=lambda row: (row.name.repo.casefold(), row.nbytes, str(row.name)))


def cache_folder() -> str:
    """Where the hub's cache is."""
    return os.path.dirname(folder_of("a/b"))


def _scan() -> HFCacheInfo | None:
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        found = scan_cache_dir(constants.HF_HUB_CACHE)
    except (CacheNotFound, ValueError):
        return None
    for warning in found.warnings:
        log.info("the cache of the hub: %s", warning)
    return found


def _models_of(repo: CachedRepoInfo) -> list[Installed]:
    rows = []
    for revision in repo.revisions:
        folder, at = str(revision.snapshot_path), _time(revision.last_modified)
        models = whole(folder)
        for v in models:
            what = None if v.is_folder and len(models) == 1 else v.label
            name = HubName(repo.repo_id, what, _revision(revision))
            rows.append(Installed(name, v.label, v.nbytes, at, revision.commit_hash, v.path(folder)))
    partial = _partial(repo)
    if partial:
        path = str(repo.repo_path)
        rows.append(Installed(HubName(repo.repo_id), None, partial, _time(repo.last_modified), None, path))
    return rows


def _revision(revision: CachedRevisionInfo) -> str | None:
    """The branch, tag or commit that a name needs; None for the main branch."""
    return None if "main" in revision.refs else min(revision.refs, default=revision.commit_hash)


def _partial(repo: CachedRepoInfo) -> int:
    """Bytes of interrupted downloads."""
    return sum(path.stat().st_size for path in (repo.repo_path / "blobs").glob(f"*{PARTIAL}"))


def _time(stamp: float) -> datetime:
    return datetime.fromtimestamp(stamp, UTC).replace(microsecond=0)


@dataclass(frozen=True)
class Removal:
    """What is to be removed: the models, and the bytes that it frees; what other models use as well is kept."""

    models: tuple[str, ...]
    nbytes: int
    strategy: DeleteCacheStrategy


def remove(name: HubName) -> Removal:
    """What `name` means in the cache: a quantization, or without one all of the repository. Nothing is removed yet.

    Raises HubError where the cache has none such, and ChoiceError where several models could be meant.
    """
    found = _scan()
    repos = {repo.repo_id: repo for repo in found.repos if repo.repo_type == "model"} if found else {}
    alike = {repo_id.casefold(): repo for repo_id, repo in repos.items()}
    repo = repos.get(name.repo) or alike.get(name.repo.casefold())
    if found is None or repo is None:
        close = get_close_matches(name.repo, list(repos), n=1)
        raise HubError(f"{name.repo} is not in the cache{f'; did you mean {close[0]}?' if close else ''}")
    revisions = [r for r in repo.revisions if name.revision is None or _is_revision(r, name.revision)]
    if not revisions:
        raise HubError(f"{name.repo} is not in the cache at {name.revision}")
    if name.what is None:
        strategy = found.delete_revisions(*(r.commit_hash for r in revisions))
        nbytes = strategy.expected_freed_size + (_partial(repo) if strategy.repos else 0)
        return Removal((str(name),), nbytes, strategy)
    return _remove_variant(name, found, repo, revisions)


def _is_revision(revision: CachedRevisionInfo, wanted: str) -> bool:
    return wanted in revision.refs or revision.commit_hash == wanted


def _remove_variant(
    name: HubName, found: HFCacheInfo, repo: CachedRepoInfo, revisions: Sequence[CachedRevisionInfo]
) -> Removal:
    """One model out of each revision that has it; with the last the whole repository goes."""
    models: dict[str, list[Variant]] = {r.commit_hash: whole(str(r.snapshot_path)) for r in repo.revisions}
    every = {v.label: v for r in revisions for v in models[r.commit_hash]}
    if not meant(name, list(every.values())):
        partial = _partial(repo)
        begun = f"; {size(partial)} of an interrupted download are: `octavo rm {repo.repo_id}` removes all of it"
        raise HubError(f"{absent(name, list(every.values()))}{begun if partial else ''}")
    chosen = choose(name, list(every.values()), None)
    paths = {
        os.path.join(r.snapshot_path, *entry.name.split("/")) for r in revisions
        for v in models[r.commit_hash] if v.label == chosen.label for entry in v.files
    }
    chosen_at = {r.commit_hash for r in revisions}
    left = [v for commit, there in models.items() for v in there if v.label != chosen.label or commit not in chosen_at]
    if not left and not _partial(repo):
        strategy = found.delete_revisions(*(r.commit_hash for r in repo.revisions))
    else:
        files = [file for r in revisions for file in r.files if str(file.file_path) in paths]
        strategy = found.delete_files(*files)
    return Removal((f"{repo.repo_id}:{chosen.label}",), strategy.expected_freed_size, strategy)
