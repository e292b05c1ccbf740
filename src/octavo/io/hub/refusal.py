"""What an answer of the hub other than the thing asked for means, and what to do about it."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from octavo.errors import HubError
from octavo.io.hub.hub_client import host, http_library
from octavo.io.hub.name import HubName
from octavo.io.hub.retries import TRANSIENT, Retries, retry_after

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_NAMES = {408: "is too slow", 429: "gets too many requests", 500: "has failed", 502: "is not reached",
          503: "is busy", 504: "is not reached in time"}
_SEARCHED = 50


def refused(api: HfApi, name: HubName, response: Any, retries: Retries) -> None:
    """Wait where it may be answered otherwise later. Raises HubError with the reason where not."""
    status, header = response.status_code, response.headers.get
    if status in TRANSIENT:
        problem = f"{host(api)} {_NAMES.get(status, 'has failed')} (status {status})"
        retries.wait(problem, retry_after(header("Retry-After")))
        return
    code = header("X-Error-Code")
    if code == "GatedRepo" or (status in (401, 403) and code != "RepoNotFound"):
        raise HubError(_closed(api, name, status))
    if code == "RevisionNotFound":
        raise HubError(f"{name.repo} has no revision {name.revision}{_revisions(api, name)}")
    if code == "EntryNotFound":
        raise HubError(f"{name.repo} no longer has a file that it listed; the same command takes what it has now")
    if status in (401, 404):
        raise HubError(_missing(api, name))
    raise HubError(f"{host(api)} answers {name} with status {status}: {header('X-Error-Message') or 'no reason'}")


def _closed(api: HfApi, name: HubName, status: int) -> str:
    """Gated, or private: how to be let in."""
    page = f"{api.endpoint}/{name.repo}"
    if status == 403 or _has_token():
        return f"{name.repo} is not open to the token that is set: accept its terms at {page}, or take another token"
    return (
        f"{name.repo} is open to users who are known only: accept its terms at {page}, make a token at "
        f"{api.endpoint}/settings/tokens, and set HF_TOKEN to it or give it to `hf auth login`"
    )


def _missing(api: HfApi, name: HubName) -> str:
    """No such repository, as far as is told: those that are not open to a user are not there for him either."""
    try:
        models = api.list_models(search=name.repo.partition("/")[2], limit=_SEARCHED)
        names = {model.id.casefold(): model.id for model in models}
    except (http_library().HTTPError, OSError, ValueError):
        names = {}
    close = [names[n] for n in get_close_matches(name.repo.casefold(), list(names), n=3, cutoff=0.5)]
    private = "" if _has_token() else ", or it is private and no token is set"
    meant = f"; did you mean {', '.join(close)}?" if close else ""
    return f"{host(api)} has no {name.repo}{private}{meant}"


def _revisions(api: HfApi, name: HubName) -> str:
    try:
        refs = api.list_repo_refs(name.repo)
    except (http_library().HTTPError, OSError, ValueError):
        return ""
    return f" (choices: {', '.join(ref.name for ref in [*refs.branches, *refs.tags][:10])})"


def _has_token() -> bool:
    from huggingface_hub import get_token

    return get_token() is not None
