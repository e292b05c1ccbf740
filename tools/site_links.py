"""Hooks of mkdocs: guides beside the kernels are pages of the site, and links between them and docs/ work there.

Links to other files of the repository lead to it, or become plain text where `repo_url` is not set.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
KERNELS = "src/octavo/backends/gpu"
LINK = re.compile(r"\[([^\]\[]+)\]\(([\w./-]*/[\w./-]+)(#[\w-]+)?\)")


def guides() -> dict[str, str]:
    """Paths of guides in the repository -> pages of the site."""
    paths = sorted((ROOT / KERNELS).glob("*/README.md"))
    return {path.relative_to(ROOT).as_posix(): f"kernels/{path.parent.name}.md" for path in paths}


def on_files(files: Any, *, config: Any) -> None:
    from mkdocs.structure.files import File

    for path, page in guides().items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text("utf-8")))


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """The text of a page with its links to files beyond docs/ replaced."""
    pages, here = guides(), page.file.src_uri
    source = next((path for path, own in pages.items() if own == here), f"docs/{here}")

    def replaced(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        at = pages.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
        if at is not None:
            return f"[{text}]({posixpath.relpath(at, posixpath.dirname(here) or '.')}{anchor})"
        return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{path}{anchor})" if config.repo_url else text

    return LINK.sub(replaced, markdown)
