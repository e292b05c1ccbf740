"""A hook of mkdocs: links out of docs/ lead to the repository, or become plain text where `repo_url` is not set."""

from __future__ import annotations

import posixpath
import re
from typing import Any

LINK = re.compile(r"\[([^\]\[]+)\]\(((?:\.\./)+[^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """The text of a page with its links to files beyond docs/ replaced."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def replaced(match: re.Match[str]) -> str:
        text, target = match.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        if path.startswith("docs/"):
            return match[0]
        return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{path})" if config.repo_url else text

    return LINK.sub(replaced, markdown)
