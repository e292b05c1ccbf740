"""Names of models on the hub: `ORG/REPO`, `ORG/REPO:QUANT`, `ORG/REPO:QUANT@REVISION`, and the hub's addresses."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PART = r"[A-Za-z0-9][\w.-]*"
_NAME = re.compile(rf"({_PART}/{_PART})(?::([\w.+-][\w./+-]*))?(?:@([\w.][\w./-]*))?", re.ASCII)
_HUB = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(.+?)/?(?:\?.*)?", re.IGNORECASE)
_PAGE = re.compile(rf"({_PART}/{_PART})/(?:resolve|blob|tree)/([\w.-]+)(?:/([\w./+-]+))?", re.ASCII)
_FILES = (".gguf", ".safetensors", ".json", ".txt")
MOST = 96
"""Characters of the part after the slash, and of that before it."""


@dataclass(frozen=True)
class HubName:
    """A repository, and what of it: `what` is a quantization, a file, or part of its name; None for any.

    `revision` is a branch, a tag or a commit; None for the main branch.
    """

    repo: str
    what: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        what = f":{self.what}" if self.what else ""
        return f"{self.repo}{what}{f'@{self.revision}' if self.revision else ''}"


def parse(text: str) -> HubName | None:
    """The hub's name that `text` is, None for anything else: a path, or a name that the hub gives to nothing."""
    hub = _HUB.fullmatch(text)
    page = _PAGE.fullmatch(hub[1]) if hub else None
    if page:
        return _checked(page[1], page[3], None if page[2] == "main" else page[2])
    found = _NAME.fullmatch(hub[1] if hub else text)
    return _checked(*found.groups()) if found else None


def _checked(repo: str, what: str | None, revision: str | None) -> HubName | None:
    """The name, unless the hub has none such: `--` and `..` are in no name, and revisions and files go nowhere up."""
    parts = [repo, what or "", revision or ""]
    wrong = repo.endswith((*_FILES, ".git", "-", ".")) or "--" in repo or any(".." in part for part in parts)
    long = any(len(part) > MOST for part in repo.split("/"))
    return None if wrong or long else HubName(repo, what, revision)
