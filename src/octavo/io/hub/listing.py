"""What the hub says is in a repository, believed no further than its files may go."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.errors import HubError, shown
from octavo.io.hub.hub_client import host, http_library
from octavo.io.hub.name import HubName
from octavo.io.hub.patience import Patience
from octavo.io.hub.refusal import refused
from octavo.io.hub.variants import RepoFile

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoSibling

COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
_CONNECT_TRIES = 2


@dataclass(frozen=True)
class Listing:
    """A repository at a commit. `repo` is its name as the hub has it now."""

    repo: str
    commit: str
    entries: tuple[RepoFile, ...]


def list_repository(api: HfApi, name: HubName, patience: Patience) -> Listing:
    """The files of `name` at its revision. Raises HubError for what is not there, not open or not reached."""
    from huggingface_hub.errors import HfHubHTTPError

    connecting = Patience(tries=_CONNECT_TRIES)
    while True:
        try:
            info = api.model_info(name.repo, revision=name.revision, files_metadata=True, timeout=30)
            patience.refresh()
            break
        except HfHubHTTPError as error:
            refused(api, name, error.response, patience)
        except http_library().RequestError as error:
            connecting.wait(f"{host(api)} can't be reached: {error or type(error).__name__}")
        except (ValueError, KeyError, TypeError) as error:
            raise HubError(f"{host(api)} does not answer like a hub: {error}") from None
    if COMMIT.fullmatch(info.sha or "") is None:
        raise HubError(f"{host(api)} says that {name} is at commit {shown(str(info.sha))}, which is not 40 hex digits")
    return Listing(info.id, str(info.sha), tuple(_entry(name, file) for file in info.siblings or ()))


def _entry(name: HubName, file: RepoSibling) -> RepoFile:
    """A file as the hub lists it. Raises HubError for a name that leads out of its folder, or no digest."""
    parts = file.rfilename.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in file.rfilename or not file.rfilename.isprintable():
        raise HubError(f"{name.repo} lists a file {shown(file.rfilename)} (allowed: names within its folder)")
    size = file.lfs.size if file.lfs else file.size
    digest = file.lfs.sha256 if file.lfs else file.blob_id
    if not isinstance(size, int) or size < 0 or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise HubError(f"{name.repo} lists {shown(file.rfilename)} without a size and a digest")
    return RepoFile(file.rfilename, size, digest)
